"""The state of a member in its replica set, with switches for stepdowns and elections."""

import asyncio
from collections.abc import Mapping
from typing import Any

from bson.objectid import ObjectId

from embedded.errors import CommandError, ErrorCode
from embedded.storage.bson_values import Document

_ANSWERED_BY_ALL = frozenset(
    {
        "hello", "isMaster", "ismaster", "ping", "buildInfo", "buildinfo", "getMore",
        "killCursors", "serverStatus", "endSessions", "saslStart", "saslContinue", "logout",
        "connectionStatus", "whatsmyuri",
    }
)  # fmt: skip
_READS = frozenset({"aggregate", "find", "count", "listCollections", "listIndexes"})


class Elections:
    """The state of a one-member replica set: primary, or secondary without a primary.

    The embedded mongos, inside the process, can still write while the member is not primary, as if
    another member had been elected meanwhile.
    """

    def __init__(self) -> None:
        self.is_primary = True
        self.term = 1
        self._changed = asyncio.Event()

    @property
    def election_id(self) -> ObjectId:
        """The id of the latest election, greater than all earlier ids."""
        return ObjectId(f"7fffffff{self.term:016x}")

    def step_down(self) -> None:
        """Become secondary; pending awaitable hellos return."""
        self.is_primary = False
        self._tell()

    def step_up(self) -> None:
        """Win an election; pending awaitable hellos return."""
        self.is_primary = True
        self.term += 1
        self._tell()

    async def wait_for_change(self, timeout: float) -> None:
        """Return after the next change, or after ``timeout`` seconds."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout):
                await changed.wait()
        except TimeoutError:
            pass

    def check(self, command: Mapping[str, Any]) -> None:
        """Refuse the commands that a secondary refuses.

        Raises:
            CommandError: 10107 NotWritablePrimary, 13435 NotPrimaryNoSecondaryOk.
        """
        name = next(iter(command), "")
        if self.is_primary or name in _ANSWERED_BY_ALL:
            return
        if name in _READS:
            mode = (command.get("$readPreference") or {}).get("mode", "primary")
            if mode != "primary":
                return
            raise CommandError(
                ErrorCode.NotPrimaryNoSecondaryOk,
                "not primary and secondaryOk=false - consider using db.getMongo()."
                "setReadPref() or readPreference in the connection string",
            )
        raise CommandError(ErrorCode.NotWritablePrimary, "not primary")

    def describe(self, reply: Document, primary_field: str, host: str) -> None:
        """Add the member's state to a reply to hello (docs/protocol.md#wire-protocol)."""
        reply[primary_field] = self.is_primary
        reply["secondary"] = not self.is_primary
        if self.is_primary:
            reply["primary"] = host
            reply["electionId"] = self.election_id

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

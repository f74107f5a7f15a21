"""The topology version that hello carries, and waiting for it to change."""

import asyncio
from typing import Any

from bson.int64 import Int64
from bson.objectid import ObjectId

from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

QUIESCE_MESSAGE = "Mongos is in quiesce mode and will shut down"


class TopologyVersion:
    """A counter that clients' monitors wait on (docs/protocol.md, section 1).

    It moves when what hello says changes, and a last time when the router begins to shut down:
    from then on every hello is refused with ShutdownInProgress.
    """

    def __init__(self) -> None:
        self.process_id = ObjectId()
        self.counter = 0
        self._changed = asyncio.Event()
        self._quiesce_until: float | None = None

    @property
    def quiescing(self) -> bool:
        """Whether the router is shutting down."""
        return self._quiesce_until is not None

    def document(self) -> dict[str, Any]:
        """Return ``{processId, counter}``."""
        return {"processId": self.process_id, "counter": Int64(self.counter)}

    def advance(self) -> None:
        """Wake every waiting hello: what it says has changed."""
        self.counter += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def quiesce(self, until: float) -> None:
        """Refuse every hello from now on.

        Args:
            until: the loop's time, in seconds, when the process will be gone.
        """
        self._quiesce_until = until
        self.advance()

    def shutdown_error(self) -> CommandError:
        """Return what hello answers while the router shuts down."""
        assert self._quiesce_until is not None
        left = max(0.0, self._quiesce_until - asyncio.get_running_loop().time())
        return CommandError(
            ErrorCode.ShutdownInProgress,
            QUIESCE_MESSAGE,
            extra={
                "topologyVersion": self.document(),
                "remainingQuiesceTimeMillis": Int64(left * 1000),
            },
        )

    async def wait_beyond(self, known: dict[str, Any] | None, timeout: float) -> None:
        """Return at once if ``known`` is not the present version, else when it changes.

        Args:
            known: the client's ``topologyVersion``.
            timeout: seconds to wait at most.

        Raises:
            CommandError: the router shuts down, or ``known`` is ahead of us.
        """
        if self.quiescing:
            raise self.shutdown_error()
        if (
            known is not None
            and known.get("processId") == self.process_id
            and known["counter"] >= self.counter
        ):
            if known["counter"] > self.counter:
                raise CommandError(
                    51761,
                    f"Received a topology version with counter: {known['counter']} which is "
                    f"greater than the mongos topology version counter: {self.counter}",
                )
            changed = self._changed
            try:
                async with asyncio.timeout(timeout):
                    await changed.wait()
            except TimeoutError:
                pass
        if self.quiescing:
            raise self.shutdown_error()

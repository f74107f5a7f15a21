"""The topology version of hello replies, with waiting for a change."""

import asyncio
from contextlib import suppress
from typing import Any

from bson.int64 import Int64
from bson.objectid import ObjectId

from shard_client.errors import CommandError, ErrorCode

QUIESCE_MESSAGE = "Mongos is in quiesce mode and will shut down"


class TopologyVersion:
    """A counter that clients' monitors wait on (docs/protocol.md#wire-protocol).

    It advances when the contents of hello change, and a last time when the router begins to shut
    down: from then on every hello is refused with ShutdownInProgress. The processes of a router
    share ``process_id`` and the counter.
    """

    def __init__(self, process_id: ObjectId | None = None) -> None:
        self.process_id = process_id or ObjectId()
        self.counter = 0
        self._shared = process_id is not None
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
        """Increment the counter and wake every waiting hello."""
        self.move_to(self.counter + 1)

    def move_to(self, counter: int) -> None:
        """Set the counter to the one that all processes share and wake every waiting hello."""
        self.counter = counter
        self._changed.set()
        self._changed = asyncio.Event()

    def quiesce(self, until: float) -> None:
        """Refuse every hello from now on; the process ends at ``until`` on the loop's clock."""
        self._quiesce_until = until
        self.advance()

    def _shutdown_error(self) -> CommandError:
        """Return the error for a hello while the router shuts down.

        Its label makes a driver that meets the error on a new connection retry the write for which
        it connected. The drivers' specification of retryable writes asks for this retry, but some
        drivers take the label from the reply alone, and mongos does not send it.
        """
        assert self._quiesce_until is not None
        remaining = max(0.0, self._quiesce_until - asyncio.get_running_loop().time())
        return CommandError(
            ErrorCode.ShutdownInProgress,
            QUIESCE_MESSAGE,
            labels={"RetryableWriteError"},
            extra={
                "topologyVersion": self.document(),
                "remainingQuiesceTimeMillis": Int64(remaining * 1000),
            },
        )

    async def wait_beyond(self, seen: dict[str, Any] | None, timeout: float) -> None:
        """Wait until ``seen`` is no longer the current version, at most ``timeout`` seconds.

        None is never current. Raises CommandError: the router shuts down, or ``seen`` is ahead of
        the counter.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self.quiescing and self._is_present(seen):
                    await self._changed.wait()
        if self.quiescing:
            raise self._shutdown_error()

    def _is_present(self, seen: dict[str, Any] | None) -> bool:
        if seen is None or seen.get("processId") != self.process_id:
            return False
        # A client can see a change in another process before this one does.
        if seen["counter"] > self.counter and not self._shared:
            raise CommandError(
                51761,
                f"Received a topology version with counter: {seen['counter']} which is "
                f"greater than the mongos topology version counter: {self.counter}",
            )
        return bool(seen["counter"] >= self.counter)

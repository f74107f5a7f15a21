"""A client's cursor on a merged stream: one cursor id for many remote cursors."""

import asyncio
from typing import NamedTuple

from router.change_stream.actions import Taken
from router.streams.reader import Reader
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError


class Batch(NamedTuple):
    """The contents of one reply of a merged stream.

    ``cursor_id`` is 0 once the stream has ended; ``events`` are raw BSON slices, ``size`` is their
    size in bytes; ``pbrt`` is the raw postBatchResumeToken document.
    """

    cursor_id: int
    events: list[bytes]
    size: int
    pbrt: bytes


class MergedCursor:
    """A client's cursor on a merged stream (docs/design.md, section 5).

    ``cursor_id`` and ``namespace`` are sent in replies. Only one ``next_batch`` may run at a time.
    """

    def __init__(self, cursor_id: int, namespace: str, reader: Reader) -> None:
        self.cursor_id = cursor_id
        self.namespace = namespace
        self.reader = reader
        self._loop = asyncio.get_running_loop()
        self._killed: CommandError | None = None
        self._finished = False

    @property
    def finished(self) -> bool:
        """Whether the stream has ended or failed, or the cursor was killed: no events follow."""
        return self._finished or self._killed is not None

    def first_batch(self) -> Batch:
        """Return the opening's batch without waiting; like mongos's, it has no events.

        Raises CommandError.
        """
        return self._batch(self.reader.take(0))

    async def next_batch(self, batch_size: int | None, max_time: float) -> Batch:
        """Return at most ``batch_size`` ready events; wait up to ``max_time`` seconds for one.

        ``batch_size`` None or 0 means as many as fit. If no event arrives, the batch is empty, with
        a postBatchResumeToken that may have advanced. Raises CommandError, labelled as mongos
        labels it, if the stream has failed, or if the cursor was killed. Cancellation loses no
        events.
        """
        deadline = self._loop.time() + max_time
        reader = self.reader
        while self._killed is None and not reader.ready:
            left = deadline - self._loop.time()
            if left <= 0:
                break
            await reader.wait(left)
        if self._killed is not None:
            raise self._killed
        try:
            return self._batch(reader.take(batch_size or None))
        except CommandError:
            self._finished = True
            raise

    def kill(self, reason: CommandError | None = None) -> None:
        """Fail pending and later ``next_batch`` calls at once with ``reason`` (default: 237)."""
        if self._killed is None:
            self._killed = reason or CommandError(
                ErrorCode.CursorKilled, "operation was interrupted"
            )
            self.reader.wake()

    def close(self) -> None:
        """Stop reading; remotes without other readers are closed soon. Idempotent."""
        self.kill()
        self.reader.close()

    def _batch(self, taken: Taken) -> Batch:
        self._finished = taken.closed
        cursor_id = 0 if taken.closed else self.cursor_id
        return Batch(cursor_id, taken.events, taken.size, taken.pbrt)

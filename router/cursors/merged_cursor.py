"""What a client sees: one cursor id, many remote cursors behind it."""

import asyncio
from typing import NamedTuple

from router.change_stream.actions import Taken
from router.streams.reader import Reader
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError


class Batch(NamedTuple):
    """One reply's worth of a merged stream, in slices.

    ``cursor_id`` is 0 once the stream has ended; ``events`` are raw BSON, ``size`` their bytes;
    ``pbrt`` the raw postBatchResumeToken document.
    """

    cursor_id: int
    events: list[bytes]
    size: int
    pbrt: bytes


class MergedCursor:
    """A client's cursor on a merged stream (docs/design.md, section 5).

    ``cursor_id`` and ``namespace`` are what replies carry. One ``next_batch`` at a time.
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
        """Whether the stream has ended, failed or been killed: nothing more comes."""
        return self._finished or self._killed is not None

    def first_batch(self) -> Batch:
        """Return the opening's batch: it never waits and holds no events, as mongos's.

        Raises CommandError.
        """
        return self._batch(self.reader.take(0))

    async def next_batch(self, batch_size: int | None, max_time: float) -> Batch:
        """Return what is ready, at most ``batch_size`` events; else wait ``max_time`` seconds.

        ``batch_size`` None or 0: as many as fit. When nothing came: an empty batch, with a
        postBatchResumeToken that may have moved. Raises CommandError when the stream has failed,
        labelled as mongos would, or was killed. Cancelling loses nothing.
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
        """Have ``next_batch`` fail at once with ``reason`` (default: 237), now and ever after."""
        if self._killed is None:
            self._killed = reason or CommandError(
                ErrorCode.CursorKilled, "operation was interrupted"
            )
            self.reader.wake()

    def close(self) -> None:
        """Read no more: remotes that nobody else reads are closed soon. May be repeated."""
        self.kill()
        self.reader.close()

    def _batch(self, taken: Taken) -> Batch:
        self._finished = taken.closed
        cursor_id = 0 if taken.closed else self.cursor_id
        return Batch(cursor_id, taken.events, taken.size, taken.pbrt)

"""A client's cursor on a merged stream: one cursor id for many remote cursors."""

import asyncio

import structlog

from router.change_stream.log_reader import Batch, LogReader
from router.change_stream.request import StreamRequest
from router.streams.admission import NOBODY, Payer
from router.streams.pool import StreamPool
from router.streams.runner import release
from router.streams.shared_stream import SharedStream
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

log = structlog.get_logger()


class MergedCursor:
    """A client's cursor, which reads a shared stream through its own log reader.

    It delays no other client (docs/design.md#many-clients). If the log drops events that the client
    still needs, the cursor moves to a shared stream that covers them, which is opened if there is
    none, and joins the main one again once it has caught up. It also moves where its filter is
    evaluated elsewhere from then on (docs/sharing.md). Only one ``next_batch`` may run at a
    time.

    Args:
        cursor_id: sent in replies, like ``namespace``, which is the request's.
        request: the request of the streams that it reads.
        streams: the pool in which it finds another stream.
        shared: the stream on which it starts, which has been entered for it.
        log_reader: the log reader on that stream.
        payer: the client and the user to which streams opened for it are charged.
    """

    def __init__(
        self,
        cursor_id: int,
        request: StreamRequest,
        streams: StreamPool,
        shared: SharedStream,
        log_reader: LogReader,
        payer: Payer = NOBODY,
    ) -> None:
        self.cursor_id = cursor_id
        self.namespace = request.namespace
        self._streams = streams
        self._shared: SharedStream | None = shared
        self._log_reader = log_reader
        self._payer = payer
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._move_error: CommandError | None = None
        self._killed: CommandError | None = None
        self._finished = False
        self._closed = False

    @property
    def shared(self) -> SharedStream | None:
        """The shared stream that it reads; None during a move and after ``close``."""
        return self._shared

    @property
    def place(self) -> bytes:
        """The sort key beyond which the client needs all events."""
        return self._log_reader.needs

    @property
    def finished(self) -> bool:
        """Whether the stream has ended or failed, or the cursor was killed: no events follow."""
        return self._finished or self._killed is not None

    def first_batch(self) -> Batch:
        """Return the opening's batch without waiting; like mongos's, it has no events.

        Raises CommandError.
        """
        batch = self._take_ready(0)
        self._finished = batch.closed
        return batch

    async def next_batch(self, batch_size: int | None, max_time: float) -> Batch:
        """Return at most ``batch_size`` ready events; wait up to ``max_time`` seconds for one.

        ``batch_size`` None or 0 means as many as fit. If no event arrives, the batch is empty, with
        a postBatchResumeToken that may have advanced. Raises CommandError, labelled as mongos
        labels it, if the stream has failed, or if the cursor was killed. Cancellation loses no
        events.
        """
        deadline = self._loop.time() + max_time
        if max_time > 0 and self._gathers(batch_size or None):
            await self._wait(max_time)
        while self._killed is None and not self._release():
            left = deadline - self._loop.time()
            if left <= 0:
                break
            await self._wait(left)
        if self._killed is not None:
            raise self._killed
        try:
            batch = self._take_ready(batch_size or None)
        except CommandError:
            self._finished = True
            raise
        self._finished = batch.closed
        return batch

    def kill(self, reason: CommandError | None = None) -> None:
        """Fail pending and later ``next_batch`` calls at once with ``reason`` (default: 237)."""
        if self._killed is None:
            self._killed = reason or CommandError(
                ErrorCode.CursorKilled, "operation was interrupted"
            )
            self._wake()

    def close(self) -> None:
        """Stop reading; remotes without other readers are closed soon. Idempotent."""
        self.kill()
        if self._moving is not None:
            self._moving.cancel()
        self._leave()
        if not self._closed:
            self._closed = True
            self._streams.closed(self._log_reader)

    # Reading.

    @property
    def _reply_bytes(self) -> int:
        """Bytes of events that one reply may have now."""
        return self._streams.reply_bytes

    def _release(self) -> bool:
        """Release events if necessary; return whether ``_take_ready`` has a result at once."""
        return self._move_error is not None or (self._moving is None and self._log_reader.release())

    def _gathers(self, max_events: int | None) -> bool:
        """Return whether the ready events are so few that more should be waited for."""
        if self._shared is None or self._moving is not None or self._killed is not None:
            return False
        return self._shared.runner.filtered.gathers(self._log_reader, max_events)

    def _take_ready(self, max_events: int | None) -> Batch:
        """Return the events that are ready and resume prefetching.

        Raises CommandError if the stream has failed.
        """
        if self._move_error is not None:
            raise self._move_error.with_change_stream_label()
        if self._shared is None or self._log_reader.lost:
            # Start the move here too, for clients that never wait.
            return self._move()
        try:
            batch = self._shared.runner.take(self._log_reader, max_events, self._reply_bytes)
        except CommandError as error:
            if not self._streams.outlives(self._log_reader, error):
                raise
            return self._move()
        if batch.closed and self._shared.runner.stream.ended:
            self._shared.runner.stop_reading()
        return batch

    async def _wait(self, timeout: float) -> None:
        """Wait until events may be ready, ``_wake`` is called, or ``timeout`` seconds have passed.

        Call it when nothing is ready, or to let more events gather.
        """
        if self._log_reader.lost or self._streams.is_misplaced(self._log_reader):
            self._move()
        waiter = self._waiter = self._loop.create_future()
        try:
            if self._moving is not None or self._shared is None:
                timer = self._loop.call_later(timeout, release, waiter)
                try:
                    await waiter
                finally:
                    timer.cancel()
                return
            main = self._streams.join_main(self._shared, self._log_reader)
            if main is not None:
                self._shared = main
                return
            await self._shared.runner.wait(waiter, timeout, self._log_reader)
        finally:
            self._waiter = None

    def _wake(self) -> None:
        """End ``_wait``."""
        if self._waiter is not None:
            release(self._waiter)

    # From one shared stream to another.

    def _move(self) -> Batch:
        """Start a move to a shared stream that has the next events, unless one is in progress.

        Return the batch for a client that asks meanwhile: it is empty, and promises nothing.
        """
        if self._moving is None and not self._closed:
            self._leave()
            self._streams.moving += 1
            self._moving = self._streams.spawn(self._follow(), "follow a log reader")
            self._moving.add_done_callback(self._moved)
        return Batch([], 0, self._log_reader.high_water_mark, closed=False)

    def _moved(self, move: asyncio.Task[None]) -> None:
        self._streams.moving -= 1

    async def _follow(self) -> None:
        try:
            self._shared = await self._streams.follow(self._log_reader, self._payer)
        except CommandError as error:
            self._move_error = error
        except Exception as error:
            log.exception("move to another stream failed")
            self._move_error = CommandError.unexpected(error)
        finally:
            self._moving = None
            self._wake()

    def _leave(self) -> None:
        if self._shared is not None:
            self._streams.leave(self._shared, self._log_reader.stream)
            self._shared = None

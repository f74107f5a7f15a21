"""Reading a merged stream for one client, which may move from one shared stream to another."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from router.change_stream.actions import Taken
from router.change_stream.log_reader import LogReader
from router.change_stream.request import StreamRequest
from router.streams.runner import release
from router.streams.shared_stream import SharedStream
from shard_client.errors import CommandError


class Streams(Protocol):
    """The interface through which readers find shared streams."""

    @property
    def reply_bytes(self) -> int:
        """Bytes of events that one reply may have now."""

    def better(self, shared: SharedStream) -> SharedStream | None:
        """Return the shared stream to which readers of ``shared`` should move; None if none."""

    async def follow(
        self, request: StreamRequest, log_reader: LogReader, client: str | None
    ) -> SharedStream:
        """Return a shared stream, entered, to which the log reader ``log_reader`` is attached."""

    def left(self) -> None:
        """Record that a reader has been closed."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` in a task."""


class Reader:
    """Reads a merged stream for one client without delaying others (docs/design.md, section 10).

    It starts on the shared stream ``shared``, which has been entered for it, with the log reader
    ``log_reader``. If the log drops events that the client still needs, the reader moves to a
    shared stream that covers them, which is opened if there is none, and joins the main one again
    once it has caught up. ``client`` is the client's address, to which streams opened for it are
    charged; None if they are not charged.
    """

    def __init__(
        self,
        streams: Streams,
        shared: SharedStream,
        request: StreamRequest,
        log_reader: LogReader,
        client: str | None = None,
    ) -> None:
        self._client = client
        self._streams = streams
        self._request = request
        self._log_reader = log_reader
        self._shared: SharedStream | None = shared
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._failure: CommandError | None = None
        self._closed = False

    @property
    def shared(self) -> SharedStream | None:
        """The shared stream that it reads; None during a move and after ``close``."""
        return self._shared

    @property
    def ready(self) -> bool:
        """Whether ``take`` returns events or the end, or raises, without a wait."""
        return self._failure is not None or self._log_reader.ready

    @property
    def reply_bytes(self) -> int:
        """Bytes of events that one reply may have now."""
        return self._streams.reply_bytes

    def take(self, max_events: int | None) -> Taken:
        """Return the events that are ready and resume prefetching.

        Raises CommandError if the stream has failed.
        """
        if self._failure is not None:
            raise self._failure.with_change_stream_label()
        reply_bytes = self._streams.reply_bytes
        if self._shared is None or self._log_reader.lost:
            # Start the move here too, for clients that never wait.
            self._move()
            return self._log_reader.take(max_events, reply_bytes)
        taken = self._shared.runner.take(self._log_reader, max_events, reply_bytes)
        if taken.closed:
            self._shared.runner.stop_reading()
        return taken

    async def wait(self, timeout: float) -> None:
        """Wait until events may be ready, ``wake`` is called, or ``timeout`` seconds have passed.

        Call it only when nothing is ready.
        """
        if self._log_reader.lost:
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
            if self._go_over(self._shared):
                return
            await self._shared.runner.wait(waiter, timeout)
        finally:
            self._waiter = None

    def wake(self) -> None:
        """End ``wait``."""
        if self._waiter is not None:
            release(self._waiter)

    def close(self) -> None:
        """Stop reading; idempotent."""
        if not self._closed:
            self._closed = True
            self._streams.left()
        if self._moving is not None:
            self._moving.cancel()
        if self._shared is not None:
            self._shared.leave()
            self._shared = None

    def _go_over(self, shared: SharedStream) -> bool:
        """Move to the shared stream of the other readers if it has the next events.

        Return whether the reader has moved.
        """
        better = self._streams.better(shared)
        if better is None or not self._log_reader.join(better.runner.stream):
            return False
        better.enter()
        self._shared = better
        shared.leave()
        return True

    def _move(self) -> None:
        """Start a move to a shared stream that has the next events, unless one is in progress."""
        if self._moving is not None or self._closed:
            return
        if self._shared is not None:
            self._shared.leave()
            self._shared = None
        self._moving = self._streams.spawn(self._follow(), "follow a lost log reader")

    async def _follow(self) -> None:
        try:
            self._shared = await self._streams.follow(self._request, self._log_reader, self._client)
        except CommandError as error:
            self._failure = error
        finally:
            self._moving = None
            self.wake()

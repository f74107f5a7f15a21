"""One client's way through a merged stream, over one set of remotes after another if need be."""

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
    """Where readers find their sources."""

    @property
    def reply_bytes(self) -> int:
        """Bytes of events that one reply may have now."""

    def better(self, source: SharedStream) -> SharedStream | None:
        """Return the source that readers of ``source`` should go over to when they can."""

    async def follow(
        self, request: StreamRequest, position: LogReader, client: str | None
    ) -> SharedStream:
        """Return a source, entered, to which ``position`` has been attached."""

    def left(self) -> None:
        """Be told that a reader is closed."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` in a task."""


class Reader:
    """Reads for one client; a slow one holds up nobody (docs/design.md, section 10).

    Starts as one of those who share ``source``, entered for it; ``client`` is the client's address,
    if it is charged with what is opened for it. Overtaken by the end of what is
    kept there it gets remotes of its own, and goes back to share once it has caught up.
    """

    def __init__(
        self,
        streams: Streams,
        source: SharedStream,
        request: StreamRequest,
        position: LogReader,
        client: str | None = None,
    ) -> None:
        self._client = client
        self._streams = streams
        self._request = request
        self._position = position
        self._source: SharedStream | None = source
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._failure: CommandError | None = None
        self._closed = False

    @property
    def source(self) -> SharedStream | None:
        """Where it reads; None on the way from one to another, and after the end."""
        return self._source

    @property
    def ready(self) -> bool:
        """Whether ``take`` has something to say at once: events, the end, or an error."""
        return self._failure is not None or self._position.ready

    @property
    def reply_bytes(self) -> int:
        """Bytes of events that one reply may have now."""
        return self._streams.reply_bytes

    def take(self, max_events: int | None) -> Taken:
        """Hand out what is ready and read on. Raises CommandError when the stream has failed."""
        if self._failure is not None:
            raise self._failure.with_change_stream_label()
        reply_bytes = self._streams.reply_bytes
        if self._source is None or self._position.lost:
            # Also for a client that never waits.
            self._move()
            return self._position.take(max_events, reply_bytes)
        taken = self._source.upstream.take(self._position, max_events, reply_bytes)
        if taken.closed:
            self._source.upstream.stop_reading()
        return taken

    async def wait(self, timeout: float) -> None:
        """Wait until something may be ready, ``wake`` is called, or ``timeout`` seconds are over.

        To be called when nothing is ready.
        """
        if self._position.lost:
            self._move()
        waiter = self._waiter = self._loop.create_future()
        try:
            if self._moving is not None or self._source is None:
                timer = self._loop.call_later(timeout, release, waiter)
                try:
                    await waiter
                finally:
                    timer.cancel()
                return
            if self._go_over(self._source):
                return
            await self._source.upstream.wait(waiter, timeout)
        finally:
            self._waiter = None

    def wake(self) -> None:
        """End ``wait``."""
        if self._waiter is not None:
            release(self._waiter)

    def close(self) -> None:
        """Read no more. May be repeated."""
        if not self._closed:
            self._closed = True
            self._streams.left()
        if self._moving is not None:
            self._moving.cancel()
        if self._source is not None:
            self._source.leave()
            self._source = None

    def _go_over(self, source: SharedStream) -> bool:
        """Share the stream that others read, if what comes next is there."""
        better = self._streams.better(source)
        if better is None or not self._position.join(better.upstream.stream):
            return False
        better.enter()
        self._source = better
        source.leave()
        return True

    def _move(self) -> None:
        """Look for a source that has what comes next, unless that is being done."""
        if self._moving is not None or self._closed:
            return
        if self._source is not None:
            self._source.leave()
            self._source = None
        self._moving = self._streams.spawn(self._follow(), "follow a lost position")

    async def _follow(self) -> None:
        try:
            self._source = await self._streams.follow(self._request, self._position, self._client)
        except CommandError as error:
            self._failure = error
        finally:
            self._moving = None
            self.wake()

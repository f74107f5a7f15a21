"""The readers of one merged stream's filtered parts, and the distribution of its events to them."""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

from router.change_stream.filtered_stream import FilteredStream
from router.change_stream.log_reader import LogReader, ReadableStream
from router.change_stream.merged_stream import MergedStream
from router.change_stream.narrowed_stream import Namespace, NarrowingDistribution
from router.filters.stream_filter import StreamFilter

_LEAST_DELAY: Final = 0.25
_MOST_DELAY: Final = 0.5
"""Bounds of the seconds for which a backlog may delay the wake of a reader that has events."""

_GRACE: Final = 0.05
"""Seconds without ready events after which a backlog has ended: the members may still send more."""

_REPLY_COST: Final = 60e-6
"""Seconds that the router spends on one reply, apart from its events."""

_REPLY_SHARE: Final = 1 / 8
"""Fraction of its time that the router spends on replies during a backlog, within the bounds of the
delay; the events of the replies not counted."""


class _Served(NamedTuple):
    """A waiting reader whose filter has let events through: its waiter, and since when."""

    waiter: asyncio.Future[None]
    since: float


class FilteredReaders:
    """Distributes released events while filtered readers want them.

    A waiting reader is woken by events that its own filter lets through, not by others. One block
    is released in each iteration of the event loop, so that a backlog of which filters let little
    through does not delay other tasks. During a backlog a reader with few events waits for more: it
    is woken when it has many, when it has had some for the delay, or at the backlog's end, and no
    sooner than the replies to those woken before can have been sent. So under load replies have
    many events each. ``released`` is called after each block. Must be created in a running loop.
    """

    def __init__(self, stream: MergedStream, kept_bytes: int, released: Callable[[], None]) -> None:
        self.distribution = NarrowingDistribution(stream, kept_bytes)
        self._stream = stream
        self._released = released
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[FilteredStream, asyncio.Future[None]] = {}
        self._next: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._stepping = False
        # The readers that are to be woken, by the time at which they got events.
        self._served: dict[FilteredStream, _Served] = {}
        self._not_before = 0.0
        self._backlog_until = 0.0

    def open(self, stream_filter: StreamFilter, after: bytes) -> FilteredStream:
        """Return what ``stream_filter`` lets through beyond the sort key ``after``."""
        return self.distribution.open(stream_filter, after)

    def open_narrowed(
        self, namespace: Namespace, stream_filter: StreamFilter, after: bytes
    ) -> FilteredStream:
        """Return the stream of ``namespace``, filtered, beyond the sort key ``after``."""
        return self.distribution.open_narrowed(namespace, stream_filter, after)

    def close(self, stream: ReadableStream) -> None:
        """Stop distributing to ``stream`` if it is filtered and open."""
        if isinstance(stream, FilteredStream) and not stream.closed:
            self.distribution.close(stream)

    @property
    def waiting(self) -> bool:
        """Whether a filtered reader waits."""
        return bool(self._waiting)

    def forget(self, stream: ReadableStream, number: int) -> None:
        """Drop the events of ``stream`` before ``number``, which have been read, if filtered."""
        if isinstance(stream, FilteredStream) and not stream.closed:
            self.distribution.forget(stream, number)

    def serves(self, log_reader: LogReader) -> bool:
        """Return whether the log reader reads a filtered stream."""
        return isinstance(log_reader.stream, FilteredStream)

    def gathers(self, log_reader: LogReader, max_events: int | None) -> bool:
        """Return whether a reader with events to read should wait for more: there is a backlog."""
        stream = log_reader.stream
        if not isinstance(stream, FilteredStream):
            return False
        if not self._stream.ready and self._loop.time() >= self._backlog_until:
            return False
        unread = stream.log.end - log_reader.number
        if unread <= 0 or log_reader.lost or (max_events is not None and unread >= max_events):
            return False
        return not stream.full and self.distribution.error is None

    def add_waiter(self, log_reader: LogReader, waiter: asyncio.Future[None]) -> bool:
        """Complete ``waiter`` once the filter has let an event through, or the stream is over.

        Return whether the log reader's stream is filtered; otherwise nothing is done.
        """
        stream = log_reader.stream
        if not isinstance(stream, FilteredStream):
            return False
        self._waiting[stream] = waiter
        stream.waited_for = True
        if stream.log.end > log_reader.number:
            self._serve(stream, waiter)
        else:
            stream.on_events = partial(self._serve, stream, waiter)
            self._schedule()
        return True

    def remove_waiter(self, stream: ReadableStream) -> None:
        """Undo ``add_waiter``."""
        if isinstance(stream, FilteredStream):
            self._waiting.pop(stream, None)
            self._served.pop(stream, None)
            stream.waited_for = False
            stream.on_events = None

    def arrived(self) -> None:
        """Distribute what is ready, if a reader waits: a remote's batch has been merged."""
        if self._waiting and self._next is None:
            self._step()

    def advance(self, stream: ReadableStream) -> None:
        """Distribute one block for a reader of ``stream`` that has read everything, if filtered.

        Readers that never wait depend on it. Does nothing if a block has been released in this
        iteration of the loop.
        """
        if self._next is None and isinstance(stream, FilteredStream):
            self._next = self._loop.call_soon(self._step)
            self._release()

    def wake(self) -> None:
        """Complete all waiters at once."""
        for waiter in self._waiting.values():
            _complete(waiter)

    def _schedule(self) -> None:
        if self._next is None and self._waiting and self._may_wake:
            self._next = self._loop.call_soon(self._step)

    @property
    def _may_wake(self) -> bool:
        stream = self._stream
        return stream.ready or stream.ended or self.distribution.error is not None

    def _step(self) -> None:
        self._next = None
        if not self._waiting:
            return
        self._stepping = True
        self._release()
        self._stepping = False
        if self._stream.ended or self.distribution.error is not None:
            self.wake()
            return
        # Those woken read before the next block is released.
        self._wake_served()
        self._schedule()

    def _serve(self, stream: FilteredStream, waiter: asyncio.Future[None]) -> None:
        """Wake a reader soon: its filter has let events through."""
        stream.on_events = None
        self._served[stream] = _Served(waiter, self._loop.time())
        if self._next is None and not self._stepping:
            self._next = self._loop.call_soon(self._step)

    @property
    def _delay(self) -> float:
        replies = _REPLY_COST * len(self._waiting)
        return min(_MOST_DELAY, max(_LEAST_DELAY, replies / _REPLY_SHARE))

    def _wake_served(self) -> None:
        """Wake the readers that have enough events, or have had some for long enough."""
        for stream in self.distribution.pressed:
            full = self._served.pop(stream, None)
            if full is not None:
                _complete(full.waiter)
        self.distribution.pressed.clear()
        if not self._served:
            return
        now, served = self._loop.time(), self._served
        ready, delay = self._stream.ready, self._delay
        if now >= self._not_before:
            if not ready and now >= self._backlog_until:
                woken = list(served)
            else:
                woken = list(takewhile(lambda each: served[each].since + delay <= now, served))
            for stream in woken:
                _complete(served.pop(stream).waiter)
            if woken:
                self._not_before = now + _REPLY_COST * len(woken)
        if served and not ready and self._later is None:  # else the next step decides
            due = next(iter(served.values())).since + delay
            until = max(self._not_before, min(due, self._backlog_until))
            self._later = self._loop.call_at(until, self._wake_late)

    def _wake_late(self) -> None:
        self._later = None
        self._wake_served()
        self._schedule()

    def _release(self) -> None:
        stream = self._stream
        if stream.release() and not stream.ready:
            # The second call tells the stream that its last block has been read.
            stream.release()
        self.distribution.settle()
        if stream.ready:
            self._backlog_until = self._loop.time() + _GRACE
        self._released()


def _complete(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

"""The readers of one merged stream's views: when events are passed on, and when readers wake."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

from router.change_stream.fan_out import FanOut
from router.change_stream.log_reader import LogReader, ReadableStream
from router.change_stream.merged_stream import MergedStream
from router.change_stream.views import View

_LEAST_DELAY: Final = 0.25
_MOST_DELAY: Final = 0.5
"""Bounds of the seconds for which a backlog may delay the wake of a reader that has events."""

_TURN: Final = 0.001
"""Seconds for which events are passed on before other tasks get a turn."""

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
    """Passes released events on to views while their readers want them.

    A waiting reader is woken by events that its own view gets, not by others. The fan-out works for
    a millisecond in each iteration of the event loop, and the next block is released when it is
    done, so that neither a backlog nor costly filters delay other tasks. During a backlog a reader
    with few events waits for more: it is woken when it has many, when it has had some for the
    delay, or at the backlog's end, and no sooner than the replies to those woken before can have
    been sent. So under load replies have many events each. ``released`` is called after each part.
    Must be created in a running loop.
    """

    def __init__(self, stream: MergedStream, kept_bytes: int, released: Callable[[], None]) -> None:
        self.fan_out = FanOut(stream, kept_bytes)
        self._stream = stream
        self._released = released
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[View, asyncio.Future[None]] = {}
        self._next: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._stepping = False
        self._block_events = stream.block_events
        # The readers that are to be woken, by the time at which they got events.
        self._served: dict[View, _Served] = {}
        self._not_before = 0.0
        self._backlog_until = 0.0

    def close(self, stream: ReadableStream) -> None:
        """Stop filling ``stream`` if it is a view."""
        if isinstance(stream, View):
            self.fan_out.close(stream)

    @property
    def waiting(self) -> bool:
        """Whether a filtered reader waits."""
        return bool(self._waiting)

    def forget(self, stream: ReadableStream, number: int) -> None:
        """Drop the events of ``stream`` before ``number``, which have been read, if a view."""
        if isinstance(stream, View):
            self.fan_out.forget(stream, number)

    def serves(self, log_reader: LogReader) -> bool:
        """Return whether the log reader reads a view."""
        return isinstance(log_reader.stream, View)

    def gathers(self, log_reader: LogReader, max_events: int | None) -> bool:
        """Return whether a reader with events to read should wait for more: there is a backlog."""
        stream = log_reader.stream
        if not isinstance(stream, View):
            return False
        if not self._is_backlog and self._loop.time() >= self._backlog_until:
            return False
        unread = stream.log.end - log_reader.number
        if unread <= 0 or log_reader.lost or (max_events is not None and unread >= max_events):
            return False
        return stream.log.memory < self.fan_out.full and stream.error is None

    def add_waiter(self, log_reader: LogReader, waiter: asyncio.Future[None]) -> bool:
        """Complete ``waiter`` once the view has got an event, or is over.

        Return whether the log reader reads a view; otherwise nothing is done.
        """
        stream = log_reader.stream
        if not isinstance(stream, View):
            return False
        self._waiting[stream] = waiter
        stream.waited_for = True
        self.fan_out.settle()
        if stream.log.end > log_reader.number or stream.error is not None or stream.ended:
            self._serve(stream, waiter)
        else:
            stream.on_events = partial(self._serve, stream, waiter)
            self._schedule()
        return True

    def remove_waiter(self, stream: ReadableStream) -> None:
        """Undo ``add_waiter``."""
        if isinstance(stream, View):
            self._waiting.pop(stream, None)
            self._served.pop(stream, None)
            stream.waited_for = False
            stream.on_events = None

    def arrived(self) -> None:
        """Pass on what is ready, if a reader waits: a remote's batch has been merged."""
        if self._next is None and self._waiting:
            self._step()
        else:
            self.schedule()

    def advance(self, stream: ReadableStream) -> None:
        """Pass some events on for a reader of ``stream`` that has read everything, if it is a view.

        Readers that never wait depend on it. Does nothing if a step is due in this iteration of
        the loop.
        """
        if self._next is None and isinstance(stream, View):
            self._next = self._loop.call_soon(self._step)
            self._pass()

    def schedule(self) -> None:
        """Pass on soon what another reader has made the stream release."""
        if self._next is None and self.fan_out.behind:
            self._next = self._loop.call_soon(self._step)

    def wake(self) -> None:
        """Complete all waiters at once."""
        for waiter in self._waiting.values():
            _complete(waiter)

    @property
    def _is_more(self) -> bool:
        """Whether there are events to pass on."""
        return self._stream.ready or self.fan_out.behind

    @property
    def _is_backlog(self) -> bool:
        """Whether there is more to pass on than the block that is being passed on."""
        return self._stream.ready or self.fan_out.lag > self._block_events

    def _schedule(self) -> None:
        if self._next is None and self._waiting and self._is_more:
            self._next = self._loop.call_soon(self._step)
        else:
            self.schedule()

    def _step(self) -> None:
        try:
            self._next = None
            if self._waiting or self.fan_out.behind:
                self._stepping = True
                self._pass()
                self._stepping = False
                self._wake_or_go_on()
        except Exception as error:  # noqa: BLE001 - whatever it is, no reader may wait for ever
            self._fail(error)

    def _wake_late(self) -> None:
        try:
            self._later = None
            self._wake_or_go_on()
        except Exception as error:  # noqa: BLE001 - whatever it is, no reader may wait for ever
            self._fail(error)

    def _wake_or_go_on(self) -> None:
        """Wake the readers whose time has come, before the next events are passed on."""
        if not self._is_more and (self._stream.ended or self._stream.error is not None):
            self.wake()
            return
        self._wake_served()
        self._schedule()

    def _fail(self, error: Exception) -> None:
        """End all views, which may lack events now; their readers may continue elsewhere."""
        self._next = self._later = None
        self._stepping = False
        self.fan_out.fail(error)
        self.wake()

    def _serve(self, stream: View, waiter: asyncio.Future[None]) -> None:
        """Wake a reader soon: its view has got events, or is over."""
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
        for stream in self.fan_out.pressed:
            full = self._served.pop(stream, None)
            if full is not None:
                _complete(full.waiter)
        self.fan_out.pressed.clear()
        if not self._served:
            return
        now, served = self._loop.time(), self._served
        more, delay = self._is_more, self._delay
        if now >= self._not_before:
            if not more and now >= self._backlog_until:
                woken = list(served)
            else:
                woken = list(takewhile(lambda each: served[each].since + delay <= now, served))
            for stream in woken:
                _complete(served.pop(stream).waiter)
            if woken:
                self._not_before = now + _REPLY_COST * len(woken)
        if served and not more and self._later is None:  # else the next step decides
            due = next(iter(served.values())).since + delay
            until = max(self._not_before, min(due, self._backlog_until))
            self._later = self._loop.call_at(until, self._wake_late)

    def _pass(self) -> None:
        """Pass a part of the released events on; release more if there is none left."""
        stream, fan_out, traffic = self._stream, self.fan_out, self.fan_out.traffic
        try:
            if not fan_out.behind:
                stream.release()
            fan_out.step(time.perf_counter, _TURN)
        except Exception as error:  # noqa: BLE001 - whatever it is, views may lack events now
            self._fail(error)
        now = self._loop.time()
        ended = now >= self._backlog_until
        if self._is_backlog:
            if ended or traffic.behind_since is None:
                traffic.behind_since = now
            self._backlog_until = now + _GRACE
        elif ended:
            traffic.behind_since = None
        if not self._is_more:
            stream.release()  # which tells the stream that its last block has been read
        self._released()


def _complete(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

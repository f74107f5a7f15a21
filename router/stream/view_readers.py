"""The readers of one merged stream: when events are passed on to views, and when readers wake."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Final

from router.histogram import Histogram
from router.stream.fan_out import FanOut
from router.stream.log_reader import LogReader
from router.stream.merged_stream import MergedStream
from router.stream.views import View

Waiter = asyncio.Future[float | None]
"""Completed when a reader need not wait any longer, with the time if events are ready for it."""

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


class ViewReaders:
    """Passes released events on to the views of a merged stream, and wakes the readers that wait.

    A reader of the whole stream is woken as soon as a block is released. A reader of a part is
    woken by events that its own view gets, not by others. The fan-out works for
    a millisecond in each iteration of the event loop, and the next block is released when it is
    done, so that neither a backlog nor costly filters delay other tasks. During a backlog a reader
    with few events waits for more: it is woken when it has many, when it has had some for the
    delay, or at the backlog's end, and no sooner than the replies to those woken before can have
    been sent. So under load replies have many events each. ``passed`` is called after each part,
    ``reply_delays`` has the times from waking a reader until it continues.
    Must be created in a running loop.
    """

    def __init__(
        self,
        stream: MergedStream,
        kept_bytes: int,
        reply_delays: Histogram,
        passed: Callable[[], None],
    ) -> None:
        self.fan_out = FanOut(stream, kept_bytes)
        self._stream = stream
        self._reply_delays = reply_delays
        self._passed = passed
        self._loop = asyncio.get_running_loop()
        # The readers that wait: of the whole stream, and of parts.
        self._whole: dict[View, Waiter] = {}
        self._parts: dict[View, Waiter] = {}
        self._next: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._stepping = False
        self._block_events = stream.block_events
        # The readers that are to be woken, and when they got events, the first ones first.
        self._served: dict[View, tuple[Waiter, float]] = {}
        self._not_before = 0.0
        self._backlog_until = 0.0

    @property
    def waiting(self) -> bool:
        """Whether a reader waits."""
        return bool(self._whole or self._parts)

    def should_gather(self, log_reader: LogReader, max_events: int | None) -> bool:
        """Return whether a reader with events to read should wait for more: there is a backlog."""
        view = log_reader.view
        if not view.is_part or not (self._is_backlog or self._loop.time() < self._backlog_until):
            return False
        unread = view.log.end - log_reader.number
        if unread <= 0 or log_reader.lost or (max_events is not None and unread >= max_events):
            return False
        return view.log.memory < self.fan_out.full and view.error is None

    async def wait(self, log_reader: LogReader, waiter: Waiter, timeout: float) -> None:
        """Wait until the view has got an event or is over, or ``timeout`` seconds have passed."""
        view = log_reader.view
        timer = self._loop.call_later(timeout, complete, waiter)
        try:
            self._add(view, log_reader.number, waiter)
            woken_at = await waiter
            if woken_at is not None:
                self._reply_delays.record(self._loop.time() - woken_at)
        finally:
            timer.cancel()
            self._remove(view)

    def _add(self, view: View, number: int, waiter: Waiter) -> None:
        """Let the reader of ``view``, whose next event has the ``number``, wait."""
        if not view.is_part:
            self._whole[view] = waiter
            return
        self._parts[view] = waiter
        view.waited_for = True
        self.fan_out.end_incarnations()
        if view.log.end > number or view.error is not None or view.ended:
            self._serve(view, waiter)
        else:
            view.on_events = partial(self._serve, view, waiter)
            self._schedule()

    def _remove(self, view: View) -> None:
        for waiting in (self._whole, self._parts, self._served):
            waiting.pop(view, None)
        view.waited_for = False
        view.on_events = None

    def arrived(self) -> None:
        """Pass on what is ready, if a reader waits: a remote's batch has been merged."""
        stream = self._stream
        if self._whole and stream.error is None and (stream.release() or stream.ended):
            self._wake(self._whole)
        if self._next is None and self._parts:
            self._step()
        else:
            self.schedule()

    def advance(self, view: View) -> None:
        """Pass some events on for a reader of ``view`` that has read everything, if it is a part.

        Readers that never wait depend on it. Does nothing if a step is due in this iteration of
        the loop.
        """
        if self._next is None and view.is_part:
            self._next = self._loop.call_soon(self._step)
            self._pass()

    def schedule(self) -> None:
        """Pass on soon what another reader has made the stream release."""
        if self._next is None and self.fan_out.behind:
            self._next = self._loop.call_soon(self._step)

    def wake(self) -> None:
        """Complete all waiters at once."""
        self._wake(self._whole)
        self._wake(self._parts)

    def _wake(self, waiting: dict[View, Waiter]) -> None:
        now = self._loop.time()
        for waiter in waiting.values():
            complete(waiter, now)
        waiting.clear()

    @property
    def _is_more(self) -> bool:
        """Whether there are events to pass on."""
        return self._stream.ready or self.fan_out.behind

    @property
    def _is_backlog(self) -> bool:
        """Whether there is more to pass on than the block that is being passed on."""
        return self._stream.ready or self.fan_out.lag > self._block_events

    def _schedule(self) -> None:
        if self._next is None and self._parts and self._is_more:
            self._next = self._loop.call_soon(self._step)
        else:
            self.schedule()

    def _step(self) -> None:
        try:
            for handle in (self._next, self._later):
                if handle is not None:
                    handle.cancel()
            self._next = self._later = None
            if self._parts or self.fan_out.behind:
                self._stepping = True
                self._pass()
                self._stepping = False
                self._wake_or_continue()
        except Exception as error:  # noqa: BLE001 - whatever it is, no reader may wait for ever
            self._fail(error)

    def _wake_or_continue(self) -> None:
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
        self._wake(self._parts)

    def _serve(self, view: View, waiter: Waiter) -> None:
        """Wake a reader soon: its view has got events, or is over."""
        view.on_events = None
        self._served[view] = (waiter, self._loop.time())
        if self._next is None and not self._stepping:
            self._next = self._loop.call_soon(self._step)

    @property
    def _delay(self) -> float:
        replies = _REPLY_COST * len(self._parts)
        return min(_MOST_DELAY, max(_LEAST_DELAY, replies / _REPLY_SHARE))

    def _wake_served(self) -> None:
        """Wake the readers that have enough events, or have had some for long enough."""
        for pressed in self.fan_out.pressed:
            if pressed in self._served:
                complete(self._served.pop(pressed)[0], self._loop.time())
        self.fan_out.pressed.clear()
        if not self._served:
            return
        now, served = self._loop.time(), self._served
        more, delay = self._is_more, self._delay
        if now >= self._not_before:
            if not more and now >= self._backlog_until:
                woken = list(served)
            else:
                woken = list(takewhile(lambda view: served[view][1] + delay <= now, served))
            for view in woken:
                complete(served.pop(view)[0], now)
            if woken:
                self._not_before = now + _REPLY_COST * len(woken)
        if served and not more and self._later is None:  # else the next step decides
            due = next(iter(served.values()))[1] + delay
            until = max(self._not_before, min(due, self._backlog_until))
            self._later = self._loop.call_at(until, self._step)

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
        self._passed()


def complete(waiter: Waiter, woken_at: float | None = None) -> None:
    """Complete ``waiter`` if it is not done yet; ``woken_at`` is the time if events wake it."""
    if not waiter.done():
        waiter.set_result(woken_at)

"""The waiting readers of one merged stream: when views get events, and when readers wake."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from math import inf
from typing import Any, Final

from router.stream.merge import merger
from router.stream.merge.merged_stream import MergedStream
from router.stream.readers.fan_out import FanOut
from router.stream.readers.log_reader import LogReader
from router.stream.readers.views import PartialView

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


class WaitingReaders:
    """Lets released events be passed on to views, and wakes the readers that wait for events.

    A reader of the whole stream is woken as soon as a block is released. A reader of a part is
    woken by events that its own view gets, not by others. A step passes events on for a
    millisecond, and the next block is released when it is done, so that neither a backlog nor
    costly filters delay other tasks.

    During a backlog a reader with few events waits for more, so that replies have many events each.
    It is woken

    - when it has many events, when it has had some for the delay, or at the backlog's end;
    - but not before the replies to the readers woken last can have been sent.

    ``stepped`` is called after each step. Must be created in a running loop.
    """

    def __init__(
        self, stream: MergedStream, fan_out: FanOut, stepped: Callable[[], None] = lambda: None
    ) -> None:
        self._stream = stream
        self._fan_out = fan_out
        self._stepped = stepped
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._next_step: asyncio.Handle | None = None
        self._step_at = inf
        """The time of the next step; infinity if none is to come."""
        # The readers that wait: of the whole stream, and of parts.
        self._whole: dict[LogReader, Waiter] = {}
        self._parts: dict[PartialView, Waiter] = {}
        # The readers that are to be woken, and when they got events, the first ones first.
        self._served: dict[PartialView, tuple[Waiter, float]] = {}
        self._has_new = False
        """Whether readers are to be woken since the last step."""
        self._not_before = 0.0
        self._backlog_until = 0.0

    # Readers.

    @property
    def has_readers(self) -> bool:
        """Whether readers wait."""
        return bool(self._whole or self._parts)

    def should_gather(self, log_reader: LogReader, max_events: int | None) -> bool:
        """Return whether a reader with events to read should wait for more: there is a backlog."""
        part = log_reader.part
        backlog = self._is_backlog or self._clock() < self._backlog_until
        if part is None or not backlog:
            return False
        unread = part.log.end - log_reader.number
        if unread <= 0 or log_reader.lost or (max_events is not None and unread >= max_events):
            return False
        return part.log.memory < self._fan_out.full_bytes and part.error is None

    def add(self, log_reader: LogReader, waiter: Waiter) -> None:
        """Let a reader wait until its view has got an event or is over."""
        part = log_reader.part
        if part is None:
            self._whole[log_reader] = waiter
            return
        self._parts[part] = waiter
        part.waited_for = True
        self._fan_out.end_incarnations()
        if part.log.end > log_reader.number or part.error is not None or part.ended:
            self._serve(part, waiter)
        else:
            part.on_events = partial(self._serve, part, waiter)

    def remove(self, log_reader: LogReader) -> None:
        """Let a reader wait no longer."""
        self._whole.pop(log_reader, None)
        part = log_reader.part
        if part is not None:
            self._parts.pop(part, None)
            self._served.pop(part, None)
            part.waited_for = False
            part.on_events = None

    def wake(self) -> None:
        """Complete all waiters at once."""
        self._wake(self._whole)
        self._wake(self._parts)

    def batch_merged(self) -> None:
        """Wake the readers for whom there is something to read now, at once or by a step."""
        stream = self._stream
        if self._whole and stream.error is None and (stream.release() or stream.ended):
            self._wake(self._whole)
        if self._parts:
            self.advance()
        else:
            self.schedule_step()

    def _wake(self, waiting: dict[Any, Waiter]) -> None:
        now = self._clock()
        for waiter in waiting.values():
            complete(waiter, now)
        waiting.clear()

    def _serve(self, view: PartialView, waiter: Waiter) -> None:
        """Wake a reader soon: its view has got events, or is over."""
        view.on_events = None
        self._served[view] = (waiter, self._clock())
        self._has_new = True

    # Steps.

    @property
    def _is_more(self) -> bool:
        """Whether there are events to pass on."""
        return self._stream.merger.ready or self._fan_out.behind > 0

    @property
    def _is_backlog(self) -> bool:
        """Whether there is more to pass on than the block that is being passed on."""
        return self._stream.merger.ready or self._fan_out.behind > merger.BLOCK_EVENTS

    def schedule_step(self) -> None:
        """Take a step when one is due."""
        due = self._due()
        if due >= self._step_at:
            return
        self.cancel_step()
        self._step_at = due
        if due <= self._clock():
            self._next_step = self._loop.call_soon(self.step)
        else:
            self._next_step = self._loop.call_at(due, self.step)

    def cancel_step(self) -> None:
        """Take no step, until one is scheduled."""
        if self._next_step is not None:
            self._next_step.cancel()
        self._next_step, self._step_at = None, inf

    def advance(self, *, asked: bool = False) -> None:
        """Take a step now, unless one comes in this iteration of the event loop; as ``step``."""
        if self._step_at > self._clock():
            self.step(asked=asked)

    def _due(self) -> float:
        """Return the time at which a step is due, infinity for never."""
        if self._fan_out.behind:
            return self._clock()
        if not self._parts:
            return inf
        if self._has_new or self._stream.merger.ready:
            return self._clock()
        if not self._served:
            return inf
        first = next(iter(self._served.values()))[1]
        return max(self._not_before, min(first + self._delay, self._backlog_until))

    def step(self, *, asked: bool = False) -> None:
        """Pass a part of the released events on, and wake the readers whose time has come.

        ``asked`` is whether a reader that does not wait has read everything. An exception ends all
        views, which may lack events then, and the stream; readers of parts may continue elsewhere.
        """
        try:
            self.cancel_step()
            if asked or self._parts or self._fan_out.behind:
                self._pass()
                self._has_new = False
                if not self._is_more and (self._stream.ended or self._stream.error is not None):
                    self.wake()
                else:
                    self._wake_served()
            self._stepped()
            self.schedule_step()
        except Exception as error:  # noqa: BLE001 - whatever it is, no reader may wait for ever
            self.cancel_step()
            self._fan_out.fail(error)
            self._stream.fail(error)
            self.wake()

    @property
    def _delay(self) -> float:
        replies = _REPLY_COST * len(self._parts)
        return min(_MOST_DELAY, max(_LEAST_DELAY, replies / _REPLY_SHARE))

    def _wake_served(self) -> None:
        """Wake the readers that have enough events, or have had some for long enough."""
        for view in self._fan_out.full_views:
            if view in self._served:
                complete(self._served.pop(view)[0], self._clock())
        self._fan_out.full_views.clear()
        now, served, delay = self._clock(), self._served, self._delay
        if not served or now < self._not_before:
            return
        if not self._is_more and now >= self._backlog_until:
            woken = list(served)
        else:
            woken = list(takewhile(lambda view: served[view][1] + delay <= now, served))
        for view in woken:
            complete(served.pop(view)[0], now)
        if woken:
            self._not_before = now + _REPLY_COST * len(woken)

    def _pass(self) -> None:
        """Pass a part of the released events on; release more if there is none left."""
        stream, fan_out, traffic = self._stream, self._fan_out, self._fan_out.traffic
        if not fan_out.behind:
            stream.release()
        fan_out.step(time.perf_counter, _TURN)
        now = self._clock()
        ended = now >= self._backlog_until
        if self._is_backlog:
            if ended or traffic.behind_since is None:
                traffic.behind_since = now
            self._backlog_until = now + _GRACE
        elif ended:
            traffic.behind_since = None
        if not self._is_more:
            stream.release()  # which tells the stream that its last block has been read


def complete(waiter: Waiter, woken_at: float | None = None) -> None:
    """Complete ``waiter`` if it is not done yet; ``woken_at`` is the time if events wake it."""
    if not waiter.done():
        waiter.set_result(woken_at)

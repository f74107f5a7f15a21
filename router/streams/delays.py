"""Measurement of the delays of a stream's events: at the gate, and until waiting clients go on."""

import asyncio
from collections.abc import Iterable

from router.histogram import Histogram
from router.streams.member_load import MemberLoads


class Delays:
    """Records the delays of one stream's events, once for each batch.

    Args:
        loads: holds the histograms, which all streams share.
        loop: the event loop, whose clock is used.
    """

    def __init__(self, loads: MemberLoads, loop: asyncio.AbstractEventLoop) -> None:
        self._gate_waits: Histogram = loads.gate_waits
        self._reply_delays: Histogram = loads.reply_delays
        self._loop = loop
        self._waiting_since: float | None = None
        self._woken: set[asyncio.Future[None]] = set()
        self._woken_at = 0.0

    @property
    def waiting(self) -> bool:
        """Whether events have arrived since ``released`` was called last."""
        return self._waiting_since is not None

    def arrived(self, now: float) -> None:
        """Record that events have arrived."""
        if self._waiting_since is None:
            self._waiting_since = now

    def released(self) -> None:
        """Record that the gate holds back none of the events that have arrived."""
        if self._waiting_since is not None:
            self._gate_waits.record(self._loop.time() - self._waiting_since)
            self._waiting_since = None

    def woke(self, waiters: Iterable[asyncio.Future[None]]) -> None:
        """Record that events are ready for these waiters."""
        self._woken.update(waiters)
        self._woken_at = self._loop.time()

    def went_on(self, waiter: asyncio.Future[None]) -> None:
        """Record that the client of a waiter goes on, if events have woken it."""
        if waiter in self._woken:
            self._woken.remove(waiter)
            self._reply_delays.record(self._loop.time() - self._woken_at)

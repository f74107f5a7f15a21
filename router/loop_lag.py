"""Measurement of the event loop's lag: how late a timer runs."""

import asyncio
from typing import Final

from router.status_sums import Histogram

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the histogram's buckets in seconds; the last bucket has none."""

_INTERVAL = 0.25


class LoopLag:
    """A histogram of the event loop's lag, measured four times a second after ``start``."""

    def __init__(self) -> None:
        self.histogram = Histogram(BOUNDS)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Start measuring."""
        self._due = self._loop.time() + _INTERVAL
        self._timer = self._loop.call_at(self._due, self._measure)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def _measure(self) -> None:
        self.histogram.record(max(0.0, self._loop.time() - self._due))
        self.start()

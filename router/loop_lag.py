"""Measurement of the event loop's lag: how late a timer runs."""

import asyncio
from bisect import bisect_left
from typing import Any, Final

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the histogram's buckets in seconds; the last bucket has none."""

_INTERVAL = 0.25


class LoopLag:
    """A histogram of the event loop's lag, measured four times a second after ``start``."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0
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

    def to_document(self) -> dict[str, Any]:
        """Return the counts by the upper bound of their bucket, and the sum of the lags."""
        bounds = (*map(str, BOUNDS), "+Inf")
        return {"counts": dict(zip(bounds, self._counts, strict=True)), "total": self._total}

    def _measure(self) -> None:
        lag = max(0.0, self._loop.time() - self._due)
        self._counts[bisect_left(BOUNDS, lag)] += 1
        self._total += lag
        self.start()

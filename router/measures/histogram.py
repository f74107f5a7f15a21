"""Counts of times by buckets, and the event loop's lag as one of these times."""

import asyncio
from bisect import bisect_left
from typing import Any, Final

BOUNDS: Final = (
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
)  # fmt: skip
"""Upper bounds of the buckets in seconds; the last bucket has none."""

_LAG_INTERVAL: Final = 0.25


class Histogram:
    """Counts of times by bucket, one more than ``BOUNDS``; ``total`` is their sum in seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def record(self, seconds: float) -> None:
        """Record one time."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def to_document(self) -> dict[str, Any]:
        """Return the counts by the upper bound of their bucket, and the sum."""
        bounds = (*map(str, BOUNDS), "+Inf")
        return {"counts": dict(zip(bounds, self.counts, strict=True)), "total": self.total}


async def measure_lag(histogram: Histogram) -> None:
    """Record the event loop's lag, how late a timer runs, four times a second, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_INTERVAL
        await asyncio.sleep(_LAG_INTERVAL)
        histogram.record(max(0.0, loop.time() - due))

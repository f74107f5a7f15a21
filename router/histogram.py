"""Histograms of times, for metrics."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any


class Histogram:
    """Counts of measurements by bucket.

    ``counts`` has one more number than ``bounds``, the upper bounds of the buckets in seconds: the
    last bucket has none. ``total`` is the sum of the measurements.
    """

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def record(self, seconds: float) -> None:
        """Record one measurement."""
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    def to_document(self) -> dict[str, Any]:
        """Return the counts by the upper bound of their bucket, and the sum."""
        bounds = (*map(str, self._bounds), "+Inf")
        return {"counts": dict(zip(bounds, self.counts, strict=True)), "total": self.total}

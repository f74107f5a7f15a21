"""Measurement of the event loop's lag: how late a timer runs."""

import asyncio
from typing import Final

from router.status_sums import Histogram

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the histogram's buckets in seconds; the last bucket has none."""

_INTERVAL = 0.25


async def measure_lag(histogram: Histogram) -> None:
    """Record the event loop's lag in ``histogram`` four times a second, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _INTERVAL
        await asyncio.sleep(_INTERVAL)
        histogram.record(max(0.0, loop.time() - due))

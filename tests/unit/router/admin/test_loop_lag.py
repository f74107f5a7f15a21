"""The event loop's lag."""

import asyncio
import time

from router.loop_lag import BOUNDS, LoopLag
from tests.harness.until import PATIENCE


async def test_a_blocked_loop_is_measured() -> None:
    lag = LoopLag()
    lag.start()
    try:
        time.sleep(0.3)  # noqa: ASYNC251 (the loop has to stand still)
        async with asyncio.timeout(PATIENCE):
            while not sum(lag.histogram.counts):  # noqa: ASYNC110
                await asyncio.sleep(0)
    finally:
        lag.stop()
    assert lag.histogram.total >= 0.04
    late = [
        count for bound, count in zip(BOUNDS, lag.histogram.counts, strict=False) if bound <= 0.025
    ]
    assert sum(late) < sum(lag.histogram.counts)

"""The event loop's lag."""

import asyncio
import time

from router.loop_lag import BOUNDS, measure_lag
from router.status_sums import Histogram
from tests.harness.until import until


async def test_a_blocked_loop_is_measured() -> None:
    lag = Histogram(BOUNDS)
    measuring = asyncio.create_task(measure_lag(lag))
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251 (the loop has to stand still)
    await until(lambda: sum(lag.counts) > 0)
    measuring.cancel()
    assert lag.total >= 0.04
    late = [count for bound, count in zip(BOUNDS, lag.counts, strict=False) if bound <= 0.025]
    assert sum(late) < sum(lag.counts)

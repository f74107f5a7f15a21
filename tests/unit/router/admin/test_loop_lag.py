"""The event loop's lag."""

import asyncio
import time

from router.loop_lag import BOUNDS, LoopLag


async def test_a_blocked_loop_is_measured() -> None:
    lag = LoopLag()
    lag.start()
    try:
        time.sleep(0.3)  # noqa: ASYNC251 (the loop has to stand still)
        async with asyncio.timeout(10):
            while not sum(lag.counts):  # noqa: ASYNC110
                await asyncio.sleep(0)
    finally:
        lag.stop()
    assert lag.total >= 0.04
    late = [count for bound, count in zip(BOUNDS, lag.counts, strict=False) if bound <= 0.025]
    assert sum(late) < sum(lag.counts)


async def test_lags_are_counted_by_their_bucket() -> None:
    lag = LoopLag()
    for seconds in (0.001, 0.0011, 3.0):
        lag.record(seconds)
    assert lag.counts[0] == 1
    assert lag.counts[1] == 1
    assert lag.counts[-1] == 1
    assert lag.total == 3.0021

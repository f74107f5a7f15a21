"""Token buckets: bursts, the rate, and debts."""

import pytest

from router.limits.token_bucket import TokenBucket


def spend(bucket: TokenBucket, begin: float, seconds: float) -> list[float]:
    """Take tokens as soon as they are available; return the times."""
    taken, now = [], begin
    while (now := bucket.ready_at(now)) <= begin + seconds:
        assert bucket.tokens(now) >= 1
        bucket.spend(now)
        taken.append(now)
    return taken


@pytest.mark.parametrize("begin", [0.0, 0.031, 12_345.678, 1e7 + 0.0499999])
@pytest.mark.parametrize("rate", [0.3, 7.0, 20.0, 333.3])
def test_tokens_come_in_a_burst_and_then_at_the_rate(begin: float, rate: float):
    bucket = TokenBucket(rate, 100)
    taken = spend(bucket, begin, 60)
    assert taken[99] == begin
    assert abs(len(taken) - 100 - 60 * rate) <= 1.001
    assert spend(bucket, taken[-1] + 1e6, 0.0) == [taken[-1] + 1e6] * 100


def test_tokens_are_owed_up_to_the_debt():
    bound, unbound = TokenBucket(20.0, 2, debt=1.0), TokenBucket(20.0, 2)
    for each in (bound, unbound):
        each.spend(3.01, 10.0)
    assert (bound.tokens(3.01), unbound.tokens(3.01)) == (-1, -8)
    assert bound.tokens(3.11) == 1

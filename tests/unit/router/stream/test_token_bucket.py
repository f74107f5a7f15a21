"""The token bucket that bounds no-op writes, rounds and probes."""

from math import inf

import pytest

from router.stream.pacing import TokenBucket


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


def test_buckets_of_one_rate_fill_at_the_same_times():
    one, other = TokenBucket(20.0, 3), TokenBucket(20.0, 50)
    first, second = spend(one, 5.013, 2), spend(other, 5.020, 2)
    assert set(first[3:]) & set(second[50:]) == set(second[50:])


def test_a_missing_token_comes_with_the_next_interval():
    bucket = TokenBucket(20.0, 1)
    bucket.spend(3.0)
    assert bucket.tokens(3.01) == 0
    assert bucket.ready_at(3.01) == pytest.approx(3.05)


def test_tokens_are_owed_up_to_the_debt():
    bound, unbound = TokenBucket(20.0, 2, debt=1.0), TokenBucket(20.0, 2)
    for each in (bound, unbound):
        each.spend(3.01, 10.0)
    assert (bound.tokens(3.01), unbound.tokens(3.01)) == (-1, -8)
    assert bound.tokens(3.11) == 1


def test_a_rate_of_zero_gives_no_tokens():
    bucket = TokenBucket(0.0, 100)
    assert bucket.tokens(1.0) == 0
    assert bucket.ready_at(1.0) == inf


def test_a_lower_rate_adds_tokens_later():
    bucket = TokenBucket(20.0, 3)
    bucket.spend(3.0)
    bucket.limit(3.07, 2.0)
    bucket.limit(3.07, 5.0)
    assert (bucket.tokens(3.07), bucket.per_second) == (2, 2.0)
    assert spend(bucket, 3.07, 0.5) == [3.07] * 2 + [3.5]


# The time for which a progress cursor may keep its member busy.


def probes(takes: float, every: float, seconds: float) -> int:
    """Return how many probes of ``takes`` ms are allowed if tried ``every`` seconds."""
    bucket, count, now = TokenBucket(50.0, 250.0), 0, 1000.0
    while now < 1000.0 + seconds:
        if bucket.tokens(now) > 0:
            bucket.spend(now, takes)
            count += 1
        now += every
    return count


def test_a_member_with_little_to_scan_is_probed_for_each_event():
    assert probes(1.0, every=0.025, seconds=60) == 2400


def test_a_member_with_much_to_scan_is_probed_for_a_fraction_of_the_time():
    seconds = 100
    busy = probes(80.0, every=0.02, seconds=seconds) * 0.08
    assert seconds * 0.045 < busy < seconds * 0.05 + 0.25 + 0.08

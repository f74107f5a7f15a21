"""The token bucket that bounds one member's notes."""

from math import inf

import pytest

from router.streams.note_budget import LEAST_DAYS, NOTE_BYTES, NoteBudget

DAY = 24 * 3600


def spend(budget: NoteBudget, begin: float, seconds: float) -> list[float]:
    """Take tokens as soon as they are available; return the times."""
    taken, now = [], begin
    while (now := budget.ready_at(now)) <= begin + seconds:
        assert budget.take(now)
        taken.append(now)
    return taken


@pytest.mark.parametrize("begin", [0.0, 0.031, 12_345.678, 1e7 + 0.0499999])
@pytest.mark.parametrize("rate", [0.3, 7.0, 20.0, 333.3])
def test_tokens_come_in_a_burst_and_then_at_the_rate(begin: float, rate: float):
    budget = NoteBudget(rate, 100)
    taken = spend(budget, begin, 60)
    assert taken[99] == begin
    assert abs(len(taken) - 100 - 60 * rate) <= 1.001
    assert spend(budget, taken[-1] + 1e6, 0.0) == [taken[-1] + 1e6] * 100


def test_buckets_of_one_rate_fill_at_the_same_times():
    one, other = NoteBudget(20.0, 3), NoteBudget(20.0, 50)
    first, second = spend(one, 5.013, 2), spend(other, 5.020, 2)
    assert set(first[3:]) & set(second[50:]) == set(second[50:])


def test_a_missing_token_cannot_be_taken():
    budget = NoteBudget(20.0, 1)
    assert budget.take(3.0)
    assert not budget.take(3.01)
    assert budget.ready_at(3.01) == pytest.approx(3.05)


def test_a_rate_of_zero_gives_no_tokens():
    budget = NoteBudget(0.0, 100)
    assert not budget.take(1.0)
    assert budget.ready_at(1.0) == inf


@pytest.mark.parametrize("megabytes", [50, 512, 990, 50_000])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_oplog_is_not_filled_in_three_days(megabytes: int, workers: int):
    size = megabytes * 1024 * 1024
    budget = NoteBudget(20.0 / workers, 100)
    budget.bound_by_oplog(size, 1 / workers)
    assert budget.per_second <= 20.0 / workers
    assert budget.per_second * workers * NOTE_BYTES * LEAST_DAYS * DAY <= size * 1.000001
    if megabytes >= 990:
        assert budget.per_second == 20.0 / workers

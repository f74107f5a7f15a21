"""Rounds: when a stream counts as dense, and when its rounds start."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.stream.pacing import Rounds
from router.stream_settings import StreamSettings

LIMITS = StreamSettings(round_interval=0.05, round_burst=20.0)


def fed(per_second: float, events: int, seconds: float, begin: float = 7.0) -> tuple[Rounds, float]:
    """Return rounds that got ``per_second`` batches of ``events`` events, and the time."""
    rounds, now = Rounds(LIMITS), begin
    for _ in range(round(seconds * per_second)):
        now += 1 / per_second
        rounds.charge(events, now)
    return rounds, now


@pytest.mark.parametrize(("per_second", "events"), [(1, 1), (19.9, 1), (9.9, 2), (9.9, 10_000)])
def test_few_batches_are_never_dense(per_second: float, events: int):
    rounds, now = fed(per_second, events, 60.0)
    assert not rounds.dense(now)


@pytest.mark.parametrize(("per_second", "events"), [(30, 1), (20, 2), (20, 500), (1000, 1)])
def test_many_batches_are_dense_once_the_burst_is_spent(per_second: float, events: int):
    assert not fed(per_second, events, 5 / per_second)[0].dense(7.0 + 5 / per_second)
    rounds, now = fed(per_second, events, 10.0)
    assert rounds.dense(now)


def test_a_round_without_events_does_not_end_the_rounds_but_two_do():
    rounds, now = fed(100, 1, 10.0)
    assert rounds.dense(now + LIMITS.round_interval)
    assert not rounds.dense(now + 2.01 * LIMITS.round_interval)


def test_a_pause_makes_the_next_burst_free():
    rounds, now = fed(100, 1, 10.0)
    later = now + 22 * LIMITS.round_interval
    for number in range(19):
        assert not rounds.dense(later), number
        rounds.charge(1, later)
    rounds.charge(1, later)
    assert rounds.dense(later)


@given(st.floats(0, 1e7), st.floats(0.001, 10.0))
def test_rounds_start_one_interval_apart_and_not_in_the_past(now: float, interval: float):
    rounds = Rounds(StreamSettings(round_interval=interval, noop=False))
    start = rounds.next_start(now)
    assert start >= now
    assert start <= now + interval * 1.001 + 1e-6
    assert rounds.interval_number(start) == rounds.interval_number(now) + 1


@pytest.mark.parametrize(
    ("notes", "interval"), [(0.0, 0.05), (5.0, 0.05), (20.0, 0.05), (100.0, 0.01)]
)
def test_more_noop_writes_make_rounds_shorter(notes: float, interval: float):
    rounds = Rounds(StreamSettings(noops_per_second=notes))
    assert 1 / rounds.per_second == pytest.approx(interval)


def test_without_noop_writes_their_rate_does_not_matter():
    rounds = Rounds(StreamSettings(noop=False, noops_per_second=1000.0))
    assert 1 / rounds.per_second == pytest.approx(0.05)


def test_streams_start_their_rounds_at_the_same_times():
    one, other = Rounds(LIMITS), Rounds(LIMITS)
    assert one.next_start(5.01) == other.next_start(5.049) == pytest.approx(5.05)

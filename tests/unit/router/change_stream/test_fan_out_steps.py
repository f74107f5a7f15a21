"""A step of the fan-out takes about its time, whatever the next events or readers cost."""

import time

import pytest

from router.filters.bounds import MOST_WORK, Allowance
from router.filters.index import FilterIndex
from router.filters.stream_filter import StreamFilter, compile_filter
from tests.unit.router.change_stream.test_fan_out import Reading

STEP = 0.001


class Costly:
    """A clock of work: bytes of events that meet an index take their time, all else takes none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds_per_byte: float) -> None:
        self.now = 0.0
        real = FilterIndex.route

        def route(index: FilterIndex[bytes], events: list[bytes]) -> object:
            self.now += seconds_per_byte * sum(map(len, events))
            return real(index, events)

        monkeypatch.setattr(FilterIndex, "route", route)

    def __call__(self) -> float:
        return self.now


def test_large_events_after_small_ones_do_not_stretch_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading = Reading(2000)
    view = reading.view(compile_filter([{"$match": {"fullDocument.a": 1}}]))
    clock = Costly(monkeypatch, 2e-9)
    while reading.fan_out.behind:
        reading.fan_out.step(clock, STEP)
    reading.arrive(range(2000, 2300), a=[0] * 2000)  # 40 µs each, by this clock
    longest = 0.0
    while reading.fan_out.behind:
        began = clock()
        reading.fan_out.step(clock, STEP)
        longest = max(longest, clock() - began)
    assert view.failure is None
    assert longest < 3 * STEP


def projecting(number: int) -> StreamFilter:
    return compile_filter(
        [
            {"$match": {"fullDocument.tenant": number % 2}},
            {"$project": {f"fullDocument.a.x{number}": 1}},
        ]
    )


def test_many_projections_of_one_event_do_not_stretch_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One user may have many cursors with equal filters and different projections."""
    reading = Reading(4, a=[{"y": 1}] * (MOST_WORK // 3))
    for number in range(60):
        reading.view(projecting(number))
    looked = 0
    real = Allowance.take

    def take(allowance: Allowance, units: int) -> None:
        nonlocal looked
        looked += units
        real(allowance, units)

    monkeypatch.setattr(Allowance, "take", take)
    most = 0
    while reading.fan_out.behind:
        looked = 0
        reading.fan_out.step(time.perf_counter, STEP)
        most = max(most, looked)
    assert most <= 8 * MOST_WORK

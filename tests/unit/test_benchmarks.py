"""A benchmark fails if a program stays silent or an event does not arrive."""

import pytest

from bench.programs import Program
from bench.writes import latencies


def test_a_silent_program_does_not_hold_up_a_benchmark() -> None:
    with Program("tests.doubles.idle_worker") as program:
        assert not program.begins_within(0)
        with pytest.raises(RuntimeError, match="printed nothing"):
            program.line(0.2)


def test_an_event_that_has_not_arrived_is_not_left_out() -> None:
    assert latencies({"1": 1.0}, {"1": 1.5, "2": 3.0}) == [0.5]
    with pytest.raises(RuntimeError, match="1 of 2 events have not arrived"):
        latencies({"1": 1.0, "2": 2.0}, {"1": 1.5})

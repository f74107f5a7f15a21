"""How a stream's rate of events is classified."""

import pytest

from router.stream_settings import StreamSettings
from router.streams.pace import Pace

LIMITS = StreamSettings()


def pace_of(interval: float, count: int = 100) -> tuple[Pace, float]:
    """Return a pace after ``count`` events ``interval`` seconds apart, and the time."""
    pace, now = Pace(LIMITS), 0.0
    for _ in range(count):
        now += interval
        pace.event(now)
    return pace, now


def test_a_stream_without_events_is_neither():
    assert not Pace(LIMITS).active(0.0)
    assert not Pace(LIMITS).lively(0.0)


@pytest.mark.parametrize("interval", [0.0001, 0.001, 0.003])
def test_where_events_come_quickly_the_stream_is_active(interval: float):
    pace, now = pace_of(interval)
    assert pace.active(now)


@pytest.mark.parametrize("interval", [0.005, 0.02, 1.0, 3600.0])
def test_a_stream_with_other_events_is_not_active(interval: float):
    pace, now = pace_of(interval)
    assert not pace.active(now)
    assert pace.lively(now)


def test_a_quick_stream_that_stops_is_quiet_soon_and_quick_again_soon():
    pace, now = pace_of(0.002)
    assert not pace.active(now + LIMITS.active_for)
    assert pace.lively(now + 0.5)
    assert not pace.lively(now + 2.0)
    hour = now + 3600.0
    for number in range(12):
        pace.event(hour + number * 0.002)
    assert pace.active(hour + 0.024)

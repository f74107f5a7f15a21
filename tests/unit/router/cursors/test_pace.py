"""How long idle members may be asked to wait, by the pace of the events."""

import pytest

from router.cursors.limits import StreamLimits
from router.cursors.pace import Pace

LIMITS = StreamLimits()


def pace_of(interval: float, count: int = 100) -> tuple[Pace, float]:
    """A pace that has seen ``count`` events ``interval`` seconds apart, and the time after."""
    pace, now = Pace(LIMITS), 0.0
    for _ in range(count):
        now += interval
        pace.event(now)
    return pace, now


def test_a_stream_without_events_waits_long():
    assert Pace(LIMITS).wait(0.0) == LIMITS.await_quiet


@pytest.mark.parametrize("interval", [0.0001, 0.001, 0.003])
def test_where_events_come_quickly_waits_are_short(interval: float):
    pace, now = pace_of(interval)
    assert pace.active(now)
    assert pace.wait(now) == LIMITS.await_active


@pytest.mark.parametrize("interval", [0.005, 0.02, 1.0, 3600.0])
def test_other_events_are_waited_for_long(interval: float):
    pace, now = pace_of(interval)
    assert not pace.active(now)
    assert pace.wait(now) == LIMITS.await_quiet


def test_a_quick_stream_that_stops_is_quiet_at_once_and_quick_again_soon():
    pace, now = pace_of(0.002)
    assert pace.wait(now + LIMITS.active_for) == LIMITS.await_quiet
    hour = now + 3600.0
    for number in range(12):
        pace.event(hour + number * 0.002)
    assert pace.wait(hour + 0.024) == LIMITS.await_active

"""How many readers a stream needs to be shared, and which cost ends it."""

import pytest

from router.stream.readers.fan_out import Traffic
from router.stream.sharing_demand import MOST_PAUSED, SharingDemand

HOLD = 10.0
STREAM = b"stream"


def shared(parts: int) -> SharingDemand:
    demand = SharingDemand(parts, HOLD)
    for part in range(parts):
        demand.join(STREAM, b"%d" % part, 0.0, begins=True)
    return demand


def traffic(let_through: float, *, behind_since: float | None) -> Traffic:
    found = Traffic()
    found.add(500, 500 * 100)
    found.add_passed(int(500 * let_through), 0)
    found.behind_since = behind_since
    return found


@pytest.mark.parametrize(
    ("let_through", "behind_since", "stays"),
    [(0.1, None, True), (0.1, 95.0, True), (0.1, 90.0, False), (0.6, 80.0, True)],
)
def test_clients_leave_a_stream_that_is_behind_because_of_unwatched_events(
    let_through: float, behind_since: float | None, stays: bool
) -> None:
    demand = shared(4)
    found = traffic(let_through, behind_since=behind_since)
    demand.record(STREAM, found, 100.0)
    assert demand.is_shared(STREAM, 100.0) is stays
    assert demand.is_paused(STREAM, 101.0) is not stays
    assert demand.is_shared(STREAM, 100.0 + 61 * HOLD)


def test_a_costly_stream_is_not_shared_again_when_all_clients_reconnect() -> None:
    demand = shared(4)
    demand.record(STREAM, traffic(0.1, behind_since=90.0), 100.0)
    for part in range(4):
        demand.leave(STREAM, b"%d" % part, 101.0)
    for part in range(4):
        demand.join(STREAM, b"%d" % part, 102.0, begins=True)
    assert not demand.is_shared(STREAM, 102.0)
    assert demand.is_shared(STREAM, 100.0 + 61 * HOLD)


def test_the_streams_that_were_paused_last_are_remembered() -> None:
    demand = shared(4)
    for number in range(MOST_PAUSED + 1):
        demand.pause(b"%d" % number, 100.0)
    assert not demand.is_paused(b"0", 1.0)
    assert all(demand.is_paused(b"%d" % number, 1.0) for number in range(1, MOST_PAUSED + 1))


def test_a_stream_with_half_as_many_parts_is_left_after_a_while() -> None:
    demand = shared(4)
    for part in range(3):
        demand.leave(STREAM, b"%d" % part, 100.0)
    assert demand.is_shared(STREAM, 100.0)
    assert demand.is_shared(STREAM, 100.0 + HOLD / 2)
    assert not demand.is_shared(STREAM, 100.0 + HOLD)


@pytest.mark.parametrize(("away", "shares"), [(HOLD / 2, True), (HOLD, False)])
def test_a_stream_is_shared_on_if_all_readers_come_back_soon(away: float, shares: bool) -> None:
    demand = shared(4)
    for part in range(4):
        demand.leave(STREAM, b"%d" % part, 100.0)
    demand.join(STREAM, b"0", 100.0 + away, begins=True)
    assert demand.is_shared(STREAM, 100.0 + away) is shares
    demand.join(STREAM, b"1", 100.0 + away, begins=True)
    assert demand.is_shared(STREAM, 200.0) is shares


def test_two_parts_that_get_most_events_continue_to_share_a_stream() -> None:
    demand = shared(5)
    demand.record(STREAM, traffic(0.6, behind_since=None), 50.0)
    for part in range(3):
        demand.leave(STREAM, b"%d" % part, 100.0)
    assert demand.is_shared(STREAM, 100.0 + 2 * HOLD)
    demand.leave(STREAM, b"3", 200.0)
    assert not demand.is_shared(STREAM, 200.0 + HOLD)

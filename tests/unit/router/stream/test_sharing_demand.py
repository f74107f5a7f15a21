"""When clients share a scan, and when they leave it."""

import pytest

from router.stream.sharing import SharingDemand
from router.stream.views import Traffic

HOLD = 10.0
SCAN = b"scan"


def shared(parts: int) -> SharingDemand:
    scans = SharingDemand(4, HOLD)
    for part in range(parts):
        scans.join(SCAN, b"%d" % part, 0.0, begins=True)
    return scans


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
    scans = shared(4)
    found = traffic(let_through, behind_since=behind_since)
    scans.record(SCAN, found, 100.0)
    assert scans.is_shared(SCAN, 100.0) is stays
    assert scans.is_paused(SCAN, 101.0) is not stays
    assert scans.is_shared(SCAN, 100.0 + 61 * HOLD)


def test_a_scan_with_half_as_many_parts_is_left_after_a_while() -> None:
    scans = shared(4)
    for part in range(3):
        scans.leave(SCAN, b"%d" % part, 100.0)
    assert scans.is_shared(SCAN, 100.0)
    assert scans.is_shared(SCAN, 100.0 + HOLD / 2)
    assert not scans.is_shared(SCAN, 100.0 + HOLD)

"""What is known of a remote: its replies, an overdue watermark, and its no-op writes."""

import pytest
from bson import Timestamp

from router.stream.remotes.remote_progress import NoOpRequests, RemoteProgress, WatermarkTimeout
from router.stream_settings import StreamSettings


def test_a_reply_is_recorded_with_its_events_and_never_behind_the_last_one():
    remote = RemoteProgress(StreamSettings())
    remote.collecting = 7
    remote.record_reply(3, Timestamp(10, 1), 100.0, complete=False)
    remote.record_reply(0, Timestamp(9, 1), 101.0, complete=False)
    assert remote.events == 3
    assert (remote.is_busy(100.2), remote.is_busy(100.3)) == (True, False)
    assert remote.collecting is None
    assert remote.is_beyond(Timestamp(10, 0))
    assert not remote.is_beyond(Timestamp(10, 1))
    assert not remote.idle


def gives_up(overdue: WatermarkTimeout, now: float) -> bool:
    over = overdue.is_over(now)
    if over:
        overdue.record_leaving(now)
    return over


def test_the_timeout_doubles_and_resets():
    overdue, past = WatermarkTimeout(5.0), Timestamp(10, 1)
    overdue.expect_beyond(past, now=100.0)
    overdue.expect_beyond(Timestamp(20, 1), now=104.0)
    assert not gives_up(overdue, 105.0)
    assert gives_up(overdue, 105.1)
    assert not gives_up(overdue, 115.0)
    assert gives_up(overdue, 115.2)
    overdue.record_watermark(past)
    assert gives_up(overdue, 136.0), "a watermark at the time does not suffice"
    overdue.record_watermark(Timestamp(10, 2))
    assert not gives_up(overdue, 190.0)
    overdue.expect_beyond(past, now=200.0)
    assert gives_up(overdue, 205.1)
    now, pauses = 205.1, []
    for _ in range(6):
        begun = now
        while not gives_up(overdue, now):
            now += 0.5
        pauses.append(now - begun)
    assert max(pauses) < 61


def test_pauses_between_ineffective_noops_grow():
    noops, now, pauses = NoOpRequests(), 0.0, []
    for _ in range(8):
        assert noops.may_request(Timestamp(10, 1), now)
        noops.record_request(Timestamp(10, 1))
        noops.record_end(now)
        pauses.append(noops.again - now)
        now = noops.again
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (pytest.approx(0.1), pytest.approx(2.0))
    noops.record_request(Timestamp(11, 1))
    noops.record_end(now)
    assert noops.again - now == pytest.approx(0.1), "a later event starts with the shortest pause"

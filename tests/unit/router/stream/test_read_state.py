"""What is known of a remote's member: its progress, its no-op writes, its timeout."""

import pytest
from bson import Timestamp

from router.stream.pacing import NoOpState, ReadState, WatermarkTimeout
from router.stream_settings import PacingSettings


def test_the_reply_of_an_opening_does_not_show_that_a_member_is_idle():
    remote = ReadState(PacingSettings())
    remote.record(0, Timestamp(10, 1), 100.0, complete=True)
    assert (remote.opened, remote.idle, remote.reached) == (True, False, Timestamp(10, 1))
    remote.record(0, None, 101.0, complete=True)
    assert (remote.idle, remote.reached) == (True, Timestamp(10, 1))


def test_a_reply_is_recorded_with_its_events_and_never_behind_the_last_one():
    remote = ReadState(PacingSettings())
    remote.collects_in = 7
    remote.record(3, Timestamp(10, 1), 100.0, complete=False)
    remote.record(0, Timestamp(9, 1), 101.0, complete=False)
    assert (remote.events, remote.events_at, remote.collects_in) == (3, 100.0, -1)
    assert remote.reached == Timestamp(10, 1)
    assert not remote.idle


def test_the_timeout_doubles_and_resets():
    overdue, past = WatermarkTimeout(5.0), Timestamp(10, 1)
    overdue.reached(past, now=100.0)
    overdue.reached(Timestamp(20, 1), now=104.0)
    assert not overdue.give_up(105.0)
    assert overdue.give_up(105.1)
    assert not overdue.give_up(115.0)
    assert overdue.give_up(115.2)
    overdue.watermark(past)
    assert overdue.waiting, "a watermark at the time does not suffice"
    overdue.watermark(Timestamp(10, 2))
    assert not overdue.waiting
    overdue.reached(past, now=200.0)
    assert overdue.give_up(205.1)
    now, pauses = 205.1, []
    for _ in range(6):
        begun = now
        while not overdue.give_up(now):
            now += 0.5
        pauses.append(now - begun)
    assert max(pauses) < 61


def test_without_a_timeout_nothing_is_overdue():
    overdue = WatermarkTimeout(0.0)
    overdue.reached(Timestamp(10, 1), now=0.0)
    assert not overdue.give_up(1e9)


def test_pauses_between_ineffective_noops_grow():
    noop, now, pauses = NoOpState(), 0.0, []
    for _ in range(8):
        noop.ask(Timestamp(10, 1))
        noop.done(now)
        pauses.append(noop.again - now)
        now = noop.again
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (pytest.approx(0.1), pytest.approx(2.0))
    noop.ask(Timestamp(11, 1))
    noop.done(now)
    assert noop.again - now == pytest.approx(0.1), "a later event starts with the shortest pause"

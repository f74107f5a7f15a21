"""Flow control: the pace of events, the budgets, and the waits of getMores."""

from typing import Any

import pytest
from bson import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from router.limits.memory import Memory
from router.stream.remotes.flow_control import FlowControl, Wait
from router.stream.remotes.remote_progress import NoOpRequests, RemoteProgress, WatermarkTimeout
from router.stream_settings import StreamSettings

LIMITS = StreamSettings()
MIB = 1024 * 1024


def flow_control(limits: StreamSettings, memory: int, *, fanned_out: bool = False) -> FlowControl:
    return FlowControl(limits, Memory(memory), lambda: fanned_out)


def test_a_stream_is_lively_for_a_second_after_each_event():
    flow = flow_control(LIMITS, 1 << 40)
    assert not flow.is_lively(0.0)
    for now in (1.0, 3600.0):
        flow.record_events(RemoteProgress(LIMITS), 1, now)
        assert flow.is_lively(now + 0.5)
        assert not flow.is_lively(now + 2.0)


# Prefetching.


def test_little_is_read_ahead_before_a_client_has_taken_events():
    flow = flow_control(LIMITS, 1 << 40)
    first = LIMITS.first_ahead_bytes
    assert flow.may_read(first, first, 4)
    assert not flow.may_read(1, first + 1, 4)
    assert flow.may_read(0, first + 1, 4)
    flow.record_taken(first)
    assert flow.may_read(first, 3 * first, 4)
    assert not flow.may_read(first, 3 * first + 1, 4)


@given(st.integers(1, 200), st.data())
def test_any_order_of_requests_stays_within_the_budget(remotes, data):
    prefetch = flow_control(LIMITS, 1 << 40)
    prefetch.record_taken(1 << 40)
    batch = prefetch.batch_bytes(remotes)
    buffered = [0] * remotes
    for _ in range(data.draw(st.integers(0, 300))):
        one = data.draw(st.integers(0, min(remotes - 1, 5)))
        if prefetch.may_read(buffered[one], sum(buffered), remotes):
            buffered[one] += batch
    assert sum(buffered) <= LIMITS.stream_buffer_bytes
    assert max(buffered) <= LIMITS.remote_buffer_bytes
    for held in buffered:
        # Each remote may have one batch buffered and another in flight, regardless of the others.
        if held <= batch:
            assert prefetch.may_read(held, sum(buffered), remotes)


def test_a_fanned_out_stream_reads_less_far_ahead():
    flow, fanned_out = (flow_control(LIMITS, 1 << 40, fanned_out=each) for each in (False, True))
    flow.record_taken(8 * MIB)
    assert flow.batch_bytes(4) == 4 * fanned_out.batch_bytes(4) == 4 * MIB
    assert flow.may_read(4 * MIB, 16 * MIB, 4)
    assert fanned_out.may_read(MIB, 4 * MIB, 4)
    assert not fanned_out.may_read(4 * MIB, 16 * MIB, 4)
    assert fanned_out.may_read(0, 64 * MIB, 4)


# Waits.

QUIET, GATE, UNKNOWN = LIMITS.await_quiet, LIMITS.await_watermark, LIMITS.await_unknown
WATERMARK = Timestamp(100, 1)


def remote_of(
    limits: StreamSettings = LIMITS, *, due: bool = False, idle: bool = True, topology: bool = False
) -> RemoteProgress:
    """Return a remote with the watermark; with ``due`` its member's oplog is past it."""
    remote, oplog_end = RemoteProgress(limits, topology=topology), WATERMARK
    if due:
        oplog_end = Timestamp(101, 1)
    for _ in ("opening", "getMore"):
        remote.record_reply(0, oplog_end, 0.0, complete=idle)
    return remote


def wait_of(flow: FlowControl, remote: RemoteProgress, **state: Any) -> Wait:
    known: dict[str, Any] = {"needed": False, "next_noop": None}
    return flow.plan_getmore(remote, WATERMARK, 1000.0, **known | state)


@pytest.mark.parametrize(
    ("remote", "state", "wait"),
    [
        ({}, {}, Wait(QUIET)),
        ({}, {"needed": True}, Wait(QUIET)),
        ({"due": True}, {"needed": True}, Wait(QUIET)),
        ({"idle": False}, {}, Wait(UNKNOWN)),
        ({"idle": False}, {"needed": True, "next_noop": 0.02}, Wait(UNKNOWN)),
        ({}, {"next_noop": 0.02}, Wait(0.02)),
        ({}, {"next_noop": 5.0}, Wait(QUIET)),
        ({"due": True}, {"next_noop": 0.02, "needed": True}, Wait(GATE)),
        ({"due": True}, {"next_noop": 0.02}, Wait(0.02)),
        ({"topology": True}, {}, Wait(GATE, delay=QUIET)),
        ({"topology": True}, {"needed": True}, Wait(GATE, delay=QUIET)),
        ({"topology": True, "due": True}, {"needed": True}, Wait(GATE)),
        ({"topology": True, "idle": False}, {}, Wait(UNKNOWN)),
    ],
)
def test_the_wait_of_a_get_more_depends_on_the_remote_s_state(remote, state, wait):
    assert wait_of(flow_control(LIMITS, MIB), remote_of(**remote), **state) == wait


def test_without_noop_writes_the_waits_for_a_watermark_double_up_to_a_limit():
    limits = StreamSettings(noop_writes=False)
    flow, remote = flow_control(limits, MIB), remote_of(limits)
    waits = [wait_of(flow, remote, needed=True).await_for for _ in range(12)]
    assert waits[:3] == [GATE, 2 * GATE, 4 * GATE]
    assert waits[-1] == limits.await_watermark_max
    remote.waits.reset()
    assert wait_of(flow, remote, needed=True).await_for == GATE


@pytest.mark.parametrize(("streams", "pause"), [(1, 0.005), (4, 0.02), (50, 0.05)])
def test_a_single_remote_is_read_with_pauses_that_grow_with_the_streams(streams: int, pause: float):
    remote, memory = remote_of(), Memory(MIB)
    flow = FlowControl(LIMITS, memory, lambda: False)
    for _ in range(30):  # so that it is read in rounds of 50 ms
        flow.record_events(remote, 1, 1000.01)
    memory.add(remotes=streams)
    for watermark, expected in ((WATERMARK, Wait(QUIET, pause)), (Timestamp(90, 1), Wait(QUIET))):
        found = flow.plan_getmore(
            remote, watermark, 1000.01, needed=False, next_noop=None, alone=True
        )
        assert found == expected


# What is known of a remote.


def test_a_reply_is_recorded_with_its_events_and_never_behind_the_last_one():
    remote = RemoteProgress(LIMITS)
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
        noops.request(Timestamp(10, 1))
        noops.record_end(now)
        pauses.append(noops.again - now)
        now = noops.again
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (pytest.approx(0.1), pytest.approx(2.0))
    noops.request(Timestamp(11, 1))
    noops.record_end(now)
    assert noops.again - now == pytest.approx(0.1), "a later event starts with the shortest pause"

"""Flow control: the pace of events, the budgets, and the waits of getMores."""

from typing import Any

import pytest
from bson import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from router.limits.memory import Memory
from router.stream.remotes.flow_control import FlowControl, Wait
from router.stream.remotes.remote_progress import RemoteProgress
from router.stream.remotes.rounds import Rounds
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
    return flow.take_next_wait(remote, WATERMARK, 1000.0, **known | state)


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
        found = flow.take_next_wait(
            remote, watermark, 1000.01, needed=False, next_noop=None, alone=True
        )
        assert found == expected


def test_two_rounds_without_events_end_the_rounds():
    rounds, now = Rounds(LIMITS), 1000.01
    rounds.spend(now, 1000)
    dense = [rounds.is_dense(now + ended * rounds.length) for ended in range(4)]
    assert dense == [True, True, False, False]

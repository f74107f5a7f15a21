"""Flow control: the pace of events, the budgets, and the waits of getMores."""

from typing import Any

import pytest
from bson import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from router.stream.pacing import (
    FlowControl,
    Memory,
    Pace,
    ReadState,
    Wait,
)
from router.stream_settings import StreamSettings

LIMITS = StreamSettings()
MIB = 1024 * 1024


# The pace of events.


def pace_of(interval: float, count: int = 100) -> tuple[Pace, float]:
    """Return a pace after ``count`` events ``interval`` seconds apart, and the time."""
    pace, now = Pace(LIMITS), 0.0
    for _ in range(count):
        now += interval
        pace.event(now)
    return pace, now


def test_a_stream_without_events_is_neither_active_nor_lively():
    assert not Pace(LIMITS).active(0.0)
    assert not Pace(LIMITS).lively(0.0)


@pytest.mark.parametrize("interval", [0.0001, 0.001, 0.003])
def test_a_stream_with_rapid_events_is_active(interval: float):
    pace, now = pace_of(interval)
    assert pace.active(now)


@pytest.mark.parametrize("interval", [0.005, 0.02, 1.0, 3600.0])
def test_a_stream_with_slower_events_is_only_lively(interval: float):
    pace, now = pace_of(interval)
    assert not pace.active(now)
    assert pace.lively(now)


def test_an_active_stream_becomes_quiet_and_active_again_soon():
    pace, now = pace_of(0.002)
    assert not pace.active(now + LIMITS.active_for)
    assert pace.lively(now + 0.5)
    assert not pace.lively(now + 2.0)
    hour = now + 3600.0
    for number in range(12):
        pace.event(hour + number * 0.002)
    assert pace.active(hour + 0.024)


# Prefetching.


def reading_ahead(limits: StreamSettings = LIMITS) -> FlowControl:
    """Return the flow control of a stream whose clients have taken much."""
    flow = FlowControl(limits, Memory(1 << 40))
    flow.client_took(1 << 40)
    return flow


def test_little_is_read_ahead_before_a_client_has_taken_events():
    flow = FlowControl(LIMITS, Memory(1 << 40))
    first = LIMITS.first_ahead_bytes
    assert flow.may_read(first, first, 4)
    assert not flow.may_read(1, first + 1, 4)
    assert flow.may_read(0, first + 1, 4)
    flow.client_took(first)
    assert flow.may_read(first, 3 * first, 4)
    assert not flow.may_read(first, 3 * first + 1, 4)


@given(st.integers(1, 200), st.data())
def test_any_order_of_requests_stays_within_the_budget(remotes, data):
    limits = StreamSettings()
    prefetch = reading_ahead(limits)
    batch = prefetch.batch_bytes(remotes)
    buffered = [0] * remotes
    for _ in range(data.draw(st.integers(0, 300))):
        one = data.draw(st.integers(0, min(remotes - 1, 5)))
        if prefetch.may_read(buffered[one], sum(buffered), remotes):
            buffered[one] += batch
    assert sum(buffered) <= limits.stream_buffer_bytes
    assert max(buffered) <= limits.remote_buffer_bytes
    for held in buffered:
        # Each remote may have one batch buffered and another in flight, regardless of the others.
        if held <= batch:
            assert prefetch.may_read(held, sum(buffered), remotes)


def test_a_single_active_remote_can_use_the_whole_budget():
    assert reading_ahead().may_read(12 * MIB, 12 * MIB, 5)
    assert not reading_ahead().may_read(14 * MIB, 17 * MIB, 20)
    assert not reading_ahead().may_read(16 * MIB, 16 * MIB, 2)


def test_batches_become_smaller_where_many_share_the_buffer():
    prefetch = reading_ahead()
    sizes = [prefetch.batch_bytes(remotes) for remotes in (1, 4, 5, 100, 1000)]
    assert sizes == [4 * MIB, 4 * MIB, 16 * MIB // 5, 16 * MIB // 100, 16 * MIB // 1000]


def test_a_stream_with_filters_reads_less_far_ahead():
    flow = FlowControl(StreamSettings(), Memory(1 << 40))
    flow.client_took(8 * MIB)
    assert flow.batch_bytes(4) == 4 * flow.batch_bytes(4, filtered=True) == 4 * MIB
    assert flow.may_read(4 * MIB, 16 * MIB, 4)
    assert flow.may_read(MIB, 4 * MIB, 4, filtered=True)
    assert not flow.may_read(4 * MIB, 16 * MIB, 4, filtered=True)
    assert flow.may_read(0, 64 * MIB, 4, filtered=True)


# Waits.

QUIET, GATE, UNKNOWN = LIMITS.await_quiet, LIMITS.await_watermark, LIMITS.await_unknown
WATERMARK = Timestamp(100, 1)


def remote_of(
    limits: StreamSettings = LIMITS, *, due: bool = False, idle: bool = True, topology: bool = False
) -> ReadState:
    """Return a remote with the watermark; with ``due`` its member's oplog is past it."""
    remote = ReadState(limits, topology=topology)
    remote.idle = idle
    remote.reached = Timestamp(101, 1) if due else WATERMARK
    return remote


def wait_of(flow: FlowControl, remote: ReadState, **state: Any) -> Wait:
    known: dict[str, Any] = {"needed": False, "next_noop": None}
    return flow.wait(remote, WATERMARK, 1000.0, **known | state)


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
    assert wait_of(FlowControl(LIMITS, Memory(MIB)), remote_of(**remote), **state) == wait


def test_a_member_that_is_getting_a_noop_write_is_due():
    remote = remote_of()
    remote.noop.ask(WATERMARK)
    remote.noop.begun = True
    flow = FlowControl(LIMITS, Memory(MIB))
    assert wait_of(flow, remote, needed=True, next_noop=0.02) == Wait(GATE)


def test_without_noop_writes_the_waits_for_a_watermark_double_up_to_a_limit():
    limits = StreamSettings(noop=False)
    flow, remote = FlowControl(limits, Memory(MIB)), remote_of(limits)
    waits = [wait_of(flow, remote, needed=True).seconds for _ in range(12)]
    assert waits[:3] == [GATE, 2 * GATE, 4 * GATE]
    assert waits[-1] == limits.await_watermark_max
    remote.reset_wait()
    assert wait_of(flow, remote, needed=True).seconds == GATE


def dense(remote: ReadState) -> FlowControl:
    """Return the flow control of a stream that is read in rounds of 50 ms, at 1000.01 s."""
    flow = FlowControl(LIMITS, Memory(MIB))
    for _ in range(30):
        flow.events_arrived(remote, 1, 1000.01)
    return flow


def wait_in_round(flow: FlowControl, remote: ReadState, watermark: Timestamp = WATERMARK) -> Wait:
    return flow.wait(remote, watermark, 1000.01, needed=True, next_noop=None)


def test_a_remote_with_recent_events_is_read_at_the_start_of_each_round():
    remote = remote_of()
    flow, remote.events_at = dense(remote), 1000.0
    seconds, delay = wait_in_round(flow, remote)
    assert (seconds, delay) == (0.004, pytest.approx(0.04))
    assert remote.collects_in == flow.rounds.interval_number(1000.05)
    assert flow.noop_delay(1000.051, [remote]) == 0.01, "its batch is still to come"
    remote.collects_in = -1
    assert flow.noop_delay(1000.051, [remote]) == 0


def test_a_remote_without_recent_events_is_only_probed_in_rounds():
    remote = remote_of()
    seconds, delay = wait_in_round(dense(remote), remote)
    assert (seconds, delay) == (QUIET, pytest.approx(0.04 + 0.025))
    assert remote.collects_in == -1


def test_a_watermark_that_was_asked_for_in_this_round_is_awaited():
    remote = remote_of()
    remote.asked = WATERMARK
    flow = dense(remote)
    assert [wait_in_round(flow, remote) for _ in range(2)] == [
        Wait(GATE),
        Wait(2 * GATE),
    ]
    remote.noop.ask(WATERMARK)
    assert wait_in_round(flow, remote).delay > 0, "the no-op write has not been sent yet"


@pytest.mark.parametrize("late", [{"idle": False}, {"topology": True}, {"due": True}])
def test_backlogs_and_the_topology_are_not_read_in_rounds(late: dict[str, bool]):
    remote = remote_of(**late)
    flow = dense(remote_of())
    watermark = Timestamp(90, 1) if "due" in late else WATERMARK
    assert wait_in_round(flow, remote, watermark).seconds != 0.004
    assert wait_in_round(flow, remote, watermark).delay in (0, QUIET)


def test_noops_are_written_later_while_events_come_quickly():
    flow = FlowControl(LIMITS, Memory(MIB))
    assert flow.noop_delay(100.0, []) == LIMITS.noop_delay == 0
    for number in range(20):
        flow.pace.event(100.0 + 0.001 * number)
    assert flow.noop_delay(100.02, []) == GATE
    assert flow.noop_delay(101.0, []) == 0


def test_a_stream_without_reads_for_the_linger_time_is_unread():
    flow = FlowControl(LIMITS, Memory(MIB))
    flow.client_read(100.0)
    assert not flow.is_unread(100.0 + LIMITS.linger)
    assert flow.is_unread(100.1 + LIMITS.linger)


def test_only_empty_remotes_read_when_memory_is_short():
    memory = Memory(MIB)
    flow = FlowControl(LIMITS, memory)
    assert flow.may_read(1, 1, 3)
    memory.held = MIB + 1
    assert not flow.may_read(1, 1, 3)
    assert flow.may_read(0, 1, 3)

"""Flow control: the pace of events, the budgets, and the waits of getMores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.stream_settings import StreamSettings
from router.streams.flow_control import (
    AwaitPolicy,
    FlowControl,
    Memory,
    Pace,
    Prefetch,
    ProbeBudget,
    Wait,
)

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
    prefetch = Prefetch(limits)
    batch = prefetch.batch_bytes(remotes)
    buffered = [0] * remotes
    for _ in range(data.draw(st.integers(0, 300))):
        one = data.draw(st.integers(0, min(remotes - 1, 5)))
        if prefetch.allows(buffered[one], sum(buffered), remotes):
            buffered[one] += batch
    assert sum(buffered) <= limits.stream_buffer_bytes
    assert max(buffered) <= limits.remote_buffer_bytes
    for held in buffered:
        # Each remote may have one batch buffered and another in flight, regardless of the others.
        if held <= batch:
            assert prefetch.allows(held, sum(buffered), remotes)


def test_a_single_active_remote_can_use_the_whole_budget():
    limits = StreamSettings()
    assert Prefetch(limits).allows(12 * MIB, 12 * MIB, 5)
    assert not Prefetch(limits).allows(14 * MIB, 17 * MIB, 20)
    assert not Prefetch(limits).allows(16 * MIB, 16 * MIB, 2)


def test_batches_become_smaller_where_many_share_the_buffer():
    prefetch = Prefetch(StreamSettings())
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


# Probes.

PROBING = StreamSettings(probe_share=0.05, probe_burst=0.25)


def looks(takes: float, every: float, seconds: float) -> int:
    """Return how many probes of ``takes`` seconds the budget allows if tried ``every`` seconds."""
    budget, count, now = ProbeBudget(PROBING, 1000.0), 0, 1000.0
    while now < 1000.0 + seconds:
        if budget.affords(now):
            budget.spend(now, takes)
            count += 1
        now += every
    return count


def test_a_member_with_little_to_scan_is_probed_for_each_event():
    assert looks(0.001, every=0.025, seconds=60) == 2400


def test_a_member_with_much_to_scan_is_probed_for_a_share_of_the_time():
    seconds = 100
    busy = looks(0.08, every=0.02, seconds=seconds) * 0.08
    assert seconds * 0.045 < busy < seconds * 0.05 + 0.25 + 0.08


def test_unused_budget_expires():
    budget = ProbeBudget(PROBING, 0.0)
    budget.spend(1e6, 0.25)
    assert not budget.affords(1e6)
    assert budget.affords(1e6 + 0.1)


# Waits.

QUIET, GATE, UNKNOWN = LIMITS.await_quiet, LIMITS.await_gate, LIMITS.await_unknown


@pytest.mark.parametrize(
    ("state", "wait"),
    [
        ({}, Wait(QUIET)),
        ({"needed": True}, Wait(QUIET)),
        ({"needed": True, "due": True}, Wait(QUIET)),
        ({"idle": False}, Wait(UNKNOWN)),
        ({"idle": False, "needed": True, "next_note": 0.02}, Wait(UNKNOWN)),
        ({"next_note": 0.02}, Wait(0.02)),
        ({"next_note": 5.0}, Wait(QUIET)),
        ({"next_note": 0.02, "needed": True, "due": True}, Wait(GATE)),
        ({"next_note": 0.02, "due": True}, Wait(0.02)),
        ({"topology": True}, Wait(GATE, rest=QUIET)),
        ({"topology": True, "needed": True}, Wait(GATE, rest=QUIET)),
        ({"topology": True, "needed": True, "due": True}, Wait(GATE)),
        ({"topology": True, "idle": False}, Wait(UNKNOWN)),
    ],
)
def test_the_wait_of_a_get_more_depends_on_the_remote_s_state(state, wait):
    remote = {"needed": False, "due": False, "idle": True, "topology": False, "next_note": None}
    flow = FlowControl(LIMITS, Memory(MIB))
    assert flow.wait(AwaitPolicy(LIMITS), **{**remote, **state}) == wait


def test_without_nudges_the_waits_for_a_promise_double_up_to_the_longest():
    limits = StreamSettings(nudge=False)
    flow, policy = FlowControl(limits, Memory(MIB)), AwaitPolicy(limits)
    remote = {"due": False, "idle": True, "topology": False, "next_note": None}
    waits = [flow.wait(policy, needed=True, **remote).seconds for _ in range(12)]
    assert waits[:3] == [GATE, 2 * GATE, 4 * GATE]
    assert waits[-1] == limits.await_gate_max
    policy.reset()
    assert flow.wait(policy, needed=True, **remote).seconds == GATE


def test_members_are_nudged_later_while_events_come_quickly():
    flow = FlowControl(LIMITS, Memory(MIB))
    assert flow.nudge_delay(100.0) == LIMITS.nudge_delay == 0
    for number in range(20):
        flow.pace.event(100.0 + 0.001 * number)
    assert flow.nudge_delay(100.02) == GATE
    assert flow.nudge_delay(101.0) == 0


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

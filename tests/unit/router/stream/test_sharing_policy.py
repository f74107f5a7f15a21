"""Which streams can serve a client, and which one does."""

from typing import Any

import pytest
from bson import Timestamp

from router.request.stream_request import StreamRequest, parse_request
from router.stream.readers.fan_out import Traffic
from router.stream.sharing_policy import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MOST_FAILED,
    MOST_PAUSED,
    MOST_TRIED,
    Candidates,
    FailedStreams,
    SharingDemand,
    SharingPolicy,
)
from router.stream_settings import StreamSettings
from shard_client.errors import RESUMABLE_LABEL, CommandError
from tests.unit.router.made_tokens import data_of

TOO_LARGE = CommandError(10334, 'BSONObj size is invalid. First element: _id: { _data: "826B" }')
TOO_MANY = CommandError(365, "too many change streams")


def policy(**limits: Any) -> SharingPolicy:
    return SharingPolicy(StreamSettings(**limits), lambda: True)


def request(
    collection: str = "c", match: dict[str, Any] | None = None, start: dict[str, Any] | None = None
) -> StreamRequest:
    stages = [{"$match": match}] if match else []
    pipeline = [{"$changeStream": start or {}}, *stages]
    return parse_request("db", {"aggregate": collection, "pipeline": pipeline, "cursor": {}})


INSERTS = {"operationType": "insert"}


def joined(sharing: SharingPolicy, wanted: StreamRequest, now: float = 0.0) -> Candidates:
    found = sharing.candidates(wanted)
    sharing.join(found, now)
    return found


def test_filters_after_an_invalidate_stay_with_the_shards() -> None:
    # Events that they leave out do not count when a shard swallows an invalidate.
    found = policy(share_filters="always")
    start = {"startAtOperationTime": Timestamp(10, 1)}
    assert found.candidates(request(match=INSERTS, start=start)).filters.sources
    start = {"startAfter": {"_data": data_of(10, 0, invalidate=True)}}
    filters = found.candidates(request(match=INSERTS, start=start)).filters
    assert filters.sources == ()
    assert filters.reason == "it starts after an invalidate"
    start = {"startAfter": {"_data": data_of(10, 0)}}
    assert found.candidates(request(match=INSERTS, start=start)).filters.sources


def test_a_choice_is_repeated_until_something_is_recorded() -> None:
    sharing = policy(share_filters_from=2, share_filters_hold=10.0)
    first, second = (joined(sharing, request(match={"ns.coll": each})) for each in "ab")
    (shared,) = first.filters.sources
    for now in (0.0, 1.0, 1e6, 0.0):
        assert sharing.choose_source(first, None, now) == shared
        assert sharing.choose_source(first, None, now, late=True) is first.own
    sharing.leave(second, 100.0)
    joined(sharing, request(match={"ns.coll": "b"}), 100.0)
    sharing.record_failure(first, shared, TOO_LARGE, 99.0, 101.0)
    for now in (101.0, 110.0, 101.0):
        assert sharing.choose_source(first, None, now) is first.own
        assert sharing.choose_source(first, shared, now) == shared, (
            "a reader reports a new failure itself"
        )
    assert sharing.choose_source(first, None, 111.5) == shared


def test_a_refusal_of_one_client_does_not_affect_others() -> None:
    sharing = policy(share_filters="always")
    one, other = (joined(sharing, request(match=INSERTS)) for _ in range(2))
    (shared,) = one.filters.sources
    sharing.record_failure(one, shared, TOO_MANY, 0.0, 1.0)
    assert sharing.choose_source(one, None, 1.0) is one.own
    assert "too many change streams" in one.filters.reason
    assert sharing.choose_source(other, None, 1.0) is other.filters.sources[0]
    sharing.leave(one, 2.0)
    sharing.leave(other, 2.0)


def test_conditions_evaluated_on_every_event_are_bounded_for_each_scope() -> None:
    sharing = policy(share_filters="always")
    tried = [{"documentKey._id": {"$gt": each}} for each in range(MOST_TRIED + 1)]
    readers = [joined(sharing, request(match=match)) for match in tried]
    assert [bool(each.filters.sources) for each in readers] == [True] * MOST_TRIED + [False]
    assert "more than 200" in readers[-1].filters.reason
    assert readers[-1].scopes.reason.startswith("its filter is left to the shards: the filters of")
    assert sharing.candidates(request(match=tried[0])).filters.sources, "it costs nothing more"
    sharing.leave(readers[0], 1.0)
    assert sharing.candidates(request(match=tried[-1])).filters.sources


def pause_after(failed: FailedStreams, key: bytes, now: float) -> float:
    """Return for how many seconds more a stream is avoided."""
    low, high = 0.0, 2 * LONGEST_PAUSE
    while high - low > 0.01:
        middle = (low + high) / 2
        if failed.why_avoided(key, now + middle):
            low = middle
        else:
            high = middle
    return round(low, 1)


def test_the_pause_doubles_up_to_a_bound() -> None:
    failed = FailedStreams()
    now, pauses = 100.0, []
    for _ in range(12):
        failed.add(b"key", TOO_LARGE, entered=now - 0.5, now=now)
        pauses.append(pause_after(failed, b"key", now))
        now += pauses[-1] + 1.0
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-2:] == [LONGEST_PAUSE, LONGEST_PAUSE]
    assert pauses == sorted(pauses)


def test_an_outage_does_not_double_the_pause() -> None:
    failed, outage = FailedStreams(), CommandError(133, "no answer", labels=(RESUMABLE_LABEL,))
    for number in range(20):
        failed.add(b"key", outage, entered=20.0 * number, now=20.0 * number + 10.0)
        assert pause_after(failed, b"key", 20.0 * number + 10.0) == FIRST_PAUSE


def test_the_streams_that_failed_last_are_remembered() -> None:
    failed = FailedStreams()
    for number in range(MOST_FAILED + 1):
        failed.add(b"%d" % number, TOO_LARGE, entered=1.0, now=2.0)
        failed.add(b"0", TOO_LARGE, entered=1.0, now=2.0)
    assert failed.why_avoided(b"0", 3.0)
    assert not failed.why_avoided(b"1", 3.0)
    assert all(failed.why_avoided(b"%d" % number, 3.0) for number in range(2, MOST_FAILED + 1))


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

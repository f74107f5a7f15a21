"""Which streams can serve a client, and which one does."""

from typing import Any

from bson import Timestamp

from router.request.stream_request import StreamRequest, parse_request
from router.stream.sharing_policy import MOST_TRIED, Candidates, SharingPolicy
from router.stream_settings import StreamSettings
from shard_client.errors import CommandError
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

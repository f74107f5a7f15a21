"""The shards that a stream covers, and whether a client may move to it from another one."""

import pytest
from bson.timestamp import Timestamp

from router.stream.membership import ShardSpan, covers_all
from shard_client.bson.resume_token import first_key

EARLY, THEN, LATER = Timestamp(5, 1), Timestamp(10, 1), Timestamp(20, 1)
KEY = first_key(THEN)
HOST = "rs/h:1"


def part(since: Timestamp = EARLY, until: Timestamp | None = None, shard: str = "s") -> ShardSpan:
    return ShardSpan(shard, HOST, since, None if until is None else first_key(until))


@pytest.mark.parametrize(
    ("has", "needs", "serves"),
    [
        ([part()], [part()], True),
        ([], [part()], False),
        ([part(shard="other")], [part()], False),
        ([part(since=THEN)], [part()], True),
        ([part(since=LATER)], [part()], False),
        ([part(since=LATER)], [part(since=LATER)], True),
        ([part(until=LATER)], [part()], True),
        ([part()], [part(until=LATER)], True),
        ([part(until=LATER)], [part(until=LATER)], True),
        ([part(until=THEN)], [part(until=LATER)], False),
        ([part(since=LATER)], [part(until=LATER), part(since=LATER)], False),
        ([part(until=LATER), part(since=LATER)], [part(until=LATER), part(since=LATER)], True),
    ],
)
def test_a_stream_serves_clients_whose_spans_it_covers(
    has: list[ShardSpan], needs: list[ShardSpan], serves: bool
) -> None:
    assert covers_all(set(has), set(needs), KEY) is serves

import bson
from bson.timestamp import Timestamp

from router.request.stream_request import (
    StreamRequest,
    parse_request,
    shard_command,
    topology_command,
)
from tests.unit.router.made_tokens import data_of, token_document

AT = Timestamp(5, 1)


def request(target: str | int = "c", database: str = "db", **more) -> StreamRequest:
    options = more.pop("options", {})
    stages = more.pop("stages", [])
    return parse_request(
        database,
        {"aggregate": target, "pipeline": [{"$changeStream": options}, *stages], **more},
    )


def test_shards_get_the_user_s_stages_and_options_with_their_own_start():
    asked = request(
        options={"fullDocument": "updateLookup", "startAtOperationTime": Timestamp(1, 1)},
        stages=[{"$match": {"a": 1}}],
        cursor={"batchSize": 7},
        collation={"locale": "fr"},
        comment="x",
        lsid={"id": 1},
        maxTimeMS=5,
        **{"$readPreference": {"mode": "nearest"}},
    )
    assert (asked.batch_size, asked.max_time_ms) == (7, 5)
    assert shard_command(asked, AT) == (
        "db",
        {
            "aggregate": "c",
            "pipeline": [
                {"$changeStream": {"fullDocument": "updateLookup", "startAtOperationTime": AT}},
                {"$match": {"a": 1}},
            ],
            "cursor": {"batchSize": 0},
            "collation": {"locale": "fr"},
            "comment": "x",
            "readConcern": {"level": "majority"},
            "$readPreference": {"mode": "nearest"},
        },
    )


def test_a_cursor_at_an_invalidate_is_reopened_with_start_after():
    token = token_document(data_of(5, 0, invalidate=True))
    _, command = shard_command(request(cursor={}), token)
    assert command["pipeline"] == [{"$changeStream": {"startAfter": bson.decode(token)}}]


def test_the_topology_is_watched_on_the_config_server():
    database, command = topology_command(AT)
    assert (database, command["aggregate"]) == ("config", "shards")
    assert command["pipeline"] == [
        {"$changeStream": {"allowToRunOnConfigDB": True, "startAtOperationTime": AT}}
    ]
    _, again = topology_command(token_document(data_of(9, 3)))
    assert "resumeAfter" in again["pipeline"][0]["$changeStream"]


def test_a_stream_starts_at_the_requested_time():
    assert request(cursor={}).start_time is None
    at = request(cursor={}, options={"startAtOperationTime": AT})
    assert at.start_time == AT
    after = request(cursor={}, options={"resumeAfter": {"_data": data_of(9, 3)}})
    assert after.start_time == Timestamp(9, 1)
    assert not after.splits_large_events
    assert request(stages=[{"$changeStreamSplitLargeEvent": {}}], cursor={}).splits_large_events

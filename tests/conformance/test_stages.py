"""The stages after ``$changeStream``: which are allowed, and what they may do to events
(docs/protocol.md#opening)."""

from typing import Any

import pytest
from pymongo.database import Database

from tests.conformance.streams import Stream, kinds, now
from tests.harness.clusters import Client, on_real_servers

Data = Database[dict[str, Any]]

INTERNAL_TYPES = (
    *("kNewShardDetected", "invalidate", "reshardBegin", "reshardBlockingWrites"),
    *("reshardDoneCatchUp", "migrateChunkToNewShard", "migrateLastChunkFromShard"),
    *("shardCollection", "startIndexBuild", "endOfTransaction"),
)
"""Types of events that servers tell each other. mongos drops an event that a stage names after the
first one, as the announcement of a new shard (docs/protocol.md#events).
"""


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ({"$match": {"documentKey._id": {"$gt": 1}}}, [2, 3]),
        ({"$match": {"$expr": {"$eq": ["$fullDocument.a", 20]}}}, [2]),
        ({"$match": {"$or": [{"fullDocument.a": 10}, {"documentKey._id": 3}]}}, [1, 3]),
        ({"$project": {"documentKey": 1}}, [1, 2, 3]),
        ({"$project": {"fullDocument": 0}}, [1, 2, 3]),
        ({"$addFields": {"more": {"$add": ["$fullDocument.a", 1]}}}, [1, 2, 3]),
        ({"$set": {"fullDocument.b": "x"}}, [1, 2, 3]),
        ({"$unset": ["fullDocument", "ns"]}, [1, 2, 3]),
        ({"$replaceRoot": {"newRoot": {"_id": "$_id", "documentKey": "$documentKey"}}}, [1, 2, 3]),
        ({"$replaceWith": {"$mergeObjects": ["$$ROOT", {"a": 1}]}}, [1, 2, 3]),
        pytest.param(
            {"$redact": {"$cond": [{"$eq": ["$documentKey._id", 1]}, "$$PRUNE", "$$KEEP"]}},
            [2, 3],
            marks=on_real_servers("$redact"),
        ),
        ({"$_internalInhibitOptimization": {}}, [1, 2, 3]),
        ({"$_internalShredDocuments": {}}, [1, 2, 3]),
        ({"$changeStreamSplitLargeEvent": {}}, [1, 2, 3]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_allowed_stages_run(
    client: Client, db: Data, stage: dict[str, Any], expected: list[int]
) -> None:
    with Stream(client, db.name, "a", {}, [stage]) as stream:
        db.a.insert_many([{"_id": number, "a": 10 * number} for number in (1, 2, 3)])
        stream.past(now(client))
        assert [event["documentKey"]["_id"] for event in stream.events] == expected


@pytest.mark.parametrize(
    "stage",
    [
        {"$project": {"_id": 0}},
        {"$project": {"_id._data": 0}},
        {"$addFields": {"_id": "x"}},
        {"$set": {"_id": {"_data": "$_id._data", "more": 1}}},
        {"$unset": "_id"},
        {"$replaceRoot": {"newRoot": "$fullDocument"}},
        {"$replaceWith": {"a": 1}},
        {"$replaceWith": {"_id": "$_id._data"}},
    ],
    ids=repr,
)
def test_a_modified_event_id_is_fatal(client: Client, db: Data, stage: dict[str, Any]) -> None:
    with Stream(client, db.name, "a", {}, [stage]) as stream:
        db.a.insert_one({"_id": 1, "a": 1})
        error = stream.failure()
    assert (error["code"], error["codeName"]) == (280, "ChangeStreamFatalError")
    assert error["errorLabels"] == ["NonResumableChangeStreamError"]
    assert (
        "Encountered an event whose _id field, which contains the resume token, was modified"
        in (error["errmsg"])
    )


@on_real_servers("collations")
def test_the_collation_applies_to_the_user_s_stages(client: Client, db: Data) -> None:
    match = [{"$match": {"fullDocument.a": "x"}}]
    insensitive = {"locale": "en", "strength": 2}
    with (
        Stream(client, db.name, "a", {}, match) as simple,
        Stream(client, db.name, "a", {}, match, collation=insensitive) as folded,
    ):
        db.a.insert_many([{"_id": 1, "a": "X"}, {"_id": 2, "a": "x"}])
        end = now(client)
        assert [event["documentKey"]["_id"] for event in simple.past(end)] == [2]
        assert [event["documentKey"]["_id"] for event in folded.past(end)] == [1, 2]


def test_let_variables_work_in_the_user_s_stages(client: Client, db: Data) -> None:
    match = [{"$match": {"$expr": {"$eq": ["$fullDocument.a", "$$wanted"]}}}]
    with Stream(client, db.name, "a", {}, match, let={"wanted": 2}) as stream:
        db.a.insert_many([{"_id": 1, "a": 1}, {"_id": 2, "a": 2}])
        assert [event["documentKey"]["_id"] for event in stream.past(now(client))] == [2]


def test_forged_topology_events_are_harmless(client: Client, db: Data) -> None:
    forged = {
        "operationType": "insert",
        "ns": {"db": "config", "coll": "shards"},
        "documentKey": {"_id": "evil"},
        "fullDocument": {"_id": "evil", "host": "evil/127.0.0.1:1"},
    }
    forge = [{"$addFields": {name: {"$literal": value} for name, value in forged.items()}}]
    with Stream(client, db.name, "a", {}, forge) as stream:
        for number in range(5):
            db.a.insert_one({"_id": number})
        events = stream.read(5)
        assert all(event["fullDocument"] == forged["fullDocument"] for event in events)
    for number, name in enumerate(INTERNAL_TYPES):
        named = [{"$addFields": {"operationType": {"$literal": name}}}]
        with Stream(client, db.name, "a", {}, named) as stream:
            db.a.insert_one({"_id": f"named {number}"})
            assert kinds(stream.read(1)) == [name]


def test_an_error_on_an_event_fails_the_get_more(client: Client, db: Data) -> None:
    divide = [{"$addFields": {"a": {"$divide": [1, "$fullDocument.zero"]}}}]
    with Stream(client, db.name, "a", {}, divide) as stream:
        db.a.insert_one({"_id": 1, "zero": 1})
        assert stream.read(1)[0]["a"] == 1
        db.a.insert_one({"_id": 2, "zero": 0})
        error = stream.failure()
        assert error["code"] not in (1, 43)
        assert "errorLabels" not in error
        assert stream.failure()["code"] == 43

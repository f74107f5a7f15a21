"""Stages and options of a stream see the documents that updateLookup has found."""

from typing import Any

import pytest

from tests.harness.clusters import Client, TestCluster, on_real_servers
from tests.integration.lookups.both import LOOKUP, Both, Data, since, spread, tick

MATCH_DOCUMENT = {"$match": {"fullDocument.v": {"$gt": 2}}}


@pytest.mark.parametrize(
    "stages",
    [
        [MATCH_DOCUMENT],
        [{"$match": {"operationType": "update", "fullDocument.v": {"$gt": 2}}}],
        [{"$match": {"operationType": "update"}}, {"$project": {"fullDocument": 1, "ns": 1}}],
        [{"$match": {"$or": [{"operationType": "insert"}, {"fullDocument": None}]}}],
        [{"$match": {"$expr": {"$eq": ["$fullDocument.v", "$$wanted"]}}}],
        [{"$project": {"v": "$fullDocument.v"}}, {"$match": {"v": {"$exists": True}}}],
        [{"$unset": ["updateDescription", "wallTime"]}],
        [{"$replaceWith": {"_id": "$_id", "document": "$fullDocument"}}],
        [
            {"$match": {"operationType": {"$ne": "delete"}}},
            {"$addFields": {"fullDocument.extra": "$documentKey"}},
        ],
        pytest.param(
            [{"$redact": {"$cond": [{"$eq": ["$operationType", "delete"]}, "$$PRUNE", "$$KEEP"]}}],
            marks=on_real_servers("$redact"),
        ),
        pytest.param(
            [{"$match": {"fullDocument.name": "NAME 3"}}], marks=on_real_servers("collations")
        ),
    ],
    ids=str,
)
def test_stages_run_after_the_lookup(
    both: Both, db: Data, cluster: TestCluster, stages: list[dict[str, Any]]
) -> None:
    spread(db, cluster)
    start = tick(db.client)
    for k in range(6, 14):
        db.a.insert_one({"_id": k, "k": k, "name": f"Name {k % 4}"})
        db.a.update_one({"_id": k, "k": k}, {"$set": {"v": k % 5}})
    db.a.delete_one({"_id": 9, "k": 9})
    fields: dict[str, Any] = {"let": {"wanted": 3}}
    if "name" in str(stages):
        fields["collation"] = {"locale": "en", "strength": 2}
    for cursor in ({}, {"batchSize": 1}, {"batchSize": 7}):
        fields["cursor"] = cursor
        events = both.read(db.name, "a", options=since(start), stages=stages, **fields)
        assert events
        assert len(events) < 17 or stages[0].keys() & {"$unset", "$replaceWith"}


@on_real_servers("explain")
def test_explain_shows_the_lookup_after_the_merge(router: Client, db: Data) -> None:
    command = {
        "aggregate": "a",
        "pipeline": [
            {"$changeStream": LOOKUP},
            {"$match": {"operationType": "update", "fullDocument.v": 1}},
        ],
        "cursor": {},
    }
    shown = router[db.name].command("explain", command, verbosity="queryPlanner")
    parts = shown["splitPipeline"]
    update, wanted = {"operationType": "update"}, {"fullDocument.v": 1}
    assert parts["shardsPart"][1:] == [{"$match": {"$and": [update, {"$or": [update, wanted]}]}}]
    assert "fullDocument" not in parts["shardsPart"][0]["$changeStream"]
    assert parts["mergerPart"][-2]["$changeStream"]["fullDocument"] == "updateLookup"
    assert parts["mergerPart"][-1] == {"$match": {**update, **wanted}}


@pytest.mark.parametrize(
    "match",
    [
        {"fullDocument.v": 1},
        {"unknown": 1},
        {"$nor": [{"operationType": "delete"}, {"$expr": {"$eq": ["$fullDocument.v", 2]}}]},
    ],
    ids=str,
)
def test_an_image_is_not_required_of_an_event_that_a_filter_removes(
    both: Both, db: Data, match: dict[str, Any]
) -> None:
    start = tick(db.client)
    db.a.insert_one({"_id": 1, "v": 1})
    db.a.delete_one({"_id": 1})
    db.a.insert_one({"_id": 2, "v": 2})
    options = since(start, fullDocumentBeforeChange="required")
    events = both.read(db.name, "a", options=options, stages=[{"$match": match}])
    expected = [] if "unknown" in match else [1]
    assert [event["documentKey"]["_id"] for event in events] == expected

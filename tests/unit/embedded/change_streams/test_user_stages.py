"""The client's stages, applied to events."""

import pytest
from bson.timestamp import Timestamp

from embedded.change_streams.user_stages import UserStages
from shard_client.errors import CommandError

EVENT = {
    "_id": {"_data": "82"},
    "operationType": "insert",
    "clusterTime": Timestamp(5, 1),
    "fullDocument": {"_id": 1, "n": 5, "tags": ["x", "y"], "in": [{"a": 1, "b": 2}, {"a": 3}]},
    "ns": {"db": "db", "coll": "orders"},
    "documentKey": {"_id": 1},
}


def run(*stages):
    found = UserStages(list(stages))
    return found.apply(dict(EVENT)) if found.wants(EVENT) else None


@pytest.mark.parametrize(
    "condition",
    [
        {"operationType": {"$in": ["insert", "delete"]}, "ns.coll": "orders"},
        {"fullDocument.n": {"$gt": 4, "$lt": 6}},
        {"fullDocument.tags": "y"},
        {"fullDocument.in.a": 3},
        {"fullDocument.none": {"$exists": False}},
        {"fullDocument.none": None},
        {"ns.coll": {"$regex": "^ord"}},
        {"clusterTime": {"$gte": Timestamp(5, 1)}},
        {"$expr": {"$eq": ["$fullDocument.n", 5]}},
        {"$expr": {"$and": [{"$gt": ["$fullDocument.n", 1]}, {"$ne": ["$ns.coll", "x"]}]}},
        {"$or": [{"operationType": "drop"}, {"documentKey._id": 1}]},
        {"fullDocument.n": {"$not": {"$gt": 5}}},
        {"fullDocument.in": {"$elemMatch": {"a": 1, "b": 2}}},
    ],
)
def test_matches_select_events(condition):
    assert run({"$match": condition}) == EVENT
    assert run({"$match": {"$nor": [condition]}}) is None


def test_a_projection_keeps_the_events_order():
    kept = run(
        {"$project": {"ns.coll": 1, "operationType": 1, "double": {"$add": ["$fullDocument.n", 5]}}}
    )
    assert list(kept.items()) == [
        ("_id", {"_data": "82"}),
        ("operationType", "insert"),
        ("ns", {"coll": "orders"}),
        ("double", 10),
    ]


def test_projections_reach_into_arrays():
    assert run({"$project": {"fullDocument.in.a": 1}})["fullDocument"] == {
        "in": [{"a": 1}, {"a": 3}]
    }
    without = run({"$project": {"fullDocument.in.a": 0, "ns": 0}})
    assert without["fullDocument"]["in"] == [{"b": 2}, {}]
    assert "ns" not in without


def test_fields_are_added_changed_and_removed():
    changed = run(
        {"$addFields": {"fullDocument.m": "$fullDocument.n", "new": {"a": "$operationType"}}},
        {"$set": {"ns.coll": "other", "documentKey": "$$REMOVE"}},
        {"$unset": ["fullDocument.tags", "fullDocument.in"]},
    )
    assert changed["fullDocument"] == {"_id": 1, "n": 5, "m": 5}
    assert changed["new"] == {"a": "insert"}
    assert changed["ns"] == {"db": "db", "coll": "other"}
    assert "documentKey" not in changed
    assert EVENT["ns"]["coll"] == "orders"


@pytest.mark.parametrize(
    "stage",
    [
        {"$replaceWith": {"$mergeObjects": ["$fullDocument", {"_id": "$_id"}]}},
        {"$replaceRoot": {"newRoot": {"$mergeObjects": ["$fullDocument", {"_id": "$_id"}]}}},
    ],
)
def test_the_root_is_replaced(stage):
    assert run(stage) == {**EVENT["fullDocument"], "_id": {"_data": "82"}}


def test_redact_prunes_and_keeps():
    keep = {"$cond": [{"$eq": ["$a", 3]}, "$$PRUNE", "$$DESCEND"]}
    assert run({"$redact": keep})["fullDocument"]["in"] == [{"a": 1, "b": 2}]
    assert run({"$redact": {"$cond": [True, "$$PRUNE", "$$KEEP"]}}) is None
    assert run({"$redact": "$$KEEP"}) == EVENT


def test_let_variables_are_visible_in_stages():
    wanted = {"$match": {"$expr": {"$eq": ["$fullDocument.n", "$$n"]}}}
    five, six = UserStages([wanted], {"n": 5}), UserStages([wanted], {"n": 6})
    assert five.apply(dict(EVENT)) == EVENT
    assert six.apply(dict(EVENT)) is None
    added = UserStages([{"$set": {"n": {"$add": ["$$n", 1]}}}], {"n": 5}).apply(dict(EVENT))
    assert added["n"] == 6


@pytest.mark.parametrize(
    "stage",
    [
        {"$project": {}},
        {"$project": {"a": 1, "b": 0}},
        {"$match": {"a": {"$nope": 1}}},
        {"$unset": 5},
        {"$addFields": 5},
        {"$replaceRoot": {}},
    ],
)
def test_malformed_stages_are_refused(stage):
    with pytest.raises(CommandError):
        UserStages([stage])

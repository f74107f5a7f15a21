"""Splitting a request with a lookup into the shards' stages and the stages after it."""

import bson
import pytest
from bson.raw_bson import RawBSONDocument

from router.lookup.pushdown import LookupPlan, divide
from router.request.stream_request import parse_request

UPDATES = {"$match": {"operationType": "update"}}
DOCUMENT = {"$match": {"fullDocument.v": 1}}
PROJECT = {"$project": {"fullDocument": 1}}


def unless_updated(condition):
    return {"$or": [{"operationType": "update"}, condition]}


def plan_of(*stages, fields=None, **options):
    command = {"aggregate": "c", "pipeline": [{"$changeStream": options}, *stages], "cursor": {}}
    return LookupPlan.of(parse_request("db", {**command, **(fields or {})}))


def test_shards_return_events_without_lookups():
    plan = plan_of(UPDATES, PROJECT, fullDocument="updateLookup", showExpandedEvents=True)
    assert plan is not None
    assert plan.remote.change_stream_options == {"showExpandedEvents": True}
    assert plan.remote.stages == (UPDATES,)
    assert plan.stages == (PROJECT,)
    assert plan.user_stages == (UPDATES, PROJECT)


def test_a_passthrough_to_a_shard_is_looked_up_there():
    fields = {"$_passthroughToShard": {"shard": "shard0"}}
    assert plan_of(fields=fields, fullDocument="updateLookup") is None


def conditions(*fields):
    return {"$match": fields[0] if len(fields) == 1 else {"$and": list(fields)}}


UNSET = {"$unset": "updateDescription.updatedFields"}
RARE = unless_updated({"fullDocument.v": 1})
COMPARED = {"$expr": {"$and": [{"$gt": ["$fullDocument.v", "$fullDocument.w"]}, 1]}}


@pytest.mark.parametrize(
    ("stages", "early", "late"),
    [
        ([], [], []),
        ([UPDATES], [UPDATES], []),
        ([PROJECT, UPDATES], [], [PROJECT, UPDATES]),
        ([UNSET, PROJECT], [UNSET], [PROJECT]),
        *(
            ([stage, UPDATES], [UPDATES], [stage, UPDATES])
            for stage in (
                {"$set": {"fullDocument.v": 1}},
                {"$project": {"documentKey.k": 0}},
                {"$project": {"operationType": True, "n": "$ns.coll"}},
                {"$unset": ["ns.db"]},
            )
        ),
        *(
            ([stage, UPDATES], [], [stage, UPDATES])
            for stage in (
                {"$set": {"operationType.x": 1}},
                {"$addFields": {"operationType": 7}},
                {"$project": {"operationType": 0, "ns": 0}},
                {"$project": {"operationType": "$ns.coll"}},
                {"$project": {"operationType.x": 1}},
                {"$replaceRoot": {"newRoot": "$fullDocument"}},
                {"$redact": "$$KEEP"},
            )
        ),
        ([PROJECT, DOCUMENT], [{"$match": RARE}], [PROJECT, DOCUMENT]),
        ([UNSET, UPDATES, DOCUMENT], [UNSET, UPDATES, {"$match": RARE}], [DOCUMENT]),
        ([DOCUMENT, UNSET], [{"$match": RARE}], [DOCUMENT, UNSET]),
        *(
            ([stage], [stage], [])
            for stage in (
                {"$project": {"lsid": 0, "to": False}},
                {"$match": {"$nor": [{"ns.coll": "c"}, {"updateDescription.updatedFields.v": 1}]}},
                {"$match": {"fullDocumentish": 1}},
            )
        ),
        *(
            (stages, [], stages)
            for stages in (
                [{"$set": {"fullDocument.w": 1}}, DOCUMENT],
                [{"$set": {"n": 1}}, {"$match": {"$expr": {"$size": "$to"}}}],
                [{"$unset": ["to", "documentKey.k"]}],
                [{"$unset": []}],
                [{"$project": {"to": 0, "n": "$m"}}],
            )
        ),
        (
            [{"$match": {"$and": [{"ns.coll": "c"}, {"documentKey._id": {"$gt": 3}}]}}],
            [conditions({"ns.coll": "c"}, {"documentKey._id": {"$gt": 3}})],
            [],
        ),
        *(
            ([{"$match": whole}], [conditions(*early)], [{"$match": whole}])
            for whole, early in (
                (
                    {"operationType": "update", "fullDocument.v": 1},
                    [{"operationType": "update"}, RARE],
                ),
                (
                    {"$or": [{"ns.coll": "c"}, {"fullDocument.v": 1}], "to": None},
                    [
                        unless_updated({"$or": [{"ns.coll": "c"}, {"fullDocument.v": 1}]}),
                        {"to": None},
                    ],
                ),
                (
                    {"$or": [{"updateDescription.truncatedArrays": [], "fullDocument.v": 1}]},
                    [{"updateDescription.truncatedArrays": []}, RARE],
                ),
                (
                    {"$nor": [{"$expr": {"$ne": ["$ns.coll", "c"]}}, {"fullDocument.v": 1}]},
                    [
                        {"$nor": [{"$expr": {"$ne": ["$ns.coll", "c"]}}]},
                        unless_updated({"$nor": [{"fullDocument.v": 1}]}),
                    ],
                ),
                (COMPARED, [unless_updated(COMPARED)]),
            )
        ),
    ],
)
def test_conditions_independent_of_the_lookup_run_on_the_shards(stages, early, late):
    assert divide(stages) == (tuple(early), tuple(late))


def test_a_fallible_expression_is_not_evaluated_before_the_lookup_of_an_update():
    looked_up = {"$expr": {"$in": ["a", "$fullDocument.tags"]}}
    own = {"$expr": {"$gt": [{"$strLenCP": "$ns.coll"}, 3]}}
    assert divide([{"$match": {**looked_up}}]) == ((), ({"$match": looked_up},))
    assert divide([{"$match": own}]) == (({"$match": own},), ())


def test_very_large_stages_are_not_looked_into():
    """What comes before them still runs on the shards."""
    small, large = {"$match": {"ns.coll": "c"}}, {"$match": {f"f{i}": i for i in range(5000)}}
    assert divide([small, large, small]) == ((small,), (large, small))
    raw = RawBSONDocument(bson.encode(small))
    assert divide([raw, small]) == ((), (raw, small))

"""The request of a progress cursor: it returns all events of the first cursor and few others."""

from typing import Any

import bson
import pytest
from bson import Regex, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from embedded.storage.queries import matches
from router.request.shard_commands import progress_command
from shard_client.bson.resume_token import ResumeToken
from tests.doubles.scripted_member import event_token

AFTER = ResumeToken.high_water_mark(Timestamp(105, 7), 1).raw
KINDS = {"$match": {"operationType": {"$in": ["insert", "delete"]}}}
ONLY_IDS = {"$project": {"_id": 1}}


def probe(
    *stages: dict[str, Any], after: bytes = AFTER, **options: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the progress cursor's options and the stages after them."""
    command = {
        "aggregate": "c",
        "pipeline": [{"$changeStream": {"resumeAfter": {"_data": "82"}, **options}}, *stages],
        "cursor": {"batchSize": 5},
        "collation": {"locale": "de"},
        "readConcern": {"level": "majority"},
    }
    database, made = progress_command("db", command, after)
    assert database == "db"
    assert made["cursor"] == {"batchSize": 0}
    assert (made["collation"], made["readConcern"]) == ({"locale": "de"}, {"level": "majority"})
    first, *rest = made["pipeline"]
    assert rest.pop() == ONLY_IDS
    return first["$changeStream"], rest


def test_it_starts_at_the_watermark_without_lookups_and_images():
    options, _ = probe(
        fullDocument="updateLookup", fullDocumentBeforeChange="required", showExpandedEvents=True
    )
    assert options == {"showExpandedEvents": True, "startAtOperationTime": Timestamp(105, 7)}


def test_it_starts_beyond_an_invalidate():
    event = event_token(Timestamp(105, 7))
    invalidate = event.replace("2C0100296E", "2C0100296F", 1)
    for token, start in ((event, 7), (invalidate, 8)):
        options, _ = probe(after=bson.encode({"_data": token}))
        assert options["startAtOperationTime"] == Timestamp(105, start)


@pytest.mark.parametrize(
    ("match", "kept"),
    [
        ({"$sampleRate": 0.5}, []),
        ({"$expr": {"$lt": [{"$rand": {}}, 0.5]}}, []),
        ({"$expr": {"$lt": ["$wallTime", "$$NOW"]}}, []),
        ({"$expr": {"$eq": ["$ns.coll", "$$name"]}}, []),
        ({"$or": [{"operationType": "insert"}, {"$sampleRate": 0.5}]}, []),
        (
            {"$and": [{"operationType": "insert", "$nor": [{"$where": "true"}]}]},
            [{"$match": {"operationType": "insert"}}],
        ),
        (
            {"ns.coll": "c", "$nor": [{"$sampleRate": 0.5}, {"ns.db": "x"}], "lsid": None},
            [{"$match": {"$and": [{"ns.coll": "c"}, {"$nor": [{"ns.db": "x"}]}]}}],
        ),
        ({"$jsonSchema": {}}, []),
        ({"a": {"$not": {"$elemMatch": {"$sampleRate": 1}}}}, []),
        ({"a": {"$near": [1, 2]}}, []),
        ({"$or": "nothing"}, []),
        ({"lsid": {"$exists": False}}, []),
        ({"$expr": {"$gt": ["$txnNumber", 0]}}, []),
        ({"a": {"$not": {"$near": [1, 2]}}}, []),
        ({"a": {"$all": [{"$elemMatch": {"b": 1, "$sampleRate": 0.5}}]}}, []),
        ({"a": {"b": 1, "$gt": 2}}, []),
        ({"$or": []}, []),
        ({"$and": [1]}, []),
        ({"$expr": {"$eq": ["$$ROOT.a", 1]}}, []),
        ({"$expr": {"$getField": "a"}}, []),
        ({"$expr": {"$cond": {"if": {"$rand": {}}, "then": 1, "else": 0}}}, []),
        *(
            (each, [{"$match": each}])
            for each in (
                {"$comment": "mine"},
                {"a": {"$gte": 1, "$lt": 5}, "b": {"$not": Regex("^x")}},
                {"a": {"$elemMatch": {"$gt": 1}}, "b": {"$elemMatch": {"c": {"$gt": 1}}}},
                {"a": {"$elemMatch": {"$or": [{"b": 1}, {"c": {"$ne": 1}}]}}},
                {"a": {"$all": [1, {"b": 2}, {"$elemMatch": {"c": 3}}]}},
                {"$expr": {"$eq": [{"$literal": "$lsid"}, {"x": "$b"}]}},
                {"$expr": {"$cond": {"if": "$a", "then": ["$b"], "else": "$c.d"}}},
            )
        ),
    ],
    ids=str,
)
def test_only_conditions_on_other_things_are_dropped(match: dict[str, Any], kept: list[Any]):
    assert probe(KINDS, {"$match": match}, KINDS)[1] == [KINDS, *kept, KINDS]


@pytest.mark.parametrize("mode", ["updateLookup", "whenAvailable", "required"])
def test_matches_on_lookups_are_dropped(mode: str):
    wanted = {"$match": {"$or": [{"fullDocument.tenant": 7}, {"operationType": "drop"}]}}
    assert probe(KINDS, wanted, fullDocument=mode)[1] == [KINDS]
    assert probe(KINDS, wanted, fullDocument="default")[1] == [KINDS, wanted]
    before = {"$match": {"fullDocumentBeforeChange": {"$exists": True}}}
    assert probe(before, fullDocumentBeforeChange="whenAvailable")[1] == []
    assert probe(before, fullDocument=mode)[1] == [before]
    both = {"$match": {"operationType": "update", "fullDocument.tenant": 7}}
    assert probe(both, KINDS, fullDocument=mode)[1] == [
        {"$match": {"operationType": "update"}},
        KINDS,
    ]


def test_a_fallible_expression_is_kept_only_with_all_conditions_before_it():
    first = {"$match": {"$expr": {"$in": ["a", "$updateDescription.updatedFields.tags"]}}}
    guard = {"$match": {"$expr": {"$isArray": "$$ROOT.updateDescription.updatedFields.tags"}}}
    total = {"$match": {"$expr": {"$ne": ["$ns.coll", "orders"]}}}
    assert probe(first, guard, total)[1] == [first, total]
    assert probe(guard, first, total)[1] == [total]
    assert probe({"$match": {**first["$match"], "$sampleRate": 0.5}}, total)[1] == [total]


FIELDS = ("operationType", "fullDocument", "fullDocumentBeforeChange", "to")
VALUES = st.sampled_from([None, 1, 2, "insert", "update"])
CONDITIONS = st.recursive(
    st.builds(lambda field, value: {field: value}, st.sampled_from(FIELDS), VALUES)
    | st.builds(
        lambda field, value: {"$expr": {"$eq": ["$" + field, value]}},
        st.sampled_from(FIELDS),
        VALUES,
    )
    | st.builds(lambda field, there: {field: {"$exists": there}}, st.sampled_from(FIELDS), VALUES),
    lambda inner: st.builds(
        lambda name, parts: {name: parts},
        st.sampled_from(["$and", "$or", "$nor"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)
STAGES = st.lists(
    st.builds(lambda condition: {"$match": condition}, CONDITIONS)
    | st.builds(lambda field: {"$unset": field}, st.sampled_from(FIELDS)),
    max_size=4,
)
EVENTS = st.dictionaries(st.sampled_from(FIELDS), VALUES)


def passes(stages: list[dict[str, Any]], event: dict[str, Any]) -> bool:
    """Return whether an event passes stages that select and remove fields."""
    left = dict(event)
    for stage in stages:
        if "$unset" in stage:
            left.pop(stage["$unset"], None)
        elif not matches(stage["$match"], left):
            return False
    return True


@given(STAGES, EVENTS)
def test_every_event_of_the_first_cursor_is_returned(
    stages: list[dict[str, Any]], event: dict[str, Any]
):
    images = {"fullDocument": "required", "fullDocumentBeforeChange": "whenAvailable"}
    without = {name: value for name, value in event.items() if name not in images}
    if passes(stages, event):
        assert passes(probe(*stages, **images)[1], without)
    assert passes(probe(*stages)[1], event) == passes(stages, event)

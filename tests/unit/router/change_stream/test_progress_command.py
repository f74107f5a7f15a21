"""The request of a progress cursor: it returns all events of the first cursor and few others."""

from typing import Any

import bson
import pytest
from bson import Regex, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from router.change_stream.progress_command import progress_command
from router.change_stream.resume_token import high_water_mark
from tests.doubles.scripted_member import event_token

AFTER = high_water_mark(Timestamp(105, 7), 1).raw
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


def test_it_starts_at_the_promise_without_lookups_and_images():
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
    "match",
    [
        {},
        {"operationType": "insert"},
        {"ns.coll": {"$in": ["a", "b"]}, "documentKey._id": {"$gte": 5, "$lt": 9}},
        {"fullDocument.tenant": 7},
        {"fullDocument": {"tenant": 7}},
        {"$or": [{"ns.db": "x"}, {"$and": [{"fullDocument.a": {"$not": {"$type": "string"}}}]}]},
        {"fullDocument.name": Regex("^a")},
        {"fullDocument.name": {"$regex": "^a", "$options": "i"}, "$comment": "mine"},
    ],
)
def test_matches_on_the_event_are_kept(match: dict[str, Any]):
    assert probe({"$match": match}, {"$project": {"ns": 1}})[1] == [{"$match": match}]


@pytest.mark.parametrize(
    "match",
    [
        {"$sampleRate": 0.5},
        {"$expr": {"$lt": [{"$rand": {}}, 0.5]}},
        {"$expr": {"$lt": ["$wallTime", "$$NOW"]}},
        {"$or": [{"operationType": "insert"}, {"$sampleRate": 0.5}]},
        {"$and": [{"operationType": "insert", "$nor": [{"$where": "true"}]}]},
        {"$jsonSchema": {}},
        {"a": {"$not": {"$elemMatch": {"$sampleRate": 1}}}},
        {"a": {"$near": [1, 2]}},
        {"$or": "nothing"},
    ],
)
def test_nondeterministic_matches_and_all_later_ones_are_dropped(match: dict[str, Any]):
    assert probe(KINDS, {"$match": match}, KINDS)[1] == [KINDS]


@pytest.mark.parametrize("mode", ["updateLookup", "whenAvailable", "required"])
def test_matches_on_lookups_are_dropped(mode: str):
    wanted = {"$match": {"$or": [{"fullDocument.tenant": 7}, {"operationType": "drop"}]}}
    assert probe(KINDS, wanted, fullDocument=mode)[1] == [KINDS]
    assert probe(KINDS, wanted, fullDocument="default")[1] == [KINDS, wanted]
    before = {"$match": {"fullDocumentBeforeChange": {"$exists": True}}}
    assert probe(before, fullDocumentBeforeChange="whenAvailable")[1] == []
    assert probe(before, fullDocument=mode)[1] == [before]


def test_matches_after_other_stages_are_dropped():
    assert probe({"$project": {"ns": 1}}, KINDS)[1] == []
    assert probe({"$changeStreamSplitLargeEvent": {}})[1] == []


@given(st.lists(st.sampled_from(["safe", "chance", "image", "shape"]), max_size=6))
def test_only_leading_matches_are_kept(kinds: list[str]):
    """The progress cursor's stages begin as the cursor's do, so it misses none of its events."""
    stages: dict[str, dict[str, Any]] = {
        "safe": KINDS,
        "chance": {"$match": {"$sampleRate": 0.5}},
        "image": {"$match": {"fullDocument.a": 1}},
        "shape": {"$unset": "fullDocument"},
    }
    given_stages = [stages[kind] for kind in kinds]
    kept = probe(*given_stages, fullDocument="required")[1]
    assert kept == given_stages[: len(kept)]
    assert len(kept) == len(kinds) or kinds[len(kept)] != "safe"
    assert all(stage == KINDS for stage in kept)

"""Large documents: several replies, events that are split, events that are too large."""

from typing import Any

import pytest

from tests.harness.clusters import TestCluster
from tests.integration.lookups.both import IMAGES, LOOKUP, Both, Data, move, since, spread, tick

SPLIT = {"$changeStreamSplitLargeEvent": {}}
_NINE_MB = 9_000_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("images", [False, True], ids=["", "images"])
def test_large_events_are_split_after_the_lookup(
    both: Both, db: Data, cluster: TestCluster, images: bool
) -> None:
    """With images, the shards already split events that the lookup enlarges further.

    The key has type bits, and room for those of a fragment's number.
    """
    spread(db, cluster)
    options: dict[str, Any] = {}
    if images:
        db.command("collMod", "a", **IMAGES)
        options["fullDocumentBeforeChange"] = "whenAvailable"
    start = tick(db.client)
    db.a.insert_one({"_id": 1.5, "k": 1, "x": "a" * _NINE_MB})
    db.a.update_one({"_id": 1.5, "k": 1}, {"$set": {"x": "b" * _NINE_MB}})
    db.a.insert_one({"_id": 11, "k": 11})
    db.a.update_one({"_id": 11, "k": 11}, {"$set": {"v": 1}})
    move(db, cluster, {"k": 1}, 1)
    events = both.read(db.name, "a", options=since(start, **options), stages=[SPLIT])
    parts = [event for event in events if "splitEvent" in event]
    assert [part["splitEvent"]["of"] for part in parts] == [2 + images] * (2 + images)
    joined = {name: value for part in parts for name, value in part.items()}
    assert joined["fullDocument"]["x"] == "b" * _NINE_MB
    assert joined["operationType"] == "update"
    assert events[-1]["fullDocument"] == {"_id": 11, "k": 11, "v": 1}
    for place, event in enumerate(events):
        if "splitEvent" in event:
            options["resumeAfter"] = event["_id"]
            rest = both.read(db.name, "a", options={**LOOKUP, **options}, stages=[SPLIT])
            assert rest == events[place + 1 :]


_BEFORE = "fullDocumentBeforeChange"
_LARGE = ("fullDocument", _BEFORE, "updateDescription")
CONDITIONS: dict[str, tuple[dict[str, Any], bool]] = {
    "one": ({"fullDocument.v": 1}, True),
    "both": ({"fullDocument.v": 1, f"{_BEFORE}.v": {"$exists": False}}, True),
    "large": ({"fullDocument.x": {"$gt": "a"}, f"{_BEFORE}.x": {"$lt": "b"}}, True),
    "either": ({"$or": [{"fullDocument.x": {"$lt": "b"}}, {f"{_BEFORE}.x": {"$lt": "b"}}]}, True),
    "regex": ({"fullDocument.x": {"$regex": "b$"}, f"{_BEFORE}.x": {"$regex": "a$"}}, True),
    "expr": ({"$expr": {"$gt": ["$fullDocument.v", 0]}}, True),
    "exists": ({"$or": [{name: {"$exists": True}} for name in _LARGE]}, True),
    "nor": ({"$or": [{"fullDocument.v": 2}, {"$nor": [{f"{n}.v": 2} for n in _LARGE]}]}, True),
    "deep": ({"$and": [{"$or": [{"to": 1}, {f"{name}.x": {"$ne": 1}}]} for name in _LARGE]}, True),
    "no": ({"fullDocument.v": 1, f"{_BEFORE}.v": 1}, False),
    "neither": ({"$or": [{"fullDocument.x": {"$lt": "b"}}, {f"{_BEFORE}.x": {"$gt": "b"}}]}, False),
    "none": ({"$nor": [{name: {"$exists": True}} for name in _LARGE]}, False),
}
PROJECTIONS: dict[str, tuple[list[dict[str, Any]], int]] = {
    "without": ([{"$project": {"fullDocument.x": 0}}], 2),
    "unset": ([{"$unset": ["fullDocument.x", "wallTime"]}, {"$unset": f"{_BEFORE}.x"}], 1),
    "only": ([{"$project": {"fullDocument": 1, _BEFORE: 1, "operationType": 1}}], 2),
    "small": ([{"$unset": list(_LARGE[1:])}, {"$set": {"v": "$fullDocument.v"}}], 1),
    "then": ([{"$project": {f"{_BEFORE}.x": 0}}, {"$match": {"fullDocument.v": 1}}], 2),
}
_NEW_ROOT: dict[str, Any] = {"_id": "$_id", "kind": "$operationType", "of": "$documentKey"}
COMPUTED: dict[str, tuple[list[dict[str, Any]], int]] = {
    "root": ([{"$replaceRoot": {"newRoot": _NEW_ROOT}}], 1),
    "with": ([{"$replaceWith": {"$mergeObjects": [_NEW_ROOT, {"x": "$fullDocument.x"}]}}], 1),
    "set": ([{"$set": {"v": {"$add": ["$fullDocument.v", 1]}, "ns.x": {"$year": "$wallTime"}}}], 3),
    "anew": ([{"$addFields": {"wallTime": "$ns", f"{_BEFORE}.v": "$operationType"}}], 3),
    "named": ([{"$project": {"fullDocument.v": 1, "n": {"$size": [[1, "$ns.coll"]]}}}], 1),
    "twice": ([{"$set": {"v": "$ns"}}, {"$unset": "v.db"}, {"$set": {"w": "$v"}}], 3),
}
LARGE_STAGES: dict[str, tuple[list[dict[str, Any]], int]] = {
    **{name: ([{"$match": each}], 3 * met) for name, (each, met) in CONDITIONS.items()},
    **PROJECTIONS,
    **COMPUTED,
}


@pytest.mark.timeout(600)
def test_stages_on_large_events_are_those_of_mongos(both: Both, db: Data) -> None:
    """An event too large for a command is selected, reduced and split."""
    db.command("create", "a", **IMAGES)
    start = tick(db.client)
    db.a.insert_one({"_id": 1, "x": "a" * _NINE_MB})
    db.a.update_one({"_id": 1}, {"$set": {"x": "b" * _NINE_MB, "v": 1}})
    db.a.insert_one({"_id": 2})
    db.a.update_one({"_id": 2}, {"$set": {"v": 1}})
    options = since(start, fullDocumentBeforeChange="whenAvailable")
    for name, (stages, of) in LARGE_STAGES.items():
        events = both.read(db.name, "a", options=options, stages=[*stages, SPLIT])
        parts = [event["splitEvent"]["of"] for event in events if "splitEvent" in event]
        assert parts == ([of] * of if of > 1 else []), name


def test_stages_make_a_large_event_small_enough_without_splitting(both: Both, db: Data) -> None:
    start = tick(db.client)
    db.a.insert_one({"_id": 1, "x": "a" * _NINE_MB})
    db.a.update_one({"_id": 1}, {"$set": {"x": "b" * _NINE_MB, "v": 1}})
    small: dict[str, Any] = {"$unset": "fullDocument.x"}
    for stages in (
        [{"$match": {"fullDocument.v": 1}}, small],
        [small],
        [PROJECTIONS["only"][0][0], small],
    ):
        events = both.read(db.name, "a", options=since(start), stages=stages)
        assert events[-1]["fullDocument"] == {"_id": 1, "v": 1}
    for name in ("root", "with", "named"):
        assert both.read(db.name, "a", options=since(start), stages=COMPUTED[name][0])
    assert (
        both.read(db.name, "a", options=since(start), stages=[{"$match": {"fullDocument.v": 2}}])
        == []
    )

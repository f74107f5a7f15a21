"""Random stages after ``$changeStream``: each is a function of the event alone."""

from collections.abc import Callable
from random import Random
from typing import Any

from bson import Regex, Timestamp

Stage = dict[str, Any]
Pipeline = list[Stage]

SPLIT: Stage = {"$changeStreamSplitLargeEvent": {}}

_TYPES = ("insert", "update", "replace", "delete", "drop", "rename", "create", "invalidate")


def pipeline(chance: Random, start: Timestamp) -> Pipeline:
    """Return stages, mostly none, one or two; ``start`` is a time before the events."""
    many = chance.choices((0, 1, 2, 3), (40, 40, 15, 5))[0]
    stages = [_stage(chance, start) for _ in range(many)]
    if chance.random() < 0.1:
        stages.append(SPLIT)
    return stages


def _stage(chance: Random, start: Timestamp) -> Stage:
    kind = chance.random()
    if kind < 0.5:
        return {"$match": _filter(chance, start)}
    if kind < 0.97:
        return chance.choice(_SHAPES)(chance)
    return chance.choice(_REFUSED)


def _filter(chance: Random, start: Timestamp, depth: int = 1) -> dict[str, Any]:
    if depth and chance.random() < 0.25:
        parts = [_filter(chance, start, depth - 1) for _ in range(2)]
        return {chance.choice(("$and", "$or", "$nor")): parts}
    made: dict[str, Any] = chance.choice(_FILTERS)(chance, start)
    return made


_BELOW = (
    "operationType.a", "ns.db.extra", "ns.coll.x", "ns.coll.x.y", "to.coll.x", "documentKey._id.x",
    "documentKey.k.x", "fullDocument.n.x", "fullDocument.any.x", "fullDocument.tags.x",
    "updateDescription.updatedFields.n.x", "updateDescription.updatedFields.any.x",
)  # fmt: skip

_FILTERS: tuple[Callable[[Random, Timestamp], dict[str, Any]], ...] = (
    lambda c, _: {"operationType": c.choice(_TYPES)},
    lambda c, _: {"operationType": {"$in": c.sample(_TYPES, 3)}},
    lambda c, _: {"operationType": {"$nin": c.sample(_TYPES, 2)}},
    lambda c, _: {"ns.coll": c.choice(("orders", "plain", "images"))},
    lambda c, _: {"ns.coll": Regex("^[ko]")},
    lambda c, _: {"ns.coll": {"$not": Regex("^OR", "i")}},
    lambda c, _: {"fullDocument.n": {"$gte": c.randrange(4)}},
    lambda c, _: {"fullDocument": {"$exists": c.random() < 0.5}},
    lambda c, _: {"fullDocument.tags": "a"},
    lambda c, _: {"fullDocument.tags": {"$size": c.randrange(3)}},
    lambda c, _: {"fullDocument.sub.a": None},
    lambda c, _: {"fullDocumentBeforeChange": {"$ne": None}},
    # One level below values: these paths end in nothing.
    lambda c, _: {c.choice(_BELOW): c.choice((None, "orders", "plain", "a", 1))},
    lambda c, _: {path: c.choice((None, "orders", 1)) for path in c.sample(_BELOW, 2)},
    lambda c, _: {c.choice(_BELOW): {"$exists": c.random() < 0.5}},
    lambda c, _: {"documentKey._id": {"$type": "number"}},
    lambda c, _: {"documentKey.k": {"$lt": c.randrange(60)}},
    lambda c, _: {"documentKey._id": {"$in": [c.randrange(40) for _ in range(12)]}},
    lambda c, _: {"updateDescription.updatedFields.n": {"$exists": True}},
    lambda c, _: {"updateDescription.removedFields": {"$in": ["any", "sub.b"]}},
    lambda c, _: {"updateDescription": {"$exists": False}},
    lambda c, start: {"clusterTime": {"$gt": Timestamp(start.time + c.randrange(2), 5)}},
    lambda c, _: {"wallTime": {"$type": "date"}},
    lambda c, _: {"lsid": {"$exists": c.random() < 0.3}},
    lambda c, _: {"to": {"$exists": c.random() < 0.3}},
    lambda c, _: {"$expr": {"$eq": ["$operationType", c.choice(_TYPES)]}},
    lambda c, _: {"$expr": {"$ne": ["$ns.coll", "orders"]}},
    lambda c, _: {"$expr": {"$gt": ["$fullDocument.n", "$fullDocument.k"]}},
    lambda c, _: {"$expr": {"$in": ["$operationType", ["insert", "delete"]]}},
    lambda c, _: {"$expr": {"$gt": [{"$strLenCP": {"$ifNull": ["$ns.coll", ""]}}, 5]}},
    lambda c, _: {"$expr": {"$in": ["a", {"$ifNull": ["$fullDocument.tags", []]}]}},
    lambda c, _: {"$expr": {"$eq": [{"$toLower": "$operationType"}, c.choice(_TYPES)]}},
    lambda c, _: {"documentKey._id": {"$bitsAllSet": 1}},
    lambda c, _: {"fullDocument.tags": {"$elemMatch": {"$in": ["a", "b"]}}},
    lambda c, _: {"fullDocument.n": {"$mod": [2, 0]}},
    lambda c, _: {"_id._data": {"$gte": "82"}},
    lambda c, _: {"$comment": "all", "ns": {"$type": "object"}},
    lambda c, _: {},
    lambda c, _: {"operationType": {"$nope": 1}},
    lambda c, _: {"$expr": {"$nope": 1}},
    lambda c, _: {"fullDocument.n": {"$gt": 1, "$lt": 3}, "operationType": {"$ne": "delete"}},
    lambda c, _: {"nothing.like": "this"},
)

_SHAPES: tuple[Callable[[Random], Stage], ...] = (
    lambda c: {"$project": {"operationType": 1, "documentKey": 1}},
    lambda c: {"$project": {"fullDocument": 0, "wallTime": 0}},
    lambda c: {"$project": {"ns": 1, "fullDocument.n": 1, "kind": "$operationType"}},
    lambda c: {"$project": {"_id": 1, "key": {"$ifNull": ["$documentKey._id", "none"]}}},
    lambda c: {"$project": {"_id": 0}},
    lambda c: {"$project": {"clusterTime": 0, "documentKey.k": 0, "ns.db": 0}},
    lambda c: {"$project": {"_id": {"_data": 1}, "operationType": 1}},
    lambda c: {"$addFields": {"was": {"$concat": ["$ns.db", ".", "$ns.coll"]}}},
    lambda c: {"$set": {"size": {"$size": {"$ifNull": ["$fullDocument.tags", []]}}}},
    lambda c: {"$set": {"operationType": {"$toUpper": "$operationType"}}},
    lambda c: {"$set": {"operationType": 7}},
    lambda c: {"$set": {"fullDocument.n": {"$divide": [12, "$fullDocument.n"]}}},
    lambda c: {"$set": {"type": {"$type": "$fullDocument.any"}, "again": "$$ROOT.ns"}},
    lambda c: {"$set": {"ns": "$$REMOVE"}},
    lambda c: {"$set": {"_id": "mine"}},
    lambda c: {"$unset": c.sample(["fullDocument", "ns", "clusterTime", "documentKey"], 2)},
    lambda c: {"$unset": "updateDescription.updatedFields"},
    lambda c: {"$unset": c.choice(("_id", "operationType", "wallTime"))},
    lambda c: {"$replaceRoot": {"newRoot": {"a": "$ns", "_id": "$_id", "b": "$documentKey"}}},
    lambda c: {"$replaceRoot": {"newRoot": {"$mergeObjects": ["$$ROOT", {"x": 1}]}}},
    lambda c: {"$replaceRoot": {"newRoot": "$fullDocument"}},
    lambda c: {"$replaceWith": {"$mergeObjects": [{"first": True}, "$$ROOT"]}},
    lambda c: {"$replaceWith": {"$setField": {"field": "y", "input": "$$ROOT", "value": 2}}},
    lambda c: {"$redact": {"$cond": [{"$eq": ["$operationType", "delete"]}, "$$PRUNE", "$$KEEP"]}},
    lambda c: {"$redact": {"$cond": [{"$eq": ["$n", 1]}, "$$PRUNE", "$$DESCEND"]}},
    lambda c: {"$set": {"parts": {"$objectToArray": "$ns"}, "at": {"$year": "$wallTime"}}},
    lambda c: {
        "$set": {"doubled": {"$map": {"input": {"$range": [0, 3]}, "in": {"$add": ["$$this", 1]}}}}
    },
)

AFTER_FRAGMENTS: tuple[Pipeline, ...] = (
    [],
    [],
    [{"$match": {"operationType": "update"}}],
    [{"$match": {"fullDocument.n": {"$exists": True}}}],
    [{"$project": {"fullDocument.pad": 0}}],
    [{"$unset": ["updateDescription", "wallTime"]}],
    [{"$project": {"fullDocument": 1, "fullDocumentBeforeChange": 1, "operationType": 1}}],
)
"""Stages of streams that start after a fragment: some keep its event as it was."""

_REFUSED: tuple[Stage, ...] = (
    {"$group": {"_id": None}},
    {"$sort": {"_id": 1}},
    {"$limit": 3},
    {"$skip": 1},
    {"$lookup": {"from": "plain", "localField": "a", "foreignField": "b", "as": "c"}},
    {"$sample": {"size": 1}},
    {"$facet": {"a": []}},
    {"$changeStream": {}},
    {"$changeStreamSplitLargeEvent": {"a": 1}},
    {"$nope": {}},
    {"$match": 1},
    {"$project": {}},
    {"$unset": 1},
    {"$set": {"a.": 1}},
    {"$replaceRoot": {}},
    {"$redact": 1},
    {"a": 1, "b": 2},
    {},
)

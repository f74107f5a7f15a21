"""Filters by example: matching and other events, declined filters, projections."""

from collections.abc import Sequence
from typing import Any

import bson
import pytest
from bson import Int64, ObjectId, Regex
from bson.decimal128 import Decimal128

from router.filters.index import FilterIndex
from router.filters.match_compiler import Declined
from router.filters.stream_filter import StreamFilter, compile_filter
from tests.filters.chance import document
from tests.recordings.workload import STREAMS

Document = dict[str, Any]


def passes(match: Document, event: Document) -> bool:
    index: FilterIndex[str] = FilterIndex()
    index.add("only", compile_filter([{"$match": match}]))
    return bool(index.route([bson.encode(event)]))


def full(**fields: Any) -> Document:
    return {"_id": {"_data": "82"}, "operationType": "insert", "fullDocument": fields}


@pytest.mark.parametrize(
    ("match", "event"),
    [
        ({"operationType": "insert"}, full()),
        ({"fullDocument.a": 1}, full(a=1.0)),
        ({"fullDocument.a": Int64(1)}, full(a=Decimal128("1.00"))),
        ({"fullDocument.a": float("nan")}, full(a=Decimal128("NaN"))),
        ({"fullDocument.a": None}, full()),
        ({"fullDocument.a": {"$in": [None, 3]}}, full(a=None)),
        ({"fullDocument.a.b": None}, full(a=[{}])),
        ({"fullDocument.a": 2}, full(a=[1, 2])),
        ({"fullDocument.a": [1, 2]}, full(a=[1, 2])),
        ({"fullDocument.a.b": {"$gt": 1}}, full(a=[{"b": 0}, {"b": [5]}])),
        ({"fullDocument.a": {"b": 1}}, full(a={"b": 1.0})),
        ({"fullDocument.a": {"$ne": 2}}, full(a=[1])),
        ({"fullDocument.a": {"$not": {"$gt": 2}}}, full(a="3")),
        ({"fullDocument.a": {"$exists": False}}, full(b=1)),
        ({"fullDocument.a": {"$type": "array"}}, full(a=[])),
        ({"fullDocument.a": {"$type": ["int", "string"]}}, full(a="")),
        ({"fullDocument.a": Regex("^ten")}, full(a="tenant")),
        ({"fullDocument.a": {"$regex": "^ten"}}, full(a=["x", "tenant"])),
        ({"$or": [{"fullDocument.a": 1}, {"fullDocument.b": 2}]}, full(b=2)),
        ({"$nor": [{"fullDocument.a": 1}]}, full(a=2)),
        ({}, full()),
    ],
)
def test_a_filter_selects_matching_events(match: Document, event: Document) -> None:
    assert passes(match, event)
    if match:
        assert not passes({"$nor": [match]}, event)


@pytest.mark.parametrize(
    ("match", "event"),
    [
        ({"operationType": "update"}, full()),
        ({"fullDocument.a": True}, full(a=1)),
        ({"fullDocument.a": 0.1}, full(a=Decimal128("0.1"))),
        ({"fullDocument.a": {"$lt": 5}}, full(a="4")),
        ({"fullDocument.a": {"$lt": 5}}, full(a=float("nan"))),
        ({"fullDocument.a.b": None}, full(a=[1])),
        ({"fullDocument.a": 1}, full(a=[[1]])),
        ({"fullDocument.a": {"b": 1, "c": 2}}, full(a={"c": 2, "b": 1})),
        ({"fullDocument.a": Regex("^ten")}, full(a="a tenant")),
    ],
)
def test_a_filter_rejects_other_events(match: Document, event: Document) -> None:
    assert not passes(match, event)
    assert passes({"$nor": [match]}, event)


@pytest.mark.parametrize(
    "stages",
    [
        [],
        [{"$match": {"$expr": {"$eq": ["$a", 1]}}}],
        [{"$match": {"fullDocument.a": {"$mod": [2, 1]}}}],
        [{"$match": {"fullDocument.a": {"$elemMatch": {"b": 1}}}}],
        [{"$match": {"fullDocument.a.0": 1}}],
        [{"$match": {"fullDocument..a": 1}}],
        [{"$match": {"_id": 1}}],
        [{"$match": {"fullDocument.a": {"$gt": float("nan")}}}],
        [{"$match": {"fullDocument.a": {"$gt": {"b": 1}}}}],
        [{"$match": {"fullDocument.a": Regex("b")}}],
        [{"$match": {"fullDocument.a": Regex("^b", "i")}}],
        [{"$match": {"fullDocument.a": {"$in": [Regex("^b")]}}}],
        [{"$match": {"fullDocument.a": {"$in": 1}}}],
        [{"$match": {"fullDocument.a": {"$eq": 1, "b": 2}}}],
        [{"$match": {"$and": []}}],
        [{"$match": {"$or": [1]}}],
        [{"$match": {"fullDocument.a": {"$type": 0}}}],
        [{"$redact": "$$KEEP"}],
        [{"$addFields": {"a": 1}}],
        [{"$project": {"_id": 0}}],
        [{"$project": {"a": 1, "b": 0}}],
        [{"$project": {"a": "$b"}}],
        [{"$project": {"a": 1, "a.b": 1}}],
        [{"$project": {}}],
        [{"$unset": "_id"}],
        [{"$unset": []}],
        [{"$project": {"operationType": 1}}, {"$match": {"operationType": "insert"}}],
    ],
)
def test_unsupported_filters_are_declined(stages: list[Document]) -> None:
    with pytest.raises(Declined):
        compile_filter(stages)


def test_a_deeply_nested_filter_is_declined() -> None:
    match: Document = {"fullDocument.a": 1}
    for _ in range(60):
        match = {"$and": [match]}
    with pytest.raises(Declined):
        compile_filter([{"$match": match}])


@pytest.mark.parametrize(
    ("stage", "fields"),
    [
        ({"$project": {"fullDocument.a": 1}}, {"fullDocument": {"a": [{"b": 1}, 2]}}),
        ({"$project": {"fullDocument.a.b": 1}}, {"fullDocument": {"a": [{"b": 1}]}}),
        (
            {"$project": {"fullDocument": 0}},
            {"operationType": "insert", "ns": {"db": "d", "coll": "c"}},
        ),
        (
            {"$unset": ["fullDocument.a.b", "ns.db"]},
            {"operationType": "insert", "ns": {"coll": "c"}, "fullDocument": {"a": [{}, 2]}},
        ),
        ({"$project": {"ns": {"coll": True}}}, {"ns": {"coll": "c"}}),
    ],
)
def test_projections_keep_and_drop_fields(stage: Document, fields: Document) -> None:
    event = {
        "_id": {"_data": "82"},
        "operationType": "insert",
        "ns": {"db": "d", "coll": "c"},
        "fullDocument": {"a": [{"b": 1}, 2]},
    }
    shown = compile_filter([stage]).project(bson.encode(event))
    assert shown == bson.encode({"_id": {"_data": "82"}, **fields})


@pytest.mark.parametrize(
    ("stage", "inside"),
    [
        # Recorded from a mongod's change stream.
        ({"$project": {"f.a": 1}}, {"a": {"0": 1, "1": {"0": 2, "1": {"b": {"5": 3}}}}}),
        ({"$project": {"f.a.b": 1}}, {"a": {"0": {"0": {"b": {"0": 3}}}}}),
        ({"$project": {"f": 1}}, {"a": {"4": 1, "x": {"9": 2, "9 ": {"b": {"5": 3}}}}, "c": 1}),
        ({"$unset": "f.c"}, {"a": {"4": 1, "x": {"9": 2, "9 ": {"b": {"5": 3}}}}}),
        (
            {"$unset": "f.a.c"},
            {"a": {"0": 1, "1": {"0": 2, "1": {"b": {"5": 3}}}}, "c": 1},
        ),
    ],
)
def test_arrays_with_irregular_names_are_renumbered_where_the_server_does(
    stage: Document, inside: Document
) -> None:
    irregular = {"a": {"4": 1, "x": {"9": 2, "9 ": {"b": {"5": 3}}}}, "c": 1}
    shown = compile_filter([_with_root(stage)]).project(_with_arrays(irregular))
    assert shown == _with_arrays(inside)


def _with_root(stage: Document) -> Document:
    """Return a stage on the field f as one on fullDocument."""
    ((name, operand),) = stage.items()
    if isinstance(operand, str):
        return {name: operand.replace("f.", "fullDocument.", 1)}
    return {name: {each.replace("f", "fullDocument", 1): flag for each, flag in operand.items()}}


def _with_arrays(fields: Document) -> bytes:
    """Return an event whose full document has ``fields``, those that have numbers are arrays."""

    def encoded(value: Document) -> bytes:
        parts = []
        for name, inner in value.items():
            if isinstance(inner, int):
                parts.append(bson.encode({name: inner})[4:-1])
                continue
            kind = b"\x04" if any(each.strip().isdigit() for each in inner) else b"\x03"
            parts.append(kind + name.encode() + b"\0" + encoded(inner))
        return document(*parts)

    return document(
        bson.encode({"_id": {"_data": "82"}})[4:-1], b"\x03fullDocument\0" + encoded(fields)
    )


def test_the_recorded_filters_are_supported() -> None:
    """The recorded streams whose only stage is a $match are in the supported class."""
    plain = [
        stages
        for _, _, _, stages, *_ in (tuple(stream) for stream in STREAMS.values())
        if stages and all("$match" in stage for stage in stages)
    ]
    assert plain
    for stages in plain:
        compile_filter(stages)


def test_the_index_routes_events_by_required_values() -> None:
    index: FilterIndex[int] = FilterIndex()
    for tenant in range(1000):
        index.add(tenant, compile_filter([{"$match": {"fullDocument.tenant": tenant}}]))
    both = {"$or": [{"fullDocument.tenant": 7}, {"fullDocument.b": {"$in": [1, 2]}}]}
    index.add(-1, compile_filter([{"$match": both}]))
    index.add(-2, compile_filter([{"$match": {"fullDocument.tenant": {"$gte": 999}}}]))
    events = [bson.encode(full(tenant=t, b=b)) for t, b in ((7, 1), (999, 0), (2000, 2), (7, 0))]
    routed = dict(index.route(events))
    assert routed == {
        7: [events[0], events[3]],
        999: [events[1]],
        -1: [events[0], events[2], events[3]],
        -2: [events[1], events[2]],
    }
    index.remove(7)
    index.remove(-2)
    index.remove(-3)
    assert dict(index.route(events)) == {999: [events[1]], -1: [events[0], events[2], events[3]]}


def index_of(filters: Sequence[StreamFilter]) -> FilterIndex[int]:
    index: FilterIndex[int] = FilterIndex()
    for owner, each in enumerate(filters):
        index.add(owner, each)
    return index


def test_remembered_values_find_the_same_filters() -> None:
    """An index that has seen events of the same form routes as one that has seen none."""
    operands = [7, "seven", None, ObjectId("7" * 24), True, {"a": 1}]
    filters = [compile_filter([{"$match": {"fullDocument.t": each}}]) for each in operands]
    filters.append(compile_filter([{"$match": {"fullDocument.t": {"$in": [8, "seven"]}}}]))
    index = index_of(filters)
    values = [7, Int64(7), 7.0, Decimal128("7.00"), 8, 9, "seven", "", "s\0", None, ObjectId()]
    values += [ObjectId("7" * 24), True, {"a": 1}, {"a": 2}, [7, "seven"], [8, 8], [], float("nan")]
    events = [bson.encode(full(a=1, t=value)) for value in values] + [bson.encode(full(a=1))]

    def routed(known: FilterIndex[int], event: bytes) -> set[int]:
        return {owner for owner, _ in known.route([event])}

    for _ in range(5):
        for event in events:
            assert routed(index, event) == routed(index_of(filters), event)
    index.remove(0)
    assert routed(index, events[0]) == set()


@pytest.mark.parametrize("beside", [(), ("fullDocument.n",), ("ns.db.more", "ns")])
def test_a_path_below_a_string_ends_in_nothing_for_each_event(beside: Sequence[str]) -> None:
    """The first event is walked, the next ones are read by the layout of the first."""
    paths = ("ns.db.extra", "ns.coll.x", "documentKey._id.y", "fullDocument.a.b")
    match = [{path: value} for path in paths for value in ("dd", "c", "key", "text", None)]
    stages = [{"$match": each} for each in match] + [{"$match": {path: "dd"}} for path in beside]
    event = {"ns": {"db": "dd", "coll": "c"}, "documentKey": {"_id": "key"}}
    events = [bson.encode(full(a="text", n="dd") | event) for _ in range(4)]
    for each in stages:
        index = index_of([compile_filter([each])])
        path, value = next(iter(each["$match"].items()))
        met = value is None or path in ("fullDocument.n",)
        assert dict(index.route(events)) == ({0: events} if met else {}), each
    together = index_of([compile_filter([each]) for each in stages])
    assert {owner for owner, _ in together.route(events)} == {
        owner
        for owner, each in enumerate(stages)
        if None in each["$match"].values() or "fullDocument.n" in each["$match"]
    }

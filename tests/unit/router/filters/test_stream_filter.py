"""Filters by example: what is declined, values that are remembered, reading by paths."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import bson
import pytest
from bson import Int64, ObjectId, Regex
from bson.decimal128 import Decimal128

from router.filters.field_walk import MOST_WORK, Path, ValueSlice, read_fields, tree_of
from router.filters.index import FilterIndex
from router.filters.layouts import PathReader
from router.filters.match_compiler import Declined
from router.filters.stream_filter import StreamFilter, compile_filter
from tests.filters.chance import Chance

Document = dict[str, Any]


def full(**fields: Any) -> Document:
    return {"_id": {"_data": "82"}, "operationType": "insert", "fullDocument": fields}


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


def paths_into(value: Any, above: Path = ()) -> Iterator[Path]:
    """Yield the paths into a document, and paths to names that it lacks and below its values."""
    if isinstance(value, dict):
        for name in (*value, "d"):
            yield (*above, name.encode())
            yield (*above, name.encode(), b"x")
            yield from paths_into(value.get(name), (*above, name.encode()))


@pytest.mark.parametrize("seed", range(300))
def test_a_reader_finds_what_a_walk_finds(seed: int) -> None:
    random = Random(seed)
    events = Chance(random, repeated=True).events(random.choice((3, 10, 40)))
    known = sorted({path for each in events for path in paths_into(each)})
    reader = PathReader(random.sample(known, min(len(known), random.choice((1, 1, 1, 2, 4)))))
    raw = [bson.encode(each) for each in events]
    for _ in range(60):
        event = random.choice(raw)
        found: list[list[ValueSlice]] = [[] for _ in reader.paths]
        read_fields(event, 0, tree_of(reader.paths), found, MOST_WORK)
        assert reader.read(event) == found
        if len(reader.paths) == 1 and (value := reader.value(event)) is not None:
            ((kind, start, end),) = found[0]
            assert value == (kind, event[start:end])

"""What filters may cost: beyond the bounds the owners that need a value are named, and no others.

And whatever an event holds, its evaluation raises nothing else, and leaves nothing behind.
"""

import struct
from collections.abc import Hashable, Sequence
from functools import partial
from random import Random
from typing import Any

import bson
import pytest

from router.filters import conditions, field_walk
from router.filters.field_walk import (
    MOST_WORK,
    NESTED_UNIT_BYTES,
    UNIT_BYTES,
    Allowance,
    TooLargeError,
)
from router.filters.index import FilterIndex
from router.filters.match_compiler import Declined
from router.filters.stream_filter import compile_filter
from router.filters.values import key, number
from shard_client.bson.values import DECIMAL
from tests.filters.chance import Chance, document

Document = dict[str, Any]


def index_of(*matches: Document, **how: bool) -> FilterIndex[int]:
    index: FilterIndex[int] = FilterIndex()
    for owner, match in enumerate(matches):
        index.add(owner, compile_filter([{"$match": match}], **how))
    return index


def event(**fields: Any) -> bytes:
    return bson.encode({"operationType": "insert", "fullDocument": {"tenant": 1, **fields}})


MALFORMED = (ValueError, IndexError, struct.error)
"""What damaged events raise."""


SMALL = event(a=[1, 2])
LONG = list(range(MOST_WORK + 1))
WIDE = {str(n): n for n in range(MOST_WORK + 1)}
BIG = {"text": "x" * MOST_WORK * NESTED_UNIT_BYTES}
TEXT = "x" * (MOST_WORK // 10 * UNIT_BYTES)


@pytest.mark.parametrize(
    ("guilty", "fields"),
    [
        ([{"fullDocument.a": 5}, {"fullDocument.a": {"$gt": 5}}], {"a": LONG}),
        ([{"fullDocument.a.b": {"$exists": True}}], {"a": [{"c": 1}] * (MOST_WORK // 2 + 1)}),
        ([{"fullDocument.a.b": 1}, {"$nor": [{"fullDocument.a.b": 1}]}], {"a": WIDE}),
        ([{"fullDocument.a": {"b": 1}}], {"a": BIG}),
        ([{"fullDocument.a": {"$ne": {"b": 1}}}], {"a": BIG}),
        ([{"fullDocument.a": {"$in": [7, [1]]}}], {"a": [BIG]}),
        ([{"$and": [{"fullDocument.a": {"$regex": "^x"}}] * 11}], {"a": TEXT}),
        (
            [{"$nor": [{"fullDocument.a": {"$gt": n}} for n in range(100)]} for _ in range(20)],
            {"a": [-1] * (MOST_WORK // 1000)},
        ),
    ],
)
def test_only_the_filters_that_need_too_much_are_named(
    guilty: Sequence[Document], fields: Document
) -> None:
    innocent: list[Document] = [
        {"fullDocument.tenant": 1},
        {"fullDocument.tenant": {"$gte": 1}},
        {"fullDocument.missing": None, "operationType": "insert"},
    ]
    index = index_of(*guilty, *innocent)
    large = event(**fields)
    for _ in range(3):
        with pytest.raises(TooLargeError) as raised:
            index.route([SMALL, large, SMALL])
        assert raised.value.owners == set(range(len(guilty)))
    for owner in range(len(guilty)):
        index.remove(owner)
    events = [SMALL, large, SMALL]
    assert dict(index.route(events)) == dict.fromkeys(range(len(guilty), len(guilty) + 3), events)


@pytest.mark.parametrize(
    ("match", "fields"),
    [
        # What a value's type or length decides is decided without a look at the rest.
        ({"fullDocument.a": {"$ne": "b"}}, {"a": "x" * 1_000_000}),
        ({"fullDocument.a": {"$ne": 5}}, {"a": [BIG] * 100}),
        ({"fullDocument.a": {"$gt": "ab"}}, {"a": "b" * 1_000_000}),
        ({"fullDocument.tenant": 1}, {"a": LONG, "b": WIDE}),
        ({"fullDocument.tenant": {"$gt": 0}}, {"a": LONG, "b": WIDE}),
        ({"fullDocument.a": {"$not": {"$regex": "^y"}}}, {"a": "x" * 1_000_000}),
        ({"fullDocument.a": {"$type": "array"}}, {"a": LONG[: MOST_WORK // 3]}),
    ],
)
def test_large_events_cost_nothing_where_little_is_looked_at(
    match: Document, fields: Document
) -> None:
    events = [event(**fields) for _ in range(3)]
    assert dict(index_of(match).route(events)) == {0: events}


@pytest.mark.parametrize(
    "stage",
    [
        {"$project": {"fullDocument.a": 1}},
        {"$project": {"fullDocument.a.b": 1}},
        {"$unset": "fullDocument.a.b"},
    ],
)
def test_a_projection_is_bounded(stage: Document) -> None:
    stream_filter = compile_filter([stage])
    with pytest.raises(TooLargeError):
        stream_filter.project(event(a=LONG))
    assert stream_filter.project(event(a=LONG[:10]))


def test_a_filter_with_many_conditions_is_declined() -> None:
    ranges = [{"fullDocument.a": {"$gt": n}} for n in range(101)]
    assert compile_filter([{"$match": {"$or": ranges[:100]}}]).condition.tried == 100
    with pytest.raises(Declined, match="100 conditions"):
        compile_filter([{"$match": {"$or": ranges}}])


@pytest.mark.parametrize(
    ("match", "tried"),
    [
        ({"fullDocument.a": 1}, 0),
        ({"fullDocument.a": None}, 0),
        ({"operationType": "insert"}, 0),
        ({"fullDocument.a": 1, "fullDocument.b": {"$gt": 1}}, 0),
        ({"fullDocument.a": {"$ne": 1}}, 1),
        ({"fullDocument.a": {"$in": list(range(1001))}}, 1),
        ({"fullDocument.a": None, "fullDocument.b": {"$gt": 1}}, 2),
        ({"operationType": "insert", "fullDocument.b": {"$gt": 1, "$lt": 3}}, 3),
        ({"operationType": "insert", "ns.coll": "c", "fullDocument.b": None}, 0),
        ({"$or": [{"fullDocument.a": 1}, {"fullDocument.b": 2}]}, 0),
        ({"$or": [{"fullDocument.a": 1}, {"fullDocument.b": {"$gt": 2}}]}, 2),
        ({}, 0),
    ],
)
def test_conditions_that_every_event_costs_are_counted(match: Document, tried: int) -> None:
    assert compile_filter([{"$match": match}]).condition.tried == tried


UNDEFINED = document(b"\x03fullDocument\0" + document(b"\x06a\0"))
IN_ARRAY = document(b"\x03fullDocument\0" + document(b"\x04a\0" + document(b"\x060\0")))
NULLS = [event(a=None), event(), event(a=[None])]


@pytest.mark.parametrize("undefined_is_null", [True, False])
@pytest.mark.parametrize("match", [{"$eq": None}, {"$in": [None, 3]}, {"$not": {"$ne": None}}])
def test_null_equals_undefined_before_8_0_only(match: Document, undefined_is_null: bool) -> None:
    stages = [{"$match": {"fullDocument.a": match}}]
    index = index_of({"fullDocument.a": match}, undefined_is_null=undefined_is_null)
    events = [*NULLS, UNDEFINED, IN_ARRAY, event(a=1)]
    assert dict(index.route(events)) == {0: events[:5] if undefined_is_null else NULLS}
    one, other = (compile_filter(stages, undefined_is_null=each) for each in (True, False))
    assert one.identity != other.identity


def test_undefined_is_there_and_has_its_type() -> None:
    for match in ({"$exists": True}, {"$type": "undefined"}, {"$not": {"$type": "null"}}):
        for undefined_is_null in (True, False):
            index = index_of({"fullDocument.a": match}, undefined_is_null=undefined_is_null)
            assert dict(index.route([UNDEFINED])) == {0: [UNDEFINED]}


class _OwnError(Exception):
    """An exception that no filter raises by itself."""


@pytest.mark.parametrize("error", [TooLargeError, ValueError, _OwnError, MemoryError])
def test_nothing_is_left_behind_by_an_error(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = {"fullDocument.tenant": {"$gte": 0}, "fullDocument.a": 2}
    index = index_of({"fullDocument.tenant": 1}, {"fullDocument.tenant": {"$gt": 0}}, ranges)
    events = [event(a=n) for n in range(4)]
    expected = {0: events, 1: events, 2: [events[2]]}
    assert dict(index.route(events)) == expected
    broken = True

    def fails(*element: Any) -> Hashable:
        if broken:
            raise error
        return key(*element)

    monkeypatch.setattr(conditions, "key", fails)
    for _ in range(3):
        with pytest.raises(error):
            index.route(events)
    broken = False
    assert dict(index.route(events)) == expected
    with pytest.raises(MALFORMED):
        index.route([events[0], events[1][:30]])
    assert dict(index.route(events)) == expected


@pytest.mark.parametrize("seed", range(5))
def test_damaged_events_raise_malformed_only(seed: int) -> None:
    random = Random(seed)
    chance = Chance(random, repeated=True)
    index: FilterIndex[int] = FilterIndex()
    filters = {}
    while len(filters) < 20:
        try:
            stages = [{"$match": chance.filter()}, chance.projection()]
            filters[len(filters)] = compile_filter(stages)
        except Declined:
            continue
        index.add(len(filters) - 1, filters[len(filters) - 1])
    for _ in range(400):
        data = bytearray(bson.encode(chance.event()))
        for _ in range(random.randrange(1, 4)):
            data[random.randrange(4, len(data))] = random.randrange(256)
        try:
            for owner, (event,) in index.route([bytes(data)]):
                filters[owner].project(event)
        except MALFORMED:
            continue


def test_any_sixteen_bytes_are_a_decimal() -> None:
    random = Random(1)
    for _ in range(20_000):
        value: Any = number(random.randbytes(16), DECIMAL, 0)
        hash(value)
        assert value == value
        assert isinstance(value, tuple) or (value < 1.5) is not (value >= 1.5)


MOST_TIMES = 4
"""How far beyond the work for an event the search for the guilty paths may go."""


@pytest.mark.parametrize(
    ("matches", "data"),
    [
        ([{f"fullDocument.a.x{n}": 1} for n in range(1000)], event(a=[{}] * (MOST_WORK // 500))),
        (
            [{f"fullDocument.a.x.y{n}": 1} for n in range(1000)],
            event(a=[{"x": 1}] * (MOST_WORK // 500)),
        ),
        (
            [{"fullDocument.a": {"$in": [*range(999), n]}} for n in range(1000, 1100)],
            event(a=list(range(1000))),
        ),
        (
            [{"fullDocument.a": {"$gt": "x" * 50_000 + "z"}} for _ in range(100)],
            event(a=["x" * 50_000] * 100),
        ),
        (
            [{"fullDocument.a": {"$ne": "x" * 50_000}} for _ in range(100)],
            event(a=["y" * 50_000] * 100),
        ),
        (
            [{"$nor": [{"fullDocument.a.b": {"$gt": n}} for n in range(99)]} for _ in range(400)],
            event(a=[1]),
        ),
        ([{"fullDocument.a": "x"}], event(a="x" * (MOST_WORK + 1) * UNIT_BYTES)),
    ],
    ids=[
        "missing in documents",
        "missing in scalars",
        "filters found many times",
        "long operands of an order",
        "long operands of equality",
        "conditions on nothing",
        "a long string that is hashed",
    ],
)
def test_work_of_every_kind_counts(matches: Sequence[Document], data: bytes) -> None:
    filters = index_of(*matches)
    for _ in range(40):  # by walks and by layouts
        with pytest.raises(TooLargeError) as raised:
            filters.route([data])
        assert raised.value.owners == set(range(len(matches)))


def test_owners_of_paths_that_are_not_measured_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    walked = 0
    real = field_walk.value_end

    def count(data: bytes, kind: int, start: int) -> int:
        nonlocal walked
        walked += 1
        return real(data, kind, start)

    filters = index_of(*({f"fullDocument.a.x{n}": {"$ne": 1}} for n in range(3000)))
    monkeypatch.setattr(field_walk, "value_end", count)
    with pytest.raises(TooLargeError) as raised:
        filters.route([event(a=[{"y": 1}] * 1000)])
    assert raised.value.owners == set(range(3000))
    assert walked <= MOST_TIMES * MOST_WORK


def test_all_projections_of_an_event_share_an_allowance() -> None:
    large = event(a="x" * 1_000_000)
    copying = compile_filter([{"$unset": "fullDocument.tenant"}])
    allowance = Allowance()
    for _ in range(MOST_WORK * UNIT_BYTES // len(large) // 3):
        assert copying.project(large, allowance)
    with pytest.raises(TooLargeError):
        list(iter(partial(copying.project, large, allowance), b""))
    assert copying.project(large)

"""What filters may cost: beyond the bounds the owners that need a value are named, and no others.

And whatever an event holds, its evaluation raises nothing else, and leaves nothing behind.
"""

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument

from router.filters.conditions import OneOf
from router.filters.fields import MOST_WORK, NESTED_UNIT_BYTES, UNIT_BYTES, TooLargeError
from router.filters.index import FilterIndex
from router.filters.match_compiler import Declined
from router.filters.stream_filter import compile_filter
from router.filters.values import number
from shard_client.bson.values import DECIMAL
from tests.filters.chance import Chance, document, text
from tests.unit.router.filters.made_filters import Document, event, index_of

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
    ("operator", "operand", "met"),
    [
        ("$gt", "abc", ["abd", "abcd", "abc\0", "b"]),
        ("$gte", "abc", ["abc", "abd", "abcd", "abc\0", "b"]),
        ("$lt", "abc", ["", "ab", "abb", "abbb"]),
        ("$lte", "abc", ["", "ab", "abb", "abbb", "abc"]),
        ("$gt", "", ["ab", "abb", "abbb", "abc", "abd", "abcd", "abc\0", "b"]),
    ],
)
def test_strings_are_ordered_by_their_first_bytes(
    operator: str, operand: str, met: list[str]
) -> None:
    strings = ["", "ab", "abb", "abbb", "abc", "abd", "abcd", "abc\0", "b"]
    index = index_of({"fullDocument.a": {operator: operand}})
    routed = dict(index.route([event(a=each) for each in strings])).get(0, [])
    assert [bson.decode(each)["fullDocument"]["a"] for each in routed] == sorted(
        met, key=strings.index
    )


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
    assert compile_filter([{"$match": {"$or": ranges[:100]}}]).tried == 100
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
    assert compile_filter([{"$match": match}]).tried == tried


UNDEFINED = document(b"\x03fullDocument\0" + document(b"\x06a\0"))
IN_ARRAY = document(b"\x03fullDocument\0" + document(b"\x04a\0" + document(b"\x060\0")))
NULLS = [event(a=None), event(), event(a=[None])]


@pytest.mark.parametrize("undefined_is_null", [True, False])
@pytest.mark.parametrize("match", [{"$eq": None}, {"$in": [None, 3]}, {"$not": {"$ne": None}}])
def test_null_equals_undefined_before_8_0_only(match: Document, undefined_is_null: bool) -> None:
    stages = [{"$match": {"fullDocument.a": match}}]
    stream_filter = compile_filter(stages, undefined_is_null=undefined_is_null)
    index: FilterIndex[int] = FilterIndex()
    index.add(0, stream_filter)
    events = [*NULLS, UNDEFINED, IN_ARRAY, event(a=1)]
    assert dict(index.route(events)) == {0: events[:5] if undefined_is_null else NULLS}
    other = compile_filter(stages, undefined_is_null=not undefined_is_null)
    assert other.identity != stream_filter.identity


def test_undefined_is_there_and_has_its_type() -> None:
    for match in ({"$exists": True}, {"$type": "undefined"}, {"$not": {"$type": "null"}}):
        stages = [{"$match": {"fullDocument.a": match}}]
        for undefined_is_null in (True, False):
            index: FilterIndex[int] = FilterIndex()
            index.add(0, compile_filter(stages, undefined_is_null=undefined_is_null))
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
    meets = OneOf.meets
    broken = True

    def fails(condition: OneOf, fields: Any) -> bool:
        if broken:
            raise error
        return meets(condition, fields)

    monkeypatch.setattr(OneOf, "meets", fails)
    for _ in range(3):
        with pytest.raises(error):
            index.route(events)
    broken = False
    assert dict(index.route(events)) == expected
    with pytest.raises(MALFORMED):
        index.route([events[0], events[1][:30]])
    assert dict(index.route(events)) == expected


SIZES = {
    1: 8, 5: None, 6: 0, 7: 12, 8: 1, 9: 8, 10: 0, 16: 4, 17: 8, 18: 8, 19: 16, 127: 0, 255: 0,
}  # fmt: skip
"""The size of the values of each type that has one; None for binary data."""


def any_value(random: Random, depth: int = 0) -> tuple[int, bytes]:
    """Return a well-framed value of random bytes."""
    kind = random.choice([*SIZES, 2, 14, 13, 11, 12, 15, 3, 4, 3, 4])
    some = random.randbytes(random.randrange(6))
    size = SIZES.get(kind)
    if size is not None:
        return kind, random.randbytes(size)
    if kind in (2, 13, 14):
        return kind, text(some)
    if kind == 5:
        return kind, struct.pack("<iB", len(some), random.randrange(256)) + some
    if kind == 11:
        return kind, some.replace(b"\0", b"") + b"\0" + b"i\0"
    if kind == 12:
        return kind, text(some) + random.randbytes(12)
    if kind == 15:
        body = text(some) + any_document(random, depth + 1)
        return kind, struct.pack("<i", len(body) + 4) + body
    return kind, any_document(random, depth + 1)


def any_document(random: Random, depth: int) -> bytes:
    """Return a document with random names, some of them repeated, and random values."""
    elements = []
    for _ in range(random.randrange(4) if depth < 4 else 0):
        kind, value = any_value(random, depth)
        name = random.choice((b"a", b"b", b"c", b"0", b"7", b"", b"\xff\xfe"))
        elements.append(bytes([kind]) + name + b"\0" + value)
    return document(*elements)


def any_event(random: Random) -> bytes:
    """Return an event whose fields hold anything."""
    fields = [b"\x02operationType\0" + text(b"insert")]
    for name in (b"fullDocument", b"ns", b"documentKey", b"fullDocumentBeforeChange"):
        kind, value = any_value(random) if random.random() < 0.3 else (3, any_document(random, 0))
        fields.append(bytes([kind]) + name + b"\0" + value)
    return document(*fields)


@pytest.mark.parametrize("seed", range(20))
def test_any_well_framed_event_is_evaluated(seed: int) -> None:
    """No value of any type raises, and an index that has seen others gives the same result."""
    random = Random(seed)
    chance = Chance(random, repeated=True)
    filters = []
    while len(filters) < 40:
        stages = [{"$match": chance.filter()}]
        if random.random() < 0.3:
            stages.append(chance.projection())
        try:
            filters.append(compile_filter(stages))
        except Declined:
            continue
    index: FilterIndex[int] = FilterIndex()
    for owner, each in enumerate(filters):
        index.add(owner, each)
    for _ in range(60):
        data = any_event(random)
        routed = dict(index.route([data]))
        fresh: FilterIndex[int] = FilterIndex()
        for owner, each in enumerate(filters):
            fresh.add(owner, each)
        assert dict(fresh.route([data])) == routed
        for owner in routed:
            RawBSONDocument(filters[owner].project(data))


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

"""Extended JSON of fields with code, of keys, and of many documents together."""

import json
import random
from typing import Any

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, MinKey, Regex, Timestamp, json_util
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.objectid import ObjectId

from shard_client.bson.values import DOCUMENT
from spark_sink.events.slices import UNREADABLE, Slice, fields_of
from spark_sink.rows.extended_json import JsonColumns, canonical_json, relaxed_json
from spark_sink.rows.layouts import Values

INNER = Code("g", {"y": Code("h")})


@pytest.mark.parametrize("number", [1.5, float("nan")])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (DBRef("c", Code("f")), {"$ref": "c", "$id": {"$code": "f"}}),
        (
            Code("f", {"x": INNER}),
            {"$code": "f", "$scope": {"x": {"$code": "g", "$scope": {"y": {"$code": "h"}}}}},
        ),
        ([{"a": INNER}], [{"a": {"$code": "g", "$scope": {"y": {"$code": "h"}}}}]),
    ],
)
def test_code_within_references_and_scopes(value: Any, text: Any, number: float) -> None:
    field = fields_of(bson.encode({"v": {"value": value, "number": number}}))[b"v"]
    for to_json in (relaxed_json, canonical_json):
        assert json.loads(to_json(field) or "")["value"] == text


@pytest.mark.parametrize(
    "key",
    [
        {"_id": ObjectId("0123456789abcdef01234567")},
        {"tenant": 7, "_id": Int64(-(2**63))},
        {'é"': "a\nb\u2028\\", "_id": {"x": None, "y": {}}},
        {"_id": DBRef("c", 1)},
        {"_id": {"$id": 1, "$ref": "c"}},
        {"n": 1.5, "_id": [1, b"2"]},
    ],
)
def test_keys_are_canonical_extended_json(key: dict[str, Any]) -> None:
    field = fields_of(bson.encode({"v": key}))[b"v"]
    decoded = bson.decode(field.value)
    text = json_util.dumps(decoded, json_options=json_util.CANONICAL_JSON_OPTIONS)
    assert canonical_json(field) == text


VALUES: list[Any] = [
    0, -(2**31), Int64(2**63 - 1), "", "plain", "é\u2028", 'a"b\\\n', "\x7f", "😀", True, False,
    None,
    0.0, -0.0, 1.5, 1e16, 5e-324, float("nan"), float("-inf"), Decimal128("1.50"), Binary(b"x", 4),
    ObjectId("0123456789abcdef01234567"), *map(DatetimeMS, (0, -1, 1_700_000_000_120, 2**62)),
    Regex("a"), MinKey(), Timestamp(5, 6), Code("f"), Code("f", {"x": 1.5}), DBRef("c", 1),
    [], [1, 2], [1, "a"], [{"p": 1}, {"p": "x"}], [[1.5], []], {},
    {"x.y": {"é": 1}}, {"$ref": "c", "$id": 2},
]  # fmt: skip
DAMAGE = [0, 1, 2, 5, 0x80, 0xC3, 0xFF]


@pytest.mark.parametrize("canonical", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_many_documents_have_the_texts_of_each(seed: int, canonical: bool) -> None:
    chance, documents = random.Random(seed), []
    for _ in range(chance.randrange(1, 4)):
        names = chance.sample(["_id", "a", "é", "$ref", 'q"', "b.c"], chance.randrange(5))
        usual = {name: chance.choice(VALUES) for name in names}
        for _ in range(chance.choice([2, 30, 60])):
            rare = {name: chance.choice(VALUES) for name in names if chance.random() < 0.02}
            documents.append(bson.encode({**usual, **rare}))
    for _ in range(chance.choice([0, 0, 1, 3])):
        damaged = bytearray(chance.choice(documents))
        damaged[chance.randrange(4, len(damaged))] = chance.choice(DAMAGE)
        documents.append(bytes(damaged))
    chance.shuffle(documents)
    to_json = canonical_json if canonical else relaxed_json
    columns = JsonColumns(canonical=canonical)
    try:
        wanted = [to_json(Slice(DOCUMENT, each)) for each in documents]
    except UNREADABLE:
        with pytest.raises(UNREADABLE):
            columns.texts(Values.of(documents))
    else:
        assert columns.texts(Values.of(documents)).to_pylist() == wanted

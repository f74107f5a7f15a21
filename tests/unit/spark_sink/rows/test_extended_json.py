"""Extended JSON of fields that have code inside of other values."""

from __future__ import annotations

import json
from typing import Any

import bson
import pytest
from bson import Code, DBRef, json_util
from bson.int64 import Int64
from bson.objectid import ObjectId

from spark_sink.events.slices import fields_of
from spark_sink.rows.extended_json import canonical_json, object_id_of, relaxed_json

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
    identifier = json_util.dumps(decoded["_id"], json_options=json_util.CANONICAL_JSON_OPTIONS)
    assert object_id_of(field) == (
        identifier if list(key) == ["_id"] and isinstance(key["_id"], ObjectId) else None
    )

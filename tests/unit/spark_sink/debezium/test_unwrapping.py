"""Documents as the values of messages; tests/debezium compares them with the transform's own."""

import json
from typing import Any

import pytest
from bson import Binary, Code, Int64, MinKey, ObjectId, Regex
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.timestamp import Timestamp

from spark_sink.debezium.options import MessageOptions
from spark_sink.debezium.unwrapping import Unwrap
from spark_sink.errors import OptionError
from tests.unit.spark_sink.debezium.made_messages import event, messages


def unwrapped(*events: bytes, tombstones: bool = True, **properties: str) -> list[tuple[Any, Any]]:
    named = {name.replace("__", "."): text for name, text in properties.items()}
    unwrap = MessageOptions.of({"prefix": "p", "unwrap": named}).unwrap
    found = messages(*events, tombstones=tombstones, unwrap=unwrap)
    return [(key, value) for _, key, value in found]


def test_values_have_the_types_of_kafka_connect() -> None:
    document = {
        "_id": 1004,
        "o": ObjectId("64b64c3f5f1b2a0001020304"),
        "d": DatetimeMS(-5),
        "t": Timestamp(1_600_000_000, 3),
        "b": Binary(b"\0ab", 2),
        "n": Decimal128("1.10E+5"),
        "x": float("inf"),
        "r": Regex("a", "i"),
        "m": MinKey(),
        "c": Code("f()", {"y": 1}),
        "list": [{"a": 1}, {"b": Int64(2)}, "text"],
    }
    [(key, value)] = unwrapped(event("insert", fullDocument=document))
    assert key == {"id": 1004}
    assert value == {
        "_id": 1004,
        "o": "64b64c3f5f1b2a0001020304",
        "d": -5,
        "t": 1_600_000_000_000,
        "b": "AGFi",
        "n": "1.10E+5",
        "x": "Infinity",
        "r": {"regex": "a", "options": "i"},
        "m": {"$minKey": 1},
        "c": {"$code": "f()", "$scope": {"y": 1}},
        "list": [{"a": 1, "b": None}, {"a": None, "b": 2}, "text"],
    }


def test_arrays_keep_elements_whose_names_are_equal() -> None:
    inserted = event("insert", fullDocument={"_id": 1004, "list": ["a", "b"]})
    [(_, value)] = unwrapped(inserted.replace(b"\x021\0", b"\x020\0"))
    assert value["list"] == ["a", "b"]


def test_an_update_has_the_fields_that_were_set_and_the_id() -> None:
    description = {"updatedFields": {"a.b": 1, "l": [1, 2]}, "removedFields": ["z"]}
    update = event("update", updateDescription=description)
    assert unwrapped(update) == [({"id": 1004}, {"a.b": 1, "l": [1, 2], "_id": 1004})]
    flat = unwrapped(
        update, flatten__struct="true", flatten__struct__delimiter="-", array__encoding="document"
    )
    assert flat == [({"id": 1004}, {"a-b": 1, "l-_0": 1, "l-_1": 2, "_id": 1004})]


@pytest.mark.parametrize(
    ("mode", "values"),
    [
        ("drop", []),
        ("tombstone", [None]),
        ("rewrite", [{"__deleted": True, "__op": "d"}]),
        ("rewrite-with-tombstone", [{"__deleted": True, "__op": "d"}, None]),
        ("delete-to-tombstone", [None]),
    ],
)
def test_a_delete_in_each_mode(mode: str, values: list[Any]) -> None:
    given = {"delete__tombstone__handling__mode": mode, "add__fields": "op"}
    assert unwrapped(event("delete"), **given) == [({"id": 1004}, each) for each in values]
    image = event("delete", fullDocumentBeforeChange={"_id": 1004, "a": 1})
    with_image = [each and {"_id": 1004, "a": 1, **each} for each in values]
    assert unwrapped(image, **given) == [({"id": 1004}, each) for each in with_image]


def test_fields_of_the_envelope_can_be_added() -> None:
    inserted = event("insert", fullDocument={"_id": 1004})
    [(_, value)] = unwrapped(
        inserted, add__fields="op:o,source.ts_ms,db,ts_ms", add__fields__prefix="m."
    )
    assert json.loads(json.dumps(value)) == {
        "_id": 1004, "m.o": "c", "m.source_ts_ms": 1_700_000_000_005, "m.db": "inventory",
        "m.ts_ms": 1_800_000_000_123,
    }  # fmt: skip


@pytest.mark.parametrize(
    "properties",
    [{"add.headers": "op"}, {"drop.tombstones": "true"}, {"add.fields": "transaction.id"},
     {"add.fields": "nothing"}, {"delete.tombstone.handling.mode": "none"}],
    ids=str,
)  # fmt: skip
def test_what_is_not_made_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        MessageOptions.of({"prefix": "p", "unwrap": properties})


@pytest.mark.parametrize("other", [{"schemas": True}, {"transactions": True}])
def test_it_excludes_other_forms_of_messages(other: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="unwrap and outbox make messages without"):
        MessageOptions("p", unwrap=Unwrap(), **other)

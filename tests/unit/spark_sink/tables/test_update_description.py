"""Updates from their descriptions, and what ddl_events do to rows."""

from __future__ import annotations

import struct

import bson
import pytest
from bson import DBRef

from spark_sink.tables.ddl_events import DdlEvent, namespace_after
from spark_sink.tables.update_description import apply_update, updated


@pytest.mark.parametrize(
    ("before", "description", "after"),
    [
        ({"a": 1}, {"updatedFields": {"b": 2}}, {"a": 1, "b": 2}),
        ({"a": {"b": 1}}, {"updatedFields": {"a.c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": 1, "b": {"c": 1, "d": 2}}, {"removedFields": ["a", "b.c"]}, {"b": {"d": 2}}),
        ({}, {"removedFields": ["a.b"]}, {}),
        ({"a": [1, 2, 3]}, {"updatedFields": {"a.1": 9}}, {"a": [1, 9, 3]}),
        ({"a": {"1": 2}}, {"updatedFields": {"a.1": 9}}, {"a": {"1": 9}}),
        ({"a": [{"b": 1}]}, {"updatedFields": {"a.0.b": 2, "a.1": 5}}, {"a": [{"b": 2}, 5]}),
        ({"a": [1]}, {"updatedFields": {"a.3": 4}}, {"a": [1, None, None, 4]}),
        (
            {"a": [1, 2, 3, 4]},
            {"truncatedArrays": [{"field": "a", "newSize": 2}], "updatedFields": {"a.1": 7}},
            {"a": [1, 7]},
        ),
        (
            {"a": [{"b": [1, 2]}]},
            {"truncatedArrays": [{"field": "a.0.b", "newSize": 1}]},
            {"a": [{"b": [1]}]},
        ),
        (
            {"a.b": 1, "a": {"b": 1}},
            {"updatedFields": {"a.b": 2}, "disambiguatedPaths": {"a.b": ["a.b"]}},
            {"a.b": 2, "a": {"b": 1}},
        ),
        (
            {"a": [0, 0]},
            {"updatedFields": {"a.1": 2}, "disambiguatedPaths": {"a.1": ["a", 1]}},
            {"a": [0, 2]},
        ),
        # Names with dots, as MongoDB 6.0 describes them.
        ({"a.b": 1}, {"updatedFields": {"a.b": 2}}, {"a.b": 2}),
        ({"a": 1}, {"updatedFields": {"a.b": 2}}, {"a": 1, "a.b": 2}),
        ({"a.b": 1, "a": 3}, {"removedFields": ["a.b"]}, {"a": 3}),
        ({"a.b": {"c.d": 1}}, {"updatedFields": {"a.b.c.d": 2}}, {"a.b": {"c.d": 2}}),
        ({"a": {"b.c": {}}}, {"updatedFields": {"a.b.c.d": 2}}, {"a": {"b.c": {"d": 2}}}),
        (
            {"a": [{"b.c": [1, 2]}]},
            {"truncatedArrays": [{"field": "a.0.b.c", "newSize": 1}]},
            {"a": [{"b.c": [1]}]},
        ),
    ],
)
def test_an_update_matches_its_description(before, description, after):
    assert apply_update(before, description) == after


@pytest.mark.parametrize(
    ("before", "path", "message"),
    [
        ({"a": [5]}, "a.0.b", "no fields at the parent of a.0.b"),
        ({"a": []}, "a.0.b", "no fields at the parent of a.0.b"),
        ({"a": {"c": 1}, "a.b": 1}, "a.b", "the path a.b fits two fields"),
        ({"a": {}, "a.b": {}}, "a.b.c", "the path a.b.c fits two fields"),
    ],
)
def test_a_path_that_does_not_fit_the_document_is_refused(before, path, message):
    with pytest.raises(ValueError, match=message):
        apply_update(before, {"updatedFields": {path: 1}})


# Undefined, a symbol, a DBPointer, and text that is no UTF-8.
RARE = (
    b"\x06u\0", b"\x0eu\0\x02\0\0\0a\0", b"\x0cu\0\x02\0\0\0a\x00123456789012",
    b"\x02u\0\x03\0\0\0\xff\xfe\0",
)  # fmt: skip


@pytest.mark.parametrize("field", RARE)
def test_values_beside_an_update_stay_as_they_are(field):
    inner = struct.pack("<i", len(field) + 5) + field + b"\0"
    body = b"\x03v\0" + inner + b"\x10n\0\x01\0\0\0"
    document = struct.pack("<i", len(body) + 5) + body + b"\0"
    changed = updated(document, bson.encode({"updatedFields": {"n": 2}}))
    assert changed == document.replace(b"n\0\x01", b"n\0\x02")


def test_an_update_changes_fields_of_a_reference():
    before = {"of": {"a": 1, "$ref": "users", "$id": 1}, "to": DBRef("users", 1)}
    description = {"updatedFields": {"of.$id": 2, "to.$id": 3, "to.extra": 4}}
    after = {"of": {"a": 1, "$ref": "users", "$id": 2}, "to": DBRef("users", 3, extra=4)}
    assert updated(bson.encode(before), bson.encode(description)) == bson.encode(after)


RENAME = DdlEvent("20", "rename", "db", "a", "db", "b")
DROP = DdlEvent("30", "drop", "db", "b")
DROP_ALL = DdlEvent("40", "dropDatabase", "db")
END = DdlEvent("50", "snapshotEnd")


@pytest.mark.parametrize(
    ("token", "collection", "ddl_events", "place"),
    [
        ("10", "a", [RENAME], ("db", "b")),
        ("20", "a", [RENAME], ("db", "a")),
        ("25", "a", [RENAME], ("db", "a")),
        ("10", "b", [RENAME], None),
        ("25", "b", [RENAME], ("db", "b")),
        ("10", "a", [RENAME, DROP], None),
        ("25", "b", [RENAME, DROP], None),
        ("35", "b", [RENAME, DROP], ("db", "b")),
        ("35", "c", [DROP, DROP_ALL], None),
        ("45", "c", [DROP_ALL], ("db", "c")),
        ("45", "c", [DROP_ALL, END], None),
        ("50", "c", [DROP_ALL, END], ("db", "c")),
    ],
)
def test_rows_from_before_a_ddl_event_follow_it(token, collection, ddl_events, place):
    assert namespace_after(token, "db", collection, ddl_events) == place

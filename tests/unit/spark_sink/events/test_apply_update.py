"""Updates applied from their descriptions, and DDL events applied to rows."""

import random
import struct
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson.errors import InvalidBSON

from embedded.change_streams.update_description import describe_update
from embedded.storage.diff import compute_diff
from spark_sink.events.apply_update import updated
from spark_sink.events.runs import Run
from spark_sink.events.slices import fields_of
from spark_sink.events.update_descriptions import described
from spark_sink.tables.ddl_events import DdlEvent
from spark_sink.tables.keyed_rows import KeyedRows
from tests.spark.field_names import changed_by_chance, document_by_chance, doubled


def updated_as_dict(before: dict[str, Any], **description: Any) -> dict[str, Any]:
    return bson.decode(updated(bson.encode(before), bson.encode(description)))


SET, REMOVED, TRUNCATED = "updatedFields", "removedFields", "truncatedArrays"


SEVERAL = "may stand for several fields"


@pytest.mark.parametrize(
    ("before", "description", "result"),
    [
        ({}, {REMOVED: ["a.b"]}, {}),
        ({"a.b": 1}, {SET: {"a.b": 2}}, {"a.b": 2}),
        ({"a": 1}, {SET: {"a.b": 2}}, {"a": 1, "a.b": 2}),
        ({"a": "x"}, {SET: {"a": {"b": 1}, "a.c": 2}}, {"a": {"b": 1}, "a.c": 2}),
        ({"a.b": 1, "a": 3}, {REMOVED: ["a.b"]}, {"a": 3}),
        ({"a": {"b": 1}}, {REMOVED: ["a.b"]}, {"a": {}}),
        ({"a": [1]}, {SET: {"a.b": 2}}, {"a": [1], "a.b": 2}),
        (
            {"a": [{"b.c": [1, 2]}]},
            {TRUNCATED: [{"field": "a.0.b.c", "newSize": 1}]},
            {"a": [{"b.c": [1]}]},
        ),
        ({"a": {"b": 1}}, {SET: {"a.c": 2}}, SEVERAL),  # a new field may be a.c
        ({"a": {"b": 1}}, {SET: {"a.b": 2}}, SEVERAL),
        ({"a": [1]}, {SET: {"a.0": 2}}, SEVERAL),
        ({"a": {"b": 1}, "a.b": 1}, {REMOVED: ["a.b"]}, SEVERAL),
        (
            {"a": {"b": [1, 2]}, "a.b": [1, 2]},
            {TRUNCATED: [{"field": "a.b", "newSize": 1}]},
            SEVERAL,
        ),
        (
            {"a": {"b": [1, 2]}, "a.b": [1]},
            {TRUNCATED: [{"field": "a.b", "newSize": 1}]},
            {"a": {"b": [1]}, "a.b": [1]},
        ),
    ],
)
def test_a_path_without_its_parts_is_refused_unless_it_has_one_meaning(before, description, result):
    if isinstance(result, str):
        with pytest.raises(ValueError, match=result):
            updated_as_dict(before, **description)
    else:
        assert updated_as_dict(before, **description) == result


@pytest.mark.parametrize("before", [{"a": [5]}, {"a": []}, {"a": 5}, {}])
def test_a_path_that_does_not_fit_the_document_is_refused(before):
    with pytest.raises(ValueError, match=r"no fields at the parent of a\.0\.b"):
        updated_as_dict(before, updatedFields={"a.0.b": 1}, disambiguatedPaths={})


def test_fields_beside_those_that_occur_twice_change():
    two = (("a", 1), ("b", {"c": 1}), ("a", {"c": 2}))
    before, after = doubled(*two, ("n", 1)), doubled(*two, ("n", 7))
    assert updated(before.raw, bson.encode({SET: {"n": 7}})) == after.raw
    assert updated(after.raw, bson.encode({REMOVED: ["n"]})) == doubled(*two).raw
    for description in ({SET: {"a": 7}}, {REMOVED: ["a"]}, {SET: {"a.c": 7}}):
        with pytest.raises(ValueError, match="a occurs twice, and the event does not tell which"):
            updated(before.raw, bson.encode({**description, "disambiguatedPaths": {}}))


def test_updates_as_the_oplog_has_them_are_applied_exactly_whatever_the_names():
    """The embedded cluster makes the oplog here; test_field_names.py has that of real servers."""
    chance = random.Random(11)
    compared = doubles = 0
    for _ in range(3000):
        before = {"pad": "x" * 500, **document_by_chance(chance)}
        after = changed_by_chance(chance, before)
        diff = compute_diff(before, after)
        if diff is None or before == after:
            continue
        raw = {"operationType": "update", "rawUpdateDescription": {"$v": 2, "diff": diff}}
        event = bson.encode({"_id": {"_data": "8" * chance.randint(2, 4)}, **raw})
        insert = bson.encode({"_id": {"_data": "888"}, "operationType": "insert", "to": raw})
        [same, made] = described(Run(["1", "2"], [insert, event])).events
        assert same is insert
        description = bson.decode(made)["updateDescription"]
        expected = describe_update(diff, disambiguate=True)
        paths = expected.pop("disambiguatedPaths")
        if description.pop("disambiguatedPaths", {}) != paths:
            doubles += 1  # a path that occurs twice is listed twice
        assert description == expected
        result = updated(bson.encode(before), fields_of(made)[b"updateDescription"].value)
        assert bson.decode(result) == after, (before, diff)
        compared += 1
    assert compared > 1000
    assert doubles < compared / 20


@pytest.mark.parametrize("others", [{}, {"fullDocumentBeforeChange": {"rawUpdateDescription": {}}}])
def test_only_the_events_own_field_becomes_its_description(others: dict[str, Any]):
    raw = {"rawUpdateDescription": {"$v": 2, "diff": {"u": {"rawUpdateDescription": {"a.b": 1}}}}}
    event = {"_id": 1, "documentKey": {"_id": {"rawUpdateDescription": {}}}, **raw, **others}
    other = bson.encode({"fullDocument": {"rawUpdateDescription": {"diff": {}}}})
    [found, same] = described(Run(["1", "2"], [bson.encode(event), other])).events
    fields = {SET: {"rawUpdateDescription": {"a.b": 1}}, REMOVED: [], TRUNCATED: []}
    expected = {("updateDescription" if n in raw else n): v for n, v in event.items()}
    assert bson.decode(found) == {**expected, "updateDescription": fields}
    assert list(bson.decode(found)) == list(expected)
    assert same is other


@pytest.mark.parametrize("length", [4, 40, -4])
def test_an_update_that_is_not_whole_is_refused(length: int):
    """The size of a nested section is wrong, as in a damaged reply."""
    diff = {"u": {"n": 1}, "sa": {"u": {"text": "x"}}}
    event = bson.encode({"rawUpdateDescription": {"$v": 2, "diff": diff}})
    at = event.index(b"\x03sa\0") + 4
    size = struct.pack("<i", length)
    with pytest.raises(InvalidBSON):
        described(Run(["1"], [event[:at] + size + event[at + 4 :]]))


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
    changed = updated(document, bson.encode({SET: {"n": 2}}))
    assert changed == document.replace(b"n\0\x01", b"n\0\x02")


RENAME = DdlEvent("20", "rename", "db", "a", ("db", "b"))
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
    row = {"database": "db", "collection": collection, "key": "1", "token": token}
    batch = pa.RecordBatch.from_pylist([{**row, "documentKey": None, "document": b""}])
    [rows] = KeyedRows((), ddl_events).table_rows([batch])
    found = [(each["token"], each["place"]) for each in rows.to_pylist()]
    assert found == ([] if place is None else [(token, "\0".join((*place, "1")))])


def test_a_row_is_compared_only_with_the_ddl_events_of_its_collection(monkeypatch):
    """A batch may drop thousands of collections."""
    compared, result = [], DdlEvent.result

    def counted(event, *place):
        compared.append(event)
        return result(event, *place)

    monkeypatch.setattr(DdlEvent, "result", counted)
    drops = [DdlEvent(str(number), "drop", "db", f"c{number}") for number in range(1000, 2000)]
    row = {"database": "db", "key": "1", "token": "10", "documentKey": None, "document": b""}
    order = ["database", "collection", "key", "token", "documentKey", "document"]
    given = [{**row, "collection": name} for name in ("a", "c1500")]
    batch = pa.RecordBatch.from_pylist(given).select(order)
    [rows] = KeyedRows((), drops).table_rows([batch])
    assert (rows["place"].to_pylist(), compared) == (["db\0a\x001"], [drops[500]])

"""Events as rows: JSON columns, compared with bson's own encoder, and Arrow batches."""

import contextlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import json_util
from bson.binary import Binary
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import InvalidBSON
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

from shard_client.bson.values import DOCUMENT
from spark_sink.errors import StreamError
from spark_sink.events.runs import run_of
from spark_sink.events.slices import Slice, documents_in, field_of, fields_of
from spark_sink.rows import event_rows
from spark_sink.rows.event_rows import EventRows
from spark_sink.rows.extended_json import canonical_json, relaxed_json
from spark_sink.rows.layouts import Values, all_layouts_of
from spark_sink.rows.typed_documents import TypedDocuments
from tests.doubles.event_history import event_token, runs_of
from tests.unit.spark_sink.documents import MONGO_VALUES, documents


def raw(document) -> RawBSONDocument:
    return RawBSONDocument(bson.encode(document))


def reference(document, options) -> object:
    codec = CodecOptions(tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO)
    return json.loads(
        json_util.dumps(bson.decode(bson.encode(document), codec), json_options=options)
    )


@settings(max_examples=30)
@given(documents)
@example({"infinite": float("inf"), "none": float("nan"), "n": None})
def test_json_columns_are_extended_json(document):
    for each in (document, MONGO_VALUES | document):
        relaxed = reference(each, json_util.RELAXED_JSON_OPTIONS)
        canonical = reference(each, json_util.CANONICAL_JSON_OPTIONS)
        assert json.loads(relaxed_json(Slice(DOCUMENT, bson.encode(each)))) == relaxed
        assert json.loads(canonical_json(Slice(DOCUMENT, bson.encode(each)))) == canonical


def test_the_json_is_the_same_without_orjson():
    document = Slice(DOCUMENT, bson.encode(MONGO_VALUES))
    with_orjson = relaxed_json(document)
    script = (
        "import sys; sys.modules['orjson'] = None\n"
        "from spark_sink.rows.extended_json import relaxed_json\n"
        "from spark_sink.events.slices import Slice\n"
        "data = sys.stdin.buffer.read()\n"
        "sys.stdout.buffer.write(relaxed_json(Slice(3, data)).encode())"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=document.value, capture_output=True, check=True)
    assert done.stdout.decode() == with_orjson


@given(documents)
def test_slices_are_the_document_s_fields(document):
    encoded = bson.encode(document | MONGO_VALUES)
    fields = fields_of(encoded)
    codec = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
    whole = bson.decode(encoded, codec)
    assert [name.decode() for name in fields] == list(whole)
    for name, field in fields.items():
        if field.kind != 0x01:  # NaN is not equal to itself
            assert repr(bson.decode(field.wrapped(), codec)["v"]) == repr(whole[name.decode()])


@given(st.data())
def test_damaged_documents_raise_invalid_bson_only(data):
    encoded = bytearray(bson.encode(MONGO_VALUES))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(4, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidBSON):
        fields_of(bytes(encoded))


def test_a_row_has_the_event_s_fields():
    event = raw(
        {
            "_id": {"_data": event_token(1_700_000_000, 7)},
            "operationType": "update",
            "clusterTime": Timestamp(1_700_000_000, 7),
            "wallTime": datetime(2023, 11, 14, 22, 13, 20, 5000, tzinfo=UTC),
            "ns": {"db": "shop", "coll": "orders"},
            "documentKey": {"_id": 1},
            "updateDescription": {"updatedFields": {"n": 2}, "removedFields": []},
            "lsid": {"id": 5},
            "txnNumber": Int64(3),
            "to": {"db": "shop", "coll": "archive"},
            "splitEvent": {"fragment": 1, "of": 2},
        }
    )
    codec = CodecOptions(
        document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS
    )
    event = RawBSONDocument(event.raw, codec)
    [batch] = EventRows().batches(runs_of([event]), shard="shard0")
    [row] = batch.to_pylist()
    assert row == {
        "token": event_token(1_700_000_000, 7),
        "operationType": "update",
        "clusterTime": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "clusterTimeOrdinal": 7,
        "wallTime": datetime(2023, 11, 14, 22, 13, 20, 5000, tzinfo=UTC),
        "namespace": "shop.orders",
        "database": "shop",
        "collection": "orders",
        "documentKey": '{"_id":1}',
        "fullDocument": None,
        "fullDocumentBeforeChange": None,
        "updateDescription": '{"updatedFields":{"n":2},"removedFields":[]}',
        "event": event.raw,
        "op": "u",
        "snapshot": False,
        "shard": "shard0",
        "lsid": '{"id":5}',
        "txnNumber": 3,
        "to": "shop.archive",
        "splitEvent": {"fragment": 1, "of": 2},
    }


def test_a_pipeline_may_remove_all_but_the_token():
    event = raw({"_id": {"_data": event_token(1, 1)}, "ns": 5})
    [batch] = EventRows().batches(runs_of([event]))
    [row] = batch.to_pylist()
    found = {name for name, value in row.items() if value is not None}
    assert found == {"token", "event", "snapshot"}


def unreadable(number: int) -> RawBSONDocument:
    """An event whose document no driver decodes: subtype 2 with a wrong size within."""
    event = {
        "_id": {"_data": event_token(1, number)},
        "operationType": "insert",
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": number},
        "fullDocument": {"_id": number, "b": Binary(b"\x63\0\0\0ab", 0)},
    }
    found = bson.encode(event).replace(b"\x06\0\0\0\0\x63", b"\x06\0\0\0\x02\x63")
    return RawBSONDocument(found)


@pytest.mark.parametrize("size", [3, 100])
def test_an_event_that_cannot_be_read_fails_or_has_no_op(size: int) -> None:
    fields = {"operationType": "insert", "fullDocument": {"n": 1}}
    events = [raw({"_id": {"_data": event_token(1, n)}, **fields}) for n in range(size)]
    bad = {1, size // 2}
    for number in bad:
        events[number] = unreadable(number)
    with pytest.raises(StreamError, match=r"event of shop\.orders .*=all.*key .*, token 82"):
        list(EventRows().batches(runs_of(events)))
    [batch] = EventRows(tolerant=True).batches(runs_of(events))
    assert batch["event"].to_pylist() == [bytes(each.raw) for each in events]
    lacking = {n for n, op in enumerate(batch["op"].to_pylist()) if op is None}
    assert lacking == bad
    row = batch.slice(1, 1).to_pylist()[0]
    assert (row["operationType"], row["namespace"]) == ("insert", "shop.orders")
    assert (row["documentKey"], row["fullDocument"]) == ('{"_id":1}', None)
    [batch] = EventRows(raw_documents=True).batches(runs_of(events))
    assert batch["op"].to_pylist() == ["c"] * size


def test_batches_are_bounded_in_rows_and_bytes(monkeypatch):
    monkeypatch.setattr(event_rows, "ROWS_PER_BATCH", 3)
    monkeypatch.setattr(event_rows, "BYTES_PER_BATCH", 1000)
    small = [raw({"_id": {"_data": event_token(1, n)}}) for n in range(1, 8)]
    large = [raw({"_id": {"_data": event_token(2, n)}, "pad": "x" * 1000}) for n in range(1, 3)]
    batches = list(EventRows().batches(runs_of(small + large)))
    assert [batch.num_rows for batch in batches] == [3, 3, 2, 1]


def test_reading_stops_once_the_wanted_field_is_found():
    document = bson.encode({"_id": 1, "s": 2, "n": 3})
    damaged = document[:-7] + b"\xee" + document[-6:]
    assert field_of(damaged, b"s") == fields_of(document)[b"s"]
    assert field_of(document, b"absent") is None
    array = fields_of(bson.encode({"": [{"n": n} for n in range(1001)]}))[b""].value
    assert documents_in(array, 0, len(array)) == [bson.encode({"n": n}) for n in range(1001)]
    for size in (-16, 0, 4, 10_000):  # of the first document
        broken = array[:7] + size.to_bytes(4, "little", signed=True) + array[11:40]
        with pytest.raises(InvalidBSON):
            documents_in(broken, 0, len(broken))


SCHEMA = StructType().add("_id", StringType()).add("n", LongType())

namespaces = st.sampled_from([{"db": "shop", "coll": "orders"}, {"db": "shop"}, 5, None])
contents = st.sampled_from(
    [{"_id": ObjectId("0123456789abcdef01234567")}, {"n": 1.5, "é": "x"}, {"n": "no"}, [1], None]
)
layouts = st.fixed_dictionaries(
    {},
    optional={
        "operationType": st.sampled_from(["insert", "update", "drop", "read", 7]),
        "clusterTime": st.sampled_from([Timestamp(2**32 - 1, 2**32 - 1), Int64(9)]),
        "wallTime": st.just(datetime(1960, 1, 1, tzinfo=UTC)),
        "fullDocument": contents,
        "ns": namespaces,
        "documentKey": contents,
        "fullDocumentBeforeChange": contents,
        "updateDescription": contents,
        "lsid": contents,
        "txnNumber": st.sampled_from([5, Int64(2**40), 2.5]),
        "to": namespaces,
        "splitEvent": st.sampled_from([{"fragment": 1, "of": 2}, 3]),
        "rare": st.just(Regex("a")),
        "binary": st.binary(max_size=3),
    },
)


def both_ways(rows: EventRows, events: list[bytes]) -> tuple[list[Any], list[Any]]:
    """Return the rows of the events as one batch, and those of batches of a single event."""
    [together] = rows.batches([run_of(events)], "s0")
    singly = [batch for e in events for batch in rows.batches([run_of([e])], "s0")]
    return together.to_pylist(), [row for batch in singly for row in batch.to_pylist()]


def rows_of(form: str) -> EventRows:
    if form == "typed":
        return EventRows(typed=TypedDocuments(SCHEMA))
    return EventRows(raw_documents=form == "raw", canonical=form == "canonical")


@pytest.mark.parametrize("form", ["json", "canonical", "raw", "typed"])
@settings(max_examples=15)
@given(st.lists(layouts, min_size=1, max_size=4), st.randoms())
def test_rows_made_together_equal_rows_made_singly(form, found, random):
    events = [fields for number, fields in enumerate(found) for _ in range(3 + number)]
    random.shuffle(events)
    encoded = [
        bson.encode({"_id": {"_data": event_token(1, number)}} | fields)
        for number, fields in enumerate(events)
    ]
    together, singly = both_ways(rows_of(form), encoded)
    assert together == singly


def test_many_namespaces_are_distinguished():
    events = [
        bson.encode({"_id": {"_data": event_token(1, n)}, "ns": {"db": "shop", "coll": f"c{n}"}})
        for n in range(200)
    ]
    together, _ = both_ways(rows_of("raw"), events)
    assert [row["namespace"] for row in together] == [f"shop.c{n}" for n in range(200)]


@given(st.data())
def test_damaged_events_are_refused_together_as_alone(data):
    whole = bson.encode({"_id": {"_data": event_token(1, 1)}, "a": "text", "b": {"c": 1}, "d": 5})
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(len(whole) - 45, len(whole) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    events = [whole, whole, bytes(damaged)]
    try:
        expected = [fields_of(each) for each in events]
    except InvalidBSON:
        with pytest.raises(InvalidBSON):
            all_layouts_of(Values.of(events))
        return
    for layout in all_layouts_of(Values.of(events)):
        for name in layout.fields:
            assert layout.fields[name].slices() == [expected[row][name] for row in layout.rows]


def test_keys_of_a_run_are_those_of_its_events():
    plain = [{"_id": {"_data": event_token(1, n).lower()}, "n": "x" * (n % 2)} for n in range(9)]
    longer = {"_id": {"_data": event_token(2, 1, "46")}}
    with_bits = {"_id": {"_data": event_token(2, 2), "_typeBits": b"\x01"}}
    for found in (plain, [*plain, longer], [*plain, with_bits], [longer, *plain], []):
        events = [bson.encode(each) for each in found]
        assert run_of(events).keys == [each["_id"]["_data"].upper() for each in found]

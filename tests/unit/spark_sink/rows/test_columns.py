"""Rows of many events together are those of each by itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson.errors import InvalidBSON
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

from spark_sink.events.runs import run_of, sort_key
from spark_sink.events.slices import fields_of
from spark_sink.rows.event_rows import EventRows
from spark_sink.rows.layouts import JoinedEvents, all_layouts_of
from spark_sink.rows.typed_documents import TypedDocuments
from tests.doubles.event_history import event_token

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
    documents = list(map(RawBSONDocument, events))
    [together] = rows.arrow_batches(documents, "s0")
    singly = [batch for each in documents for batch in rows.arrow_batches([each], "s0")]
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
            all_layouts_of(JoinedEvents(events))
        return
    for layout in all_layouts_of(JoinedEvents(events)):
        for name in layout.fields:
            slices = [expected[row][name] for row in layout.rows]
            assert layout.slices(name) == slices


def test_keys_of_a_run_are_those_of_its_events():
    plain = [{"_id": {"_data": event_token(1, n).lower()}, "n": "x" * (n % 2)} for n in range(9)]
    longer = {"_id": {"_data": event_token(2, 1, "46")}}
    with_bits = {"_id": {"_data": event_token(2, 2), "_typeBits": b"\x01"}}
    for found in (plain, [*plain, longer], [*plain, with_bits], [longer, *plain], []):
        events = [RawBSONDocument(bson.encode(each)) for each in found]
        run = run_of(events)
        assert run.keys == [sort_key(each) for each in events]
        assert run.events == [each.raw for each in events]

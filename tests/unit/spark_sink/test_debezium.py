"""Rows as Debezium's messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import bson
import pyarrow as pa
import pytest
from bson import Binary, Int64, ObjectId, json_util
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.timestamp import Timestamp
from hypothesis import given

from spark_sink.debezium import VERSION, _Messages
from spark_sink.heartbeats import Heartbeat
from tests.doubles.event_history import event_token
from tests.unit.spark_sink.test_event_rows import MONGO_VALUES, documents

STRICT = json_util.JSONOptions(
    json_mode=json_util.JSONMode.LEGACY,
    strict_number_long=True,
    datetime_representation=json_util.DatetimeRepresentation.LEGACY,
)
NOW = 1_800_000_000_123_456_789
LSID = {"id": Binary.from_uuid(UUID(int=7), UuidRepresentation.STANDARD), "uid": Binary(b"u")}


def event(kind: str, identifier: Any = 1004, **fields: Any) -> bytes:
    return bson.encode(
        {
            "_id": {"_data": event_token(1_700_000_000, 7)},
            "operationType": kind,
            "clusterTime": Timestamp(1_700_000_000, 7),
            "wallTime": datetime(2023, 11, 14, 22, 13, 20, 5000, tzinfo=UTC),
            "ns": {"db": "inventory", "coll": "customers"},
            "documentKey": {"_id": identifier},
            **fields,
        }
    )


def messages(*events: bytes, **more: Any) -> list[tuple[str, Any, Any]]:
    batch = pa.RecordBatch.from_pydict({"event": list(events), "shard": ["rs0"] * len(events)})
    make = _Messages("fulfillment", **{"tombstones": True, **more}, clock=lambda: NOW)
    rows = [row for each in make([batch]) for row in each.to_pylist()]
    return [
        (row["topic"], json.loads(row["key"]), row["value"] and json.loads(row["value"]))
        for row in rows
    ]


def test_an_update_has_every_field_of_the_envelope():
    [(topic, key, value)] = messages(
        event(
            "update",
            fullDocument={"_id": Int64(1004), "name": "Anne Marie"},
            fullDocumentBeforeChange={"_id": Int64(1004), "name": "unknown"},
            updateDescription={
                "updatedFields": {"name": "Anne Marie"},
                "removedFields": [],
                "truncatedArrays": [{"field": "a", "newSize": 2}],
            },
            lsid=LSID,
            txnNumber=Int64(1),
        )
    )
    assert (topic, key) == ("fulfillment.inventory.customers", {"id": "1004"})
    assert value == {
        "before": '{"_id": {"$numberLong": "1004"}, "name": "unknown"}',
        "after": '{"_id": {"$numberLong": "1004"}, "name": "Anne Marie"}',
        "updateDescription": {
            "removedFields": None,
            "updatedFields": '{"name": "Anne Marie"}',
            "truncatedArrays": [{"field": "a", "size": 2}],
        },
        "source": {
            "version": VERSION,
            "connector": "mongodb",
            "name": "fulfillment",
            "ts_ms": 1_700_000_000_000,
            "ts_us": 1_700_000_000_000_000,
            "ts_ns": 1_700_000_000_000_000_000,
            "snapshot": False,
            "db": "inventory",
            "rs": "rs0",
            "collection": "customers",
            "ord": 7,
            "lsid": '{"id": {"$binary": "AAAAAAAAAAAAAAAAAAAABw==", "$type": "04"}, '
            '"uid": {"$binary": "dQ==", "$type": "00"}}',
            "txnNumber": 1,
            "wallTime": 1_700_000_000_005,
        },
        "op": "u",
        "ts_ms": 1_800_000_000_123,
        "ts_us": 1_800_000_000_123_456,
        "ts_ns": NOW,
        "transaction": None,
    }


@pytest.mark.parametrize(
    ("identifier", "text"),
    [
        (1234, "1234"),
        (12.34, "12.34"),
        ("1234", '"1234"'),
        ({"hi": "kafka", "nums": [10.0]}, '{"hi": "kafka", "nums": [10.0]}'),
        (ObjectId("596e275826f08b2730779e1f"), '{"$oid": "596e275826f08b2730779e1f"}'),
        (Binary(b"kafka", 0), '{"$binary": "a2Fma2E=", "$type": "00"}'),
    ],
)
def test_keys_are_in_strict_extended_json(identifier, text):
    [(_, key, _)] = messages(event("insert", identifier, fullDocument={"_id": 1}))
    assert key == {"id": text}


def test_a_delete_is_followed_by_a_tombstone():
    deleted, tombstone = messages(event("delete"))
    assert (deleted[2]["op"], deleted[2]["after"]) == ("d", None)
    assert tombstone == (*deleted[:2], None)
    assert len(messages(event("delete"), tombstones=False)) == 1


@pytest.mark.parametrize(("kind", "told"), [("incremental", "incremental"), ("blocking", True)])
def test_a_row_of_an_incremental_snapshot_says_so(kind, told):
    [(_, _, value)] = messages(event("read", fullDocument={"_id": 1004}, signal={"type": kind}))
    assert (value["op"], value["source"]["snapshot"]) == ("r", told)


def test_a_snapshots_row_is_a_read():
    [(_, _, value)] = messages(event("read", fullDocument={"_id": 1004}))
    assert (value["op"], value["source"]["snapshot"]) == ("r", True)


def test_transactions_have_a_begin_an_end_and_orders():
    def write(number: int, coll: str) -> bytes:
        ns = {"db": "inventory", "coll": coll}
        return event("insert", fullDocument={}, ns=ns, lsid=LSID, txnNumber=Int64(number))

    found = messages(write(1, "a"), write(1, "b"), write(1, "a"), write(2, "a"), transactions=True)
    name = f"{UUID(int=7).hex}:1"
    boundaries = [value for topic, _, value in found if topic == "fulfillment.transaction"]
    assert [each["status"] for each in boundaries] == ["BEGIN", "END", "BEGIN", "END"]
    assert boundaries[0] == {
        "status": "BEGIN", "id": name, "event_count": None, "data_collections": None,
    }  # fmt: skip
    assert boundaries[1]["event_count"] == 3
    assert boundaries[1]["data_collections"] == [
        {"data_collection": "inventory.a", "event_count": 2},
        {"data_collection": "inventory.b", "event_count": 1},
    ]
    places = [value["transaction"] for topic, _, value in found if value not in boundaries]
    assert [(each["total_order"], each["data_collection_order"]) for each in places] == [
        (1, 1), (2, 1), (3, 2), (1, 1),
    ]  # fmt: skip
    assert found[0][0] == "fulfillment.transaction"


@given(documents)
def test_documents_are_texts_in_strict_extended_json(document):
    document = {**MONGO_VALUES, "more": document}
    codec = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
    decoded = bson.decode(bson.encode(document), codec)
    [(_, _, value)] = messages(event("insert", fullDocument=document))
    assert value["after"] == json_util.dumps(decoded, json_options=STRICT)


def test_a_heartbeat_has_a_topic_of_its_own():
    beat = bytes(Heartbeat(Timestamp(1_700_000_000, 7)).event().raw)
    value = {"ts_ms": NOW // 1_000_000}
    key = {"serverName": "fulfillment"}
    assert messages(beat) == [("__debezium-heartbeat.fulfillment", key, value)]
    assert messages(beat, heartbeat_prefix="beats") == [("beats.fulfillment", key, value)]

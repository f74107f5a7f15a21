"""Events and the messages that are made of them."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import bson
import pyarrow as pa
from bson import Binary
from bson.binary import UuidRepresentation
from bson.timestamp import Timestamp

from spark_sink.debezium.message_batches import Messages, WithTransactions
from spark_sink.debezium.options import MessageOptions
from tests.doubles.event_history import event_token

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


def made(options: MessageOptions, *events: bytes) -> list[tuple[str, Any, Any]]:
    """Return topic, key and value of the messages of events, as Spark's tasks make them."""
    tokens = [f"{index:06}" for index in range(len(events))]
    batch = pa.RecordBatch.from_pydict({"event": list(events), "token": tokens})
    found = Messages(options, clock=lambda: NOW)([batch])
    if options.transactions:
        found = WithTransactions(options)(reversed(list(found)))
    return [tuple(row.values()) for each in found for row in each.to_pylist()]


def messages(*events: bytes, **more: Any) -> list[tuple[str, Any, Any]]:
    return [
        (topic, json.loads(key), value and json.loads(value))
        for topic, key, value in made(MessageOptions("fulfillment", **more), *events)
    ]

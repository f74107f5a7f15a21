"""The schema part of Debezium's messages, as Kafka Connect's JSON converter writes it.

With `schemas.enable` a key or a value is an object of `schema` and `payload`. A schema depends on
the topic alone, since documents are texts.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.debezium.options import MessageOptions

_CACHED_TOPICS = 10_000
_SNAPSHOTS = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"


def _type(kind: str, *, optional: bool = False, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": optional, **more}


def _struct(fields: dict[str, Any], *, optional: bool = False, **more: Any) -> dict[str, Any]:
    named = [{**field, "field": name} for name, field in fields.items()]
    return {"type": "struct", "fields": named, "optional": optional, **more}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "optional": True}


_TEXT, _LONG = _type("string"), _type("int64")
_MAYBE_TEXT, _MAYBE_LONG = _type("string", optional=True), _type("int64", optional=True)
_DOCUMENT = _type("string", optional=True, name="io.debezium.data.Json", version=1)
_TRUNCATED = _struct(
    {"field": _TEXT, "size": _type("int32")},
    name="io.debezium.connector.mongodb.changestream.truncatedarray",
    version=1,
)
_DESCRIPTION = _struct(
    {
        "removedFields": _array(_TEXT),
        "updatedFields": _DOCUMENT,
        "truncatedArrays": _array(_TRUNCATED),
    },
    optional=True,
    name="io.debezium.connector.mongodb.changestream.updatedescription",
    version=1,
)
_SNAPSHOT = _type(
    "string",
    optional=True,
    name="io.debezium.data.Enum",
    version=1,
    parameters={"allowed": _SNAPSHOTS},
    default="false",
)
_SOURCE = _struct(
    {
        "version": _TEXT, "connector": _TEXT, "name": _TEXT, "ts_ms": _LONG,
        "snapshot": _SNAPSHOT, "db": _TEXT, "sequence": _MAYBE_TEXT, "ts_us": _MAYBE_LONG,
        "ts_ns": _MAYBE_LONG, "collection": _TEXT, "ord": _type("int32"), "lsid": _MAYBE_TEXT,
        "txnNumber": _MAYBE_LONG, "wallTime": _MAYBE_LONG,
    },
    name="io.debezium.connector.mongo.Source",
    version=1,
)  # fmt: skip
SOURCE_FIELDS = frozenset(each["field"] for each in _SOURCE["fields"])
"""The names of the fields of a message's source."""
_PLACE = _struct(
    {"id": _TEXT, "total_order": _LONG, "data_collection_order": _LONG},
    optional=True,
    name="event.block",
    version=1,
)
_CHANGE = (
    _struct({"id": _TEXT}),
    _struct(
        {
            "before": _DOCUMENT, "after": _DOCUMENT, "updateDescription": _DESCRIPTION,
            "source": _SOURCE, "op": _MAYBE_TEXT, "ts_ms": _MAYBE_LONG, "transaction": _PLACE,
        }
    ),
)  # fmt: skip
_HEARTBEAT = (
    _struct({"serverName": _TEXT}, name="io.debezium.connector.common.ServerNameKey", version=1),
    _struct({"ts_ms": _LONG}, name="io.debezium.connector.common.Heartbeat", version=1),
)
_COUNT = _struct(
    {"data_collection": _TEXT, "event_count": _LONG},
    optional=True,
    name="event.collection",
    version=1,
)
_BOUNDARY = (
    _struct({"id": _TEXT}, name="io.debezium.connector.common.TransactionMetadataKey", version=1),
    _struct(
        {
            "status": _TEXT, "id": _TEXT, "event_count": _MAYBE_LONG,
            "data_collections": _array(_COUNT), "ts_ms": _LONG,
        },
        name="io.debezium.connector.common.TransactionMetadataValue",
        version=1,
    ),
)  # fmt: skip


def connect_schemas(options: MessageOptions, topic: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schemas of a topic's keys and of its values, as JSON's values."""
    if topic == options.boundaries:
        return _BOUNDARY
    if topic == options.heartbeats:
        return _HEARTBEAT
    key, value = _CHANGE
    return {**key, "name": f"{topic}.Key"}, {**value, "name": f"{topic}.Envelope"}


@lru_cache(_CACHED_TOPICS)
def _heads(options: MessageOptions, topic: str) -> tuple[str, str]:
    """Return what precedes the payload of a topic's keys and of its values."""
    key, value = (
        f'{{"schema":{json.dumps(each, separators=(",", ":"))},"payload":'
        for each in connect_schemas(options, topic)
    )
    return key, value


def with_schemas(messages: pa.RecordBatch, options: MessageOptions) -> pa.RecordBatch:
    """Return messages with the columns topic, key and value whose texts have their schemas."""
    topics = messages.column("topic").dictionary_encode()
    found = [_heads(options, topic) for topic in topics.dictionary.to_pylist()]
    columns = [messages.column("topic")]
    for index, name in enumerate(("key", "value")):
        heads = pa.array([each[index] for each in found], pa.string()).take(topics.indices)
        columns.append(pc.binary_join_element_wise(heads, messages.column(name), "}", ""))
    return pa.RecordBatch.from_arrays(columns, names=["topic", "key", "value"])

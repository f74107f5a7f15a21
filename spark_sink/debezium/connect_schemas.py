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

from spark_sink.debezium.envelope import ENVELOPE_SCHEMA, LONG, MAYBE_LONG, TEXT, array, struct
from spark_sink.debezium.options import MessageOptions

_CACHED_TOPICS = 10_000
_CHANGE_KEY = struct({"id": TEXT})
_HEARTBEAT = (
    struct({"serverName": TEXT}, name="io.debezium.connector.common.ServerNameKey", version=1),
    struct({"ts_ms": LONG}, name="io.debezium.connector.common.Heartbeat", version=1),
)
_COUNT = struct(
    {"data_collection": TEXT, "event_count": LONG},
    optional=True,
    name="event.collection",
    version=1,
)
_BOUNDARY = (
    struct({"id": TEXT}, name="io.debezium.connector.common.TransactionMetadataKey", version=1),
    struct(
        {
            "status": TEXT, "id": TEXT, "event_count": MAYBE_LONG,
            "data_collections": array(_COUNT), "ts_ms": LONG,
        },
        name="io.debezium.connector.common.TransactionMetadataValue",
        version=1,
    ),
)  # fmt: skip


def connect_schemas(options: MessageOptions, topic: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schemas of a topic's keys and of its values, as JSON's values."""
    if topic == options.topic_of_boundaries:
        return _BOUNDARY
    if topic == options.topic_of_heartbeats:
        return _HEARTBEAT
    value = {**ENVELOPE_SCHEMA, "name": f"{topic}.Envelope"}
    return {**_CHANGE_KEY, "name": f"{topic}.Key"}, value


@lru_cache(_CACHED_TOPICS)
def _heads(options: MessageOptions, topic: str) -> tuple[str, str]:
    """Return what precedes the payload of a topic's keys and of its values."""
    key, value = (
        f'{{"schema":{json.dumps(schema, separators=(",", ":"))},"payload":'
        for schema in connect_schemas(options, topic)
    )
    return key, value


def with_schemas(messages: pa.RecordBatch, options: MessageOptions) -> pa.RecordBatch:
    """Return messages with the columns topic, key and value whose texts have their schemas."""
    topics = messages.column("topic").dictionary_encode()
    pairs = [_heads(options, topic) for topic in topics.dictionary.to_pylist()]
    columns = [messages.column("topic")]
    for index, name in enumerate(("key", "value")):
        heads = pa.array([pair[index] for pair in pairs], pa.string()).take(topics.indices)
        columns.append(pc.binary_join_element_wise(heads, messages.column(name), "}", ""))
    return pa.RecordBatch.from_arrays(columns, names=["topic", "key", "value"])

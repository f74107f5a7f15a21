"""Messages as Avro in Confluent's wire format, as Kafka Connect's AvroConverter makes them.

A key or a value is a zero byte, the schema's id in four bytes, and the datum. The Avro schema is
made of the Connect schema by the rules of AvroConverter: a name's last part is a record's name, the
rest its namespace; an optional schema is a union with null; what Avro cannot express becomes a
property whose name begins with `connect.`.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import fastavro
import pyarrow as pa

from spark_sink.debezium.connect_schemas import connect_schemas
from spark_sink.debezium.options import MessageOptions
from spark_sink.debezium.schema_registry import addresses_in, register_schema

try:
    import orjson
except ImportError:
    _decoded: Callable[[str], Any] = json.loads
else:
    _decoded = orjson.loads

MESSAGES = "topic string, key binary, value binary"
"""The columns of messages."""
_PRIMITIVES = {"string": "string", "int64": "long", "int32": "int"}
_CACHED_TOPICS = 10_000


def avro_schema(schema: dict[str, Any], enclosing: str = "") -> Any:
    """Return the Avro schema of a Connect schema, both as JSON's values.

    `enclosing` is the namespace of the record around it.
    """
    kind, name = schema["type"], adjusted(schema.get("name", ""))
    made: dict[str, Any]
    if kind == "struct":
        namespace, _, last = name.rpartition(".")
        made = {"type": "record", "name": last}
        if namespace != enclosing:
            made["namespace"] = namespace
        made["fields"] = [_field(field, namespace) for field in schema["fields"]]
    elif kind == "array":
        made = {"type": "array", "items": avro_schema(schema["items"], enclosing)}
    else:
        made = {"type": _PRIMITIVES[kind]}
    for attribute in ("version", "parameters", "default"):
        if attribute in schema:
            made[f"connect.{attribute}"] = schema[attribute]
    if name:
        made["connect.name"] = name
    plain = made["type"] if len(made) == 1 else made
    if not schema["optional"]:
        return plain
    return [plain, "null"] if "default" in schema else ["null", plain]


def _field(schema: dict[str, Any], namespace: str) -> dict[str, Any]:
    made = {"name": schema["field"], "type": avro_schema(schema, namespace)}
    if schema["optional"]:
        made["default"] = schema.get("default")
    return made


def adjusted(name: str) -> str:
    """Return a schema's name as Debezium's `schema.name.adjustment.mode=avro` makes it.

    The characters are those of a topic.
    """
    valid = name.replace("-", "_")
    if valid[:1].isdigit():
        return f"_{valid}"
    return f"_{valid[1:]}" if valid.startswith(".") else valid


_Write = Callable[["str | None"], "bytes | None"]


def _writer(schema: dict[str, Any], number: int) -> _Write:
    """Return what makes Avro of a topic's keys, or values, in JSON; None stays None."""
    parsed, head = fastavro.parse_schema(schema), struct.pack(">bI", 0, number)

    def written(text: str | None) -> bytes | None:
        if text is None:
            return None
        out = io.BytesIO()
        out.write(head)
        fastavro.schemaless_writer(out, parsed, _decoded(text))
        return out.getvalue()

    return written


@lru_cache(_CACHED_TOPICS)
def _writers(options: MessageOptions, topic: str) -> tuple[_Write, _Write]:
    """Return the writers of a topic's keys and values.

    Their schemas are registered, once in a process while the topic is cached.
    """
    assert options.schema_registry_url is not None
    addresses, made = addresses_in(options.schema_registry_url), []
    for schema, part in zip(connect_schemas(options, topic), ("key", "value"), strict=True):
        avro = avro_schema(schema)
        text = json.dumps(avro, ensure_ascii=False, separators=(",", ":"))
        made.append(_writer(avro, register_schema(addresses, f"{topic}-{part}", text)))
    return made[0], made[1]


def with_avro(messages: pa.RecordBatch, options: MessageOptions) -> pa.RecordBatch:
    """Return messages with the columns topic, key and value whose texts became Avro.

    Raises StreamError if the registry cannot be reached, or refuses a schema.
    """
    topics = messages.column("topic").dictionary_encode()
    writers = [_writers(options, topic) for topic in topics.dictionary.to_pylist()]
    indices = topics.indices.to_pylist()
    columns = [messages.column("topic")]
    for part, name in enumerate(("key", "value")):
        texts = zip(indices, messages.column(name).to_pylist(), strict=True)
        binaries = (writers[index][part](text) for index, text in texts)
        columns.append(pa.array(binaries, pa.binary()))
    return pa.RecordBatch.from_arrays(columns, names=["topic", "key", "value"])

"""The value of a change's message: Debezium's envelope, with its block `source`.

Each field is written once, in the order of Debezium's: its name, its schema in Kafka Connect, and
its JSON, or the name of a part that each change has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

VERSION = "3.6.3.Final"
"""The version of Debezium whose messages are made."""
NO_TRANSACTION = '"transaction":null}'
"""The end of a change's value, unless it has a place in a transaction."""
_SNAPSHOTS = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"

Schema = dict[str, Any]


def typed(kind: str, *, optional: bool = False, **more: Any) -> Schema:
    """Return the schema of a type of Kafka Connect."""
    return {"type": kind, "optional": optional, **more}


def struct(fields: Mapping[str, Schema], *, optional: bool = False, **more: Any) -> Schema:
    """Return the schema of a struct with these fields."""
    named = [{**field, "field": name} for name, field in fields.items()]
    return {"type": "struct", "fields": named, "optional": optional, **more}


def array(items: Schema) -> Schema:
    """Return the schema of an array with these elements."""
    return {"type": "array", "items": items, "optional": True}


TEXT, LONG = typed("string"), typed("int64")
MAYBE_TEXT, MAYBE_LONG = typed("string", optional=True), typed("int64", optional=True)
_DOCUMENT = typed("string", optional=True, name="io.debezium.data.Json", version=1)
_TRUNCATED = struct(
    {"field": TEXT, "size": typed("int32")},
    name="io.debezium.connector.mongodb.changestream.truncatedarray",
    version=1,
)
_DESCRIPTION = struct(
    {
        "removedFields": array(TEXT),
        "updatedFields": _DOCUMENT,
        "truncatedArrays": array(_TRUNCATED),
    },
    optional=True,
    name="io.debezium.connector.mongodb.changestream.updatedescription",
    version=1,
)
_SNAPSHOT = typed(
    "string",
    optional=True,
    name="io.debezium.data.Enum",
    version=1,
    parameters={"allowed": _SNAPSHOTS},
    default="false",
)
_PLACE = struct(
    {"id": TEXT, "total_order": LONG, "data_collection_order": LONG},
    optional=True,
    name="event.block",
    version=1,
)


# A field: its schema, and its JSON, or the name of the part that has it.
_SOURCE: dict[str, tuple[Schema, str]] = {
    "version": (TEXT, "version"),
    "connector": (TEXT, '"mongodb"'),
    "name": (TEXT, "name"),
    "ts_ms": (LONG, "ms"),
    "snapshot": (_SNAPSHOT, "snapshot"),
    "db": (TEXT, "database"),
    "sequence": (MAYBE_TEXT, "null"),
    "ts_us": (MAYBE_LONG, "us"),
    "ts_ns": (MAYBE_LONG, "ns"),
    "collection": (TEXT, "collection"),
    "ord": (typed("int32"), "order"),
    "lsid": (MAYBE_TEXT, "session"),
    "txnNumber": (MAYBE_LONG, "number"),
    "wallTime": (MAYBE_LONG, "wall"),
}
SOURCE_FIELDS = frozenset(_SOURCE)
"""The names of the fields of a message's source."""
_SOURCE_SCHEMA = struct(
    {name: schema for name, (schema, _) in _SOURCE.items()},
    name="io.debezium.connector.mongo.Source",
    version=1,
)
_ENVELOPE: dict[str, tuple[Schema, str | dict[str, tuple[Schema, str]]]] = {
    "before": (_DOCUMENT, "before"),
    "after": (_DOCUMENT, "after"),
    "updateDescription": (_DESCRIPTION, "description"),
    "source": (_SOURCE_SCHEMA, _SOURCE),
    "op": (MAYBE_TEXT, "op"),
    "ts_ms": (MAYBE_LONG, "now"),
    "transaction": (_PLACE, "null"),
}
ENVELOPE_SCHEMA = struct({name: schema for name, (schema, _) in _ENVELOPE.items()})
"""The schema of a change's value, but for its name."""


def _pieces(fields: Mapping[str, tuple[Schema, Any]]) -> Iterator[str]:
    """Return JSON, perhaps in several pieces, and the names of parts in turn."""
    separator = "{"
    for name, (_, value) in fields.items():
        yield f'{separator}"{name}":'
        separator = ","
        if isinstance(value, str):
            yield value
        else:
            yield from _pieces(value)
    yield "}"


_PIECES = tuple(_pieces(_ENVELOPE))


def value_pieces(parts: Mapping[str, Any]) -> list[Any]:
    """Return the pieces of the values of changes: texts and columns of texts.

    `parts` are the JSON of fields, by the names that the fields have here: each a text, a column of
    texts, or a list of both.
    """
    pieces: list[Any] = []
    for piece in _PIECES:
        part = parts.get(piece, piece)
        pieces += part if isinstance(part, list) else [part]
    return pieces

"""The value of a change's message: Debezium's envelope, with its block `source`.

Each field is written once, in the order of Debezium's: its name, its schema in Kafka Connect, and
its JSON, or the part of `EventParts` that has its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from spark_sink.debezium.connect_values import quoted

VERSIONS = {"3.6": "3.6.3.Final", "2.6": "2.6.2.Final"}
"""The versions of Debezium whose messages can be made, and the `source.version` of each."""
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


class EventParts(NamedTuple):
    """The JSON of the fields that differ between changes, in the order of the envelope.

    Each is a text, a column of texts, or a list of both.
    """

    before: Any
    after: Any
    description: Any
    ms: Any
    snapshot: Any
    database: Any
    us: Any
    ns: Any
    collection: Any
    order: Any
    session: Any
    number: Any
    wall: Any
    op: Any
    now: Any


# A field: its schema, and the part of `EventParts` that has its JSON, or its JSON itself.
_VERSION, _NAME = "<version>", "<name>"
_SOURCE: dict[str, tuple[Schema, str]] = {
    "version": (TEXT, _VERSION),
    "connector": (TEXT, '"mongodb"'),
    "name": (TEXT, _NAME),
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
    """Return JSON and the names of the `EventParts` in turn, perhaps in several pieces."""
    separator = "{"
    for name, (_, value) in fields.items():
        yield f'{separator}"{name}":'
        separator = ","
        if isinstance(value, str):
            yield value
        else:
            yield from _pieces(value)
    yield "}"


class Envelope:
    """Makes values of changes; `version` is one of VERSIONS, `name` the connector's name."""

    def __init__(self, version: str, name: str) -> None:
        constants = {_VERSION: quoted(VERSIONS[version]), _NAME: quoted(name)}
        self._texts = [""]  # before, between and after the `EventParts`
        for piece in _pieces(_ENVELOPE):
            if piece in EventParts._fields:
                self._texts.append("")
            else:
                self._texts[-1] += constants.get(piece, piece)

    def pieces(self, change: EventParts) -> list[Any]:
        """Return the pieces of the values of events together: texts and arrays."""
        found: list[Any] = [self._texts[0]]
        for part, text in zip(change, self._texts[1:], strict=True):
            found += [*part, text] if isinstance(part, list) else [part, text]
        return found

"""The header of a change event: fields beside its documents, read from slices.

The fields of events: docs/protocol.md#events. `$changeStreamSplitLargeEvent` splits events of more
than 16 MiB. A fragment has some of the event's fields, and `splitEvent` with its number and the
number of all of them. The fragments of an event follow each other in the stream, since their tokens
begin alike (docs/protocol.md#resume-tokens).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_sink.events.slices import NOTHING, Slice, document_of, field_of, fields_of

READ = "read"
"""The operation type of a snapshot's rows."""
SNAPSHOT_END = "snapshotEnd"
"""The operation type of the row that follows the documents of a stream's snapshot."""

OPERATIONS: dict[str | None, str] = {
    "insert": "c", "update": "u", "replace": "u", "delete": "d", READ: "r",
}  # fmt: skip
"""Debezium's letters for operation types; others have none."""


def namespace_of(ns: Slice | None) -> tuple[str | None, str | None, str | None]:
    """Return the full name, database and collection in a field such as `ns` or `to`."""
    fields = (ns or NOTHING).fields()
    database, collection = (fields.get(name, NOTHING).text() for name in (b"db", b"coll"))
    full = f"{database}.{collection}" if database and collection else database or collection
    return full, database, collection


def fragment_position(value: Slice) -> dict[str, int | None]:
    """Return the number of a fragment and the number of all, from the field `splitEvent`."""
    fields = value.fields()
    return {name: fields.get(name.encode(), NOTHING).whole_number() for name in ("fragment", "of")}


def join_fragments(events: Iterable[bytes]) -> Iterator[bytes]:
    """Return the events, fragments joined, each with the token of its last fragment.

    If a query began or ended within an event, its fragments are returned as they are.
    """
    parts: list[bytes] = []
    for event in events:
        number, count = fragment_of(event) or (0, 0)
        if number != len(parts) + 1:
            yield from parts
            parts = []
        if number != len(parts) + 1:
            yield event
            continue
        parts.append(event)
        if number == count:
            yield _whole(parts)
            parts = []
    yield from parts


def fragment_of(event: bytes) -> tuple[int, int] | None:
    """Return the number of a fragment, from 1, and of all of its event; None for a whole event."""
    number, count = fragment_position(field_of(event, b"splitEvent") or NOTHING).values()
    return None if number is None or count is None else (number, count)


def _whole(parts: list[bytes]) -> bytes:
    fields: dict[bytes, Slice] = {}
    for part in parts:
        fields |= fields_of(part)  # the token stays at the front, and is the last one
    del fields[b"splitEvent"]
    return document_of(fields.items())

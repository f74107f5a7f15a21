"""The header of a change event: fields beside its documents, read from slices.

The fields of events: docs/protocol.md#events.
"""

from __future__ import annotations

from spark_sink.events.slices import DOCUMENT, NULL, Slice, fields_of

READ = "read"
"""The operation type of a snapshot's rows."""

OPERATIONS: dict[str | None, str] = {
    "insert": "c", "update": "u", "replace": "u", "delete": "d", READ: "r",
}  # fmt: skip
"""Debezium's letters for operation types; others have none."""

_NO_FIELDS: dict[bytes, Slice] = {}
_NOTHING = Slice(NULL, b"")


def namespace_of(ns: Slice | None) -> tuple[str | None, str | None, str | None]:
    """Return the full name, database and collection in a field such as `ns` or `to`."""
    fields = _NO_FIELDS if ns is None or ns.kind != DOCUMENT else fields_of(ns.value)
    database = fields.get(b"db", _NOTHING).text()
    collection = fields.get(b"coll", _NOTHING).text()
    full = f"{database}.{collection}" if database and collection else database or collection
    return full, database, collection


def fragment_position(value: Slice) -> dict[str, int | None]:
    """Return the number of a fragment and the number of all, from the field `splitEvent`."""
    fields = fields_of(value.value) if value.kind == DOCUMENT else _NO_FIELDS
    return {name: fields.get(name.encode(), _NOTHING).whole_number() for name in ("fragment", "of")}


def transaction_name(session: bytes, number: int | None) -> str:
    """Return the name of a transaction, from the bytes of `lsid.id` and `txnNumber`."""
    return f"{session.hex()}:{number}"

"""What the fields of a change event's header mean, read from slices.

The fields of events: docs/protocol.md#events.
"""

from __future__ import annotations

from spark_sink.event_slices import DOCUMENT, NULL, Slice, fields_of

READ = "read"
"""The operation type of a snapshot's rows."""

OPERATIONS: dict[str | None, str] = {
    "insert": "c", "update": "u", "replace": "u", "delete": "d", READ: "r",
}  # fmt: skip
"""Debezium's letters for operation types; others have none."""

_NO_FIELDS: dict[bytes, Slice] = {}
_NOTHING = Slice(NULL, b"")


def namespace_of(ns: Slice | None) -> tuple[str | None, str | None, str | None]:
    """Return the full name of a namespace, its database and its collection, as far as it has them.

    ns: a document such as the fields `ns` and `to`.
    """
    fields = _NO_FIELDS if ns is None or ns.kind != DOCUMENT else fields_of(ns.value)
    database = fields.get(b"db", _NOTHING).text()
    collection = fields.get(b"coll", _NOTHING).text()
    full = f"{database}.{collection}" if database and collection else database or collection
    return full, database, collection


def fragment_place(value: Slice) -> dict[str, int | None]:
    """Return the number of a fragment and how many its event has. value: the field `splitEvent`."""
    fields = fields_of(value.value) if value.kind == DOCUMENT else _NO_FIELDS
    return {name: fields.get(name.encode(), _NOTHING).whole_number() for name in ("fragment", "of")}


def transaction_name(session: bytes, number: int | None) -> str:
    """Return the name of a transaction. session: the bytes of `lsid.id`; number: `txnNumber`."""
    return f"{session.hex()}:{number}"

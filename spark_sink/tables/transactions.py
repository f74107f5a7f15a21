"""A table of the transactions in batches of rows: what Debezium's transaction metadata counts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.events.header import transaction_name
from spark_sink.events.slices import fields_of

TRANSACTIONS = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("event_count", pa.int64()),
        pa.field("data_collections", pa.map_(pa.string(), pa.int64())),
        pa.field("clusterTime", pa.timestamp("us", "UTC")),
        pa.field("first_token", pa.string()),
        pa.field("last_token", pa.string()),
    ]
)
"""A row for each transaction with changes of documents in a batch: id, the session's id in hex
digits and txnNumber; data_collections, the number of its events by the collections' full names;
clusterTime, of its last event. A transaction whose events lie in several batches has a row in
each."""
_COUNTED = ("event", "token", "clusterTime", "namespace")
COUNT_COLUMNS = (*_COUNTED, "txnNumber", "op")
"""The columns that rows must have to be counted."""
_BINARY_HEAD = 5  # the bytes before those of a binary value: its size, and its subtype


class Transactions:
    """Counts the events of transactions, by their ids; `by_id` is what another object counted."""

    def __init__(self, by_id: dict[str, dict[str, Any]] | None = None) -> None:
        self.by_id = by_id or {}
        """The transactions as plain values."""

    def count(self, rows: pa.RecordBatch) -> None:
        """Count rows of the source with COUNT_COLUMNS."""
        within = pc.and_(pc.is_valid(rows["txnNumber"]), pc.is_valid(rows["op"]))
        columns = [rows[name].filter(within) for name in _COUNTED]
        for event, token, time, name in zip(*(c.to_pylist() for c in columns), strict=True):
            found = {
                "time": time.timestamp(),
                "first": token,
                "last": token,
                "collections": {name: 1},
            }
            self._add(_name(event), found)

    def add(self, other: Transactions) -> None:
        """Add what another object has counted."""
        for name, each in other.by_id.items():
            self._add(name, each)

    def rows(self) -> pa.Table:
        """Return the rows of TRANSACTIONS."""
        rows = [
            {
                "id": name,
                "event_count": sum(each["collections"].values()),
                "data_collections": sorted(each["collections"].items()),
                "clusterTime": datetime.fromtimestamp(each["time"], UTC),
                "first_token": each["first"],
                "last_token": each["last"],
            }
            for name, each in self.by_id.items()
        ]
        return pa.Table.from_pylist(rows, TRANSACTIONS)

    def _add(self, name: str, counted: dict[str, Any]) -> None:
        found = self.by_id.setdefault(name, {**counted, "collections": {}})
        found["time"] = max(found["time"], counted["time"])
        found["first"] = min(found["first"], counted["first"])
        found["last"] = max(found["last"], counted["last"])
        for collection, number in counted["collections"].items():
            found["collections"][collection] = found["collections"].get(collection, 0) + number


def _name(event: bytes) -> str:
    fields = fields_of(event, (b"lsid", b"txnNumber"))
    session = fields_of(fields[b"lsid"].value)[b"id"].value[_BINARY_HEAD:]
    return transaction_name(session, fields[b"txnNumber"].whole_number())

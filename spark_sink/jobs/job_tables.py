"""The tables of a job: their names, and the columns of those that are not the source's rows."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from spark_sink.tables.parquet_parts import BATCH

BRONZE, MESSAGES, CURRENT, TRANSACTIONS = "bronze", "messages", "current", "transactions"
QUARANTINE, NOTIFICATIONS = "quarantine", "notifications"
APPENDED = (BRONZE, MESSAGES, TRANSACTIONS, NOTIFICATIONS, QUARANTINE)
"""The tables to which each batch is appended."""
DEFAULT_TABLES = (BRONZE, CURRENT)
"""The tables that a job writes by default."""
TOKENS = {BRONZE: "token", MESSAGES: "token", TRANSACTIONS: "last_token", QUARANTINE: "token"}
"""The column that orders the rows of an appended table."""

DATE = "date"
PARTITIONS = {BRONZE: ("namespace", DATE), MESSAGES: ("topic", DATE)}
"""The partition columns of a job's tables; the date is that of the event, in UTC."""
TRANSACTION_COLUMNS = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("event_count", pa.int64()),
        pa.field("data_collections", pa.map_(pa.string(), pa.int64())),
        pa.field("clusterTime", pa.timestamp("us", "UTC")),
        pa.field("first_token", pa.string()),
        pa.field("last_token", pa.string()),
    ]
)
"""The columns of TRANSACTIONS, which has a row for each transaction with changes of documents in a
batch: id, the session's id in hex digits and txnNumber; data_collections, the number of its events
by the collections' full names; clusterTime, of its last event. A transaction whose events lie in
several batches has a row in each."""
NOTIFICATION_COLUMNS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("id", "aggregate_type", "type")),
        pa.field("additional_data", pa.map_(pa.string(), pa.string())),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
    ]
)
"""The columns of NOTIFICATIONS."""


def with_all_batches(tables: Collection[str]) -> list[str]:
    """Return which of a job's tables get each batch, also one without rows: one at least."""
    usual = [name for name in (BRONZE, MESSAGES, CURRENT) if name in tables]
    return usual or [name for name in tables if name == TRANSACTIONS]


def dated_schema(rows: pa.Schema) -> pa.Schema:
    """Return the columns of a job's table of rows with these columns."""
    return pa.schema([*rows, pa.field(DATE, pa.date32()), pa.field(BATCH, pa.int64())])

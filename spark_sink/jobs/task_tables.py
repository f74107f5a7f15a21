"""What a task of a job writes by itself: the files of a batch's rows, and its staged changes.

Spark gets a row for each task, with its files and their statistics, which the driver commits.
A task that runs twice leaves files that no commit names. The table of transactions has what
Debezium's transaction metadata counts, which needs all tasks: so the row has a task's counts.
Executors import this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DateType, LongType, StructField, StructType

from spark_sink.debezium.message_table import MESSAGE_ROWS, UNIQUE, MessageTable, table_options
from spark_sink.events.header import OPERATIONS, transaction_name
from spark_sink.events.slices import fields_of
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.parquet_parts import BATCH, PartFile, Parts
from spark_sink.tables.range_merge import QUARANTINE
from spark_sink.tables.staged_changes import ChangeReport, ChangeStage

DATE = "date"
BRONZE_PARTITIONS = ("namespace", DATE)
"""The partition columns of a job's table of all rows; the date is that of the event, in UTC."""
MESSAGE_PARTITIONS = ("topic", DATE)
"""Those of a job's table of Debezium's messages."""
REPORTS = "report string"
"""A row for each task: a TaskReport as JSON."""
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

_CHANGES = pa.array([each for each in OPERATIONS if each])
_PROBLEM = "a document of the event cannot be read"


@dataclass(frozen=True)
class TaskTables:
    """The tables that tasks write: the addresses of those which a job has, otherwise None.

    Tasks write events that cannot be read to `quarantine`, unless the current table does that.
    `transactions` says whether the transactions are counted. The messages are made with
    `message_options`. `epoch` is that of the start of the job.
    """

    bronze: str | None
    current: str | None
    quarantine: str
    transactions: bool
    messages: str | None = None
    message_options: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 0


@dataclass
class TaskReport:
    """What a task has written, and read: `events` has documents of snapshots, too.

    `transactions` are those of `Transactions`, `counts` the rows by namespace and `op`.
    """

    bronze: list[PartFile]
    messages: list[PartFile]
    changes: ChangeReport | None
    unreadable: list[PartFile]
    transactions: dict[str, dict[str, Any]]
    counts: list[tuple[str, str, int]]
    events: int


class TaskWriter:
    """Writes the rows of one task. Where the block of `with` fails, its files are removed.

    Args:
        schema: of the source's rows.
        batch: the number of the batch.
    """

    def __init__(self, tables: TaskTables, schema: StructType, batch: int) -> None:
        self._batch = batch
        self._bronze = self._messages = self._changes = self._unreadable = None
        self._files = ExitStack()
        if tables.bronze is not None:
            bronze = Parts(tables.bronze, bronze_schema(schema), BRONZE_PARTITIONS)
            self._bronze = self._files.enter_context(bronze)
        if tables.messages is not None:
            self._message_table = MessageTable(table_options(tables.message_options))
            messages = Parts(tables.messages, message_schema(), MESSAGE_PARTITIONS, unique=UNIQUE)
            self._messages = self._files.enter_context(messages)
        if tables.current is not None:
            self._changes = ChangeStage(tables.current, tolerant=True, epoch=tables.epoch)
        else:
            unreadable = Parts(tables.quarantine, arrow_schema(QUARANTINE))
            self._unreadable = self._files.enter_context(unreadable)
        self._counts = tables.transactions
        self._transactions = Transactions()
        self._events = 0
        self._by_kind: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        self._files.__exit__(*failure)

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows of the source. Raises OSError."""
        self._events += rows.num_rows
        kinds = pa.Table.from_batches([rows.select(("namespace", "op"))]).drop_null()
        counted = kinds.group_by(["namespace", "op"]).aggregate([([], "count_all")])
        for name, op, number in zip(*counted.to_pydict().values(), strict=True):
            self._by_kind[name, op] += number
        if self._changes is not None:
            self._changes.add(rows)
        if self._unreadable is not None:
            self._unreadable.add(self._quarantined(rows))
        if self._counts:
            self._transactions.count(rows)
        if self._bronze is not None:
            self._bronze.add(self._dated(pa.Table.from_batches([rows])))
        if self._messages is not None:
            for messages in self._message_table.of_rows(rows):
                self._messages.add(self._dated(messages))

    def _dated(self, table: pa.Table) -> pa.Table:
        """Return rows with the date of their events, and with the batch."""
        dates = table["clusterTime"].cast(pa.timestamp("s", "UTC")).cast(pa.date32())
        return self._numbered(table.append_column(DATE, dates))

    def _numbered(self, table: pa.Table) -> pa.Table:
        numbers = pa.repeat(pa.scalar(self._batch, pa.int64()), table.num_rows)
        return table.append_column(BATCH, numbers)

    def _quarantined(self, rows: pa.RecordBatch) -> pa.Table:
        """Return rows with the columns QUARANTINE of changes that have no `op`."""
        is_change = pc.is_in(rows["operationType"], value_set=_CHANGES)
        found = pa.Table.from_batches([rows]).filter(pc.and_(pc.is_null(rows["op"]), is_change))
        size = found.num_rows
        found = found.append_column("key", pc.fill_null(found["documentKey"].cast("string"), ""))
        found = found.append_column("problem", pa.repeat(_PROBLEM, size))
        return self._numbered(found)

    def close(self) -> TaskReport:
        """Complete the files. Raises OSError."""
        bronze = [] if self._bronze is None else self._bronze.close()
        messages = [] if self._messages is None else self._messages.close()
        changes = None if self._changes is None else self._changes.close()
        unreadable = [] if self._unreadable is None else self._unreadable.close()
        counts = [(*kind, number) for kind, number in self._by_kind.items()]
        transactions = self._transactions.by_id
        return TaskReport(bronze, messages, changes, unreadable, transactions, counts, self._events)


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
            self._add(_transaction_of(event), found)

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


def _transaction_of(event: bytes) -> str:
    fields = fields_of(event, (b"lsid", b"txnNumber"))
    session = fields_of(fields[b"lsid"].value)[b"id"].value[_BINARY_HEAD:]
    return transaction_name(session, fields[b"txnNumber"].whole_number())


def bronze_schema(schema: StructType) -> pa.Schema:
    """Return the columns of a job's table of all rows."""
    added = [StructField(DATE, DateType()), StructField(BATCH, LongType())]
    return arrow_schema(StructType([*schema.fields, *added]))


def message_schema() -> pa.Schema:
    """Return the columns of a job's table of messages."""
    added = [pa.field(DATE, pa.date32()), pa.field(BATCH, pa.int64())]
    return pa.schema([*MESSAGE_ROWS, *added])

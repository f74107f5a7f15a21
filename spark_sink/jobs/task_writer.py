"""Writes the files of a job's tables in one task, and counts what it has written.

The table of transactions counts as Debezium's transaction metadata does. A transaction may lie in
several tasks, so the driver adds the counts of all. Executors import this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from spark_sink.debezium.message_batches import MESSAGE_ROWS, UNIQUE, Messages, table_options
from spark_sink.events.header import OPERATIONS
from spark_sink.events.slices import fields_of
from spark_sink.jobs.job_tables import (
    BRONZE,
    CURRENT,
    DATE,
    MESSAGES,
    PARTITIONS,
    QUARANTINE,
    TRANSACTION_COLUMNS,
    TRANSACTIONS,
    dated_schema,
)
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.merge_task import UNAPPLIED
from spark_sink.tables.parquet_parts import PartFile, Parts, numbered
from spark_sink.tables.staged_changes import ChangeReport, ChangeStage

_Make = Callable[[pa.RecordBatch], Iterable[pa.Table]]
"""Makes the rows of a table, without their dates, from rows of the source."""
_OF_EVENT = ("event", "token", "clusterTime", "namespace")
COUNT_COLUMNS = (*_OF_EVENT, "txnNumber", "op")
"""The columns that rows must have to be counted."""
_BINARY_HEAD = 5  # the bytes before those of a binary value: its size, and its subtype

_CHANGES = pa.array([operation for operation in OPERATIONS if operation])
_PROBLEM = "a document of the event cannot be read"


@dataclass(frozen=True)
class TaskTables:
    """The addresses, by name, of the tables that tasks write or count for; QUARANTINE is one.

    Tasks write events that cannot be read to QUARANTINE, unless the current table does that. The
    messages are made with `message_options`. `epoch` is that of the start of the job. `namespaces`
    are the collections, by database and name, that have documents in the current table. A start
    that changes the scope needs them, and the Python that plans batches may lack deltalake.
    """

    addresses: Mapping[str, str]
    message_options: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 0
    namespaces: tuple[tuple[str, str], ...] = ()


@dataclass
class Transactions:
    """Counts the events of each transaction, which `by_id` has as plain values."""

    by_id: dict[str, dict[str, Any]] = field(default_factory=dict)

    def count(self, rows: pa.RecordBatch) -> None:
        """Count rows of the source with COUNT_COLUMNS."""
        within = pc.and_(pc.is_valid(rows["txnNumber"]), pc.is_valid(rows["op"]))
        columns = [rows[name].filter(within) for name in _OF_EVENT]
        for event, token, time, name in zip(*(c.to_pylist() for c in columns), strict=True):
            counted = {"time": time.timestamp(), "first": token, "last": token}
            self._add(_transaction_of(event), {**counted, "collections": {name: 1}})

    def add(self, other: Transactions) -> None:
        """Add what another object has counted."""
        for name, transaction in other.by_id.items():
            self._add(name, transaction)

    def rows(self) -> pa.Table:
        """Return the transactions as rows, with the columns TRANSACTION_COLUMNS."""
        rows = [
            {
                "id": name,
                "event_count": sum(transaction["collections"].values()),
                "data_collections": sorted(transaction["collections"].items()),
                "clusterTime": datetime.fromtimestamp(transaction["time"], UTC),
                "first_token": transaction["first"],
                "last_token": transaction["last"],
            }
            for name, transaction in self.by_id.items()
        ]
        return pa.Table.from_pylist(rows, TRANSACTION_COLUMNS)

    def _add(self, name: str, counted: dict[str, Any]) -> None:
        total = self.by_id.setdefault(name, {**counted, "collections": {}})
        total["time"] = max(total["time"], counted["time"])
        total["first"] = min(total["first"], counted["first"])
        total["last"] = max(total["last"], counted["last"])
        for collection, number in counted["collections"].items():
            total["collections"][collection] = total["collections"].get(collection, 0) + number


def _transaction_of(event: bytes) -> str:
    fields = fields_of(event)
    session = fields_of(fields[b"lsid"].value)[b"id"].value[_BINARY_HEAD:]
    return f"{session.hex()}:{fields[b'txnNumber'].whole_number()}"


@dataclass
class TaskReport:
    """What a task, or all tasks of a batch, have written and read.

    `parts` are the files for BRONZE, MESSAGES and QUARANTINE, and `counts` the numbers of rows by
    namespace and `op`. `events` also counts documents of snapshots. `seconds` are those in which
    the driver has merged and committed the batch, by table.
    """

    parts: dict[str, list[PartFile]] = field(default_factory=dict)
    changes: ChangeReport = field(default_factory=ChangeReport)
    transactions: Transactions = field(default_factory=Transactions)
    counts: list[tuple[str, str, int]] = field(default_factory=list)
    events: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def files(self) -> int:
        """The number of files with the rows, in bronze and messages."""
        return sum(len(parts) for name, parts in self.parts.items() if name != QUARANTINE)

    def add(self, other: TaskReport) -> None:
        """Add what another task has written and read."""
        for name, parts in other.parts.items():
            self.parts.setdefault(name, []).extend(parts)
        self.changes.add(other.changes)
        self.transactions.add(other.transactions)
        self.counts += other.counts
        self.events += other.events


class TaskWriter:
    """Writes the rows of one task. Where the block of `with` fails, its files are removed.

    What such a block has staged is removed after the next batch.

    Args:
        schema: of the source's rows.
        batch: the number of the batch.
    """

    def __init__(self, tables: TaskTables, schema: StructType, batch: int) -> None:
        self._batch = batch
        self._files = ExitStack()
        self._addresses = tables.addresses
        self._parts: dict[str, tuple[Parts, _Make]] = {}
        self._changes: ChangeStage | None = None
        if CURRENT in tables.addresses:
            self._changes = ChangeStage(tables.addresses[CURRENT], epoch=tables.epoch)
        else:
            self._open(QUARANTINE, arrow_schema(UNAPPLIED), self._quarantined)
        if BRONZE in tables.addresses:
            events = dated_schema(arrow_schema(schema))
            self._open(BRONZE, events, lambda rows: [pa.Table.from_batches([rows])])
        if MESSAGES in tables.addresses:
            make = Messages(table_options(tables.message_options)).of_rows
            self._open(MESSAGES, dated_schema(MESSAGE_ROWS), make, unique=UNIQUE)
        self._transactions = Transactions()
        self._count = 0
        self._by_kind: Counter[tuple[str, str]] = Counter()

    def _open(self, name: str, schema: pa.Schema, make: _Make, **form: Any) -> None:
        parts = Parts(self._addresses[name], schema, PARTITIONS.get(name, ()), **form)
        self._parts[name] = self._files.enter_context(parts), make

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        self._files.__exit__(*failure)

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows of the source. Raises OSError."""
        self._count += rows.num_rows
        kinds = pc.binary_join_element_wise(rows["namespace"], rows["op"], "\0").drop_null()
        for counted in kinds.value_counts().to_pylist():
            name, _, op = counted["values"].partition("\0")
            self._by_kind[name, op] += counted["counts"]
        if self._changes is not None:
            self._changes.add(rows)
        if TRANSACTIONS in self._addresses:
            self._transactions.count(rows)
        for parts, make in self._parts.values():
            for table in make(rows):
                dates = table["clusterTime"].cast(pa.timestamp("s", "UTC")).cast(pa.date32())
                parts.add(numbered(table.append_column(DATE, dates), self._batch))

    def _quarantined(self, rows: pa.RecordBatch) -> Iterator[pa.Table]:
        """Return rows with the columns UNAPPLIED of changes that have no `op`."""
        if not rows["op"].null_count:
            return
        is_change = pc.is_in(rows["operationType"], value_set=_CHANGES)
        unapplied = pa.Table.from_batches([rows]).filter(pc.and_(pc.is_null(rows["op"]), is_change))
        keys = pc.fill_null(unapplied["documentKey"].cast("string"), "")
        problems = pa.repeat(_PROBLEM, unapplied.num_rows)
        yield unapplied.append_column("key", keys).append_column("problem", problems)

    def close(self) -> TaskReport:
        """Complete the files. Raises OSError."""
        changes = ChangeReport() if self._changes is None else self._changes.close()
        counts = [(*kind, number) for kind, number in self._by_kind.items()]
        parts = {name: part.close() for name, (part, _) in self._parts.items()}
        return TaskReport(parts, changes, self._transactions, counts, self._count)

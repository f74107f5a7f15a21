"""The source of a job's query, whose tasks write the tables' files instead of returning rows.

A task writes the files of a batch's rows, and stages its changes of the current table. Spark gets a
row for each task, with its files and their statistics, which the driver commits. A task that runs
twice leaves files that no commit names. The table of transactions counts as Debezium's transaction
metadata does. A transaction may lie in several tasks, so each row also has its task's counts.
Executors import this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import DateType, LongType, StructField, StructType

from spark_sink.batches.read_task import ReadTask
from spark_sink.debezium.message_table import MESSAGE_ROWS, UNIQUE, MessageTable, table_options
from spark_sink.errors import StreamError, without_traceback
from spark_sink.events.documents import from_document, from_json
from spark_sink.events.header import OPERATIONS, transaction_name
from spark_sink.events.slices import fields_of
from spark_sink.jobs.job_folder import BRONZE, CURRENT, MESSAGES, QUARANTINE, TRANSACTIONS
from spark_sink.options.scope import Scope
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.rows.typed_documents import from_json as schema_from_json
from spark_sink.snapshot.plan import LostDocument
from spark_sink.source.data_source import MergerouterDataSource
from spark_sink.source.offsets import Offset
from spark_sink.source.schema import schema_for
from spark_sink.source.stream_reader import MergerouterStreamReader
from spark_sink.source.tasks import Task, TaskPartition
from spark_sink.tables.ddl_events import Unread
from spark_sink.tables.executors import REPORT, reported
from spark_sink.tables.parquet_parts import BATCH, PartFile, Parts
from spark_sink.tables.range_merge import UNAPPLIED
from spark_sink.tables.staged_changes import ChangeReport, ChangeStage
from spark_sink.tables.state_files import newest_state
from spark_sink.tables.table_state import TableState

FORMAT = "mergerouter-job"
TABLES = "jobTables"
"""The option with the tables, as JSON."""
BATCH_PROPERTY = "mergerouter.batch"
"""The local property through which tasks know the number of their batch."""
DATE = "date"
PARTITIONS = {BRONZE: ("namespace", DATE), MESSAGES: ("topic", DATE)}
"""The partition columns of a job's tables; the date is that of the event, in UTC."""
COUNTED = pa.schema(
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
_OF_EVENT = ("event", "token", "clusterTime", "namespace")
COUNT_COLUMNS = (*_OF_EVENT, "txnNumber", "op")
"""The columns that rows must have to be counted."""
_BINARY_HEAD = 5  # the bytes before those of a binary value: its size, and its subtype

_CHANGES = pa.array([each for each in OPERATIONS if each])
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
        """Return the transactions as rows, with the columns COUNTED."""
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
        return pa.Table.from_pylist(rows, COUNTED)

    def _add(self, name: str, counted: dict[str, Any]) -> None:
        found = self.by_id.setdefault(name, {**counted, "collections": {}})
        found["time"] = max(found["time"], counted["time"])
        found["first"] = min(found["first"], counted["first"])
        found["last"] = max(found["last"], counted["last"])
        for collection, number in counted["collections"].items():
            found["collections"][collection] = found["collections"].get(collection, 0) + number


def _transaction_of(event: bytes) -> str:
    fields = fields_of(event)
    session = fields_of(fields[b"lsid"].value)[b"id"].value[_BINARY_HEAD:]
    return transaction_name(session, fields[b"txnNumber"].whole_number())


@dataclass
class TaskReport:
    """What a task, or all tasks of a batch, have written and read.

    `parts` are the files for BRONZE, MESSAGES and QUARANTINE, and `counts` the numbers of rows by
    namespace and `op`. `events` also counts documents of snapshots.
    """

    parts: dict[str, list[PartFile]] = field(default_factory=dict)
    changes: ChangeReport = field(default_factory=ChangeReport)
    transactions: Transactions = field(default_factory=Transactions)
    counts: list[tuple[str, str, int]] = field(default_factory=list)
    events: int = 0

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

    Args:
        schema: of the source's rows.
        batch: the number of the batch.
    """

    def __init__(self, tables: TaskTables, schema: StructType, batch: int) -> None:
        self._batch = batch
        self._files = ExitStack()
        self._parts: dict[str, Parts] = {}
        self._changes: ChangeStage | None = None
        found = tables.addresses
        if CURRENT in found:
            self._changes = ChangeStage(found[CURRENT], tolerant=True, epoch=tables.epoch)
        else:
            self._open(QUARANTINE, Parts(found[QUARANTINE], arrow_schema(UNAPPLIED)))
        if BRONZE in found:
            self._open(BRONZE, Parts(found[BRONZE], bronze_schema(schema), PARTITIONS[BRONZE]))
        if MESSAGES in found:
            self._message_table = MessageTable(table_options(tables.message_options))
            form = message_schema(), PARTITIONS[MESSAGES]
            self._open(MESSAGES, Parts(found[MESSAGES], *form, unique=UNIQUE))
        self._transactions = Transactions()
        self._counts_transactions = TRANSACTIONS in found
        self._events = 0
        self._by_kind: Counter[tuple[str, str]] = Counter()

    def _open(self, name: str, parts: Parts) -> None:
        self._parts[name] = self._files.enter_context(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        self._files.__exit__(*failure)

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows of the source. Raises OSError."""
        self._events += rows.num_rows
        kinds = pc.binary_join_element_wise(rows["namespace"], rows["op"], "\0").drop_null()
        for each in kinds.value_counts().to_pylist():
            name, _, op = each["values"].partition("\0")
            self._by_kind[name, op] += each["counts"]
        if self._changes is not None:
            self._changes.add(rows)
        if self._counts_transactions:
            self._transactions.count(rows)
        for name, parts in self._parts.items():
            if name == BRONZE:
                parts.add(self._dated(pa.Table.from_batches([rows])))
            elif name == MESSAGES:
                for messages in self._message_table.of_rows(rows):
                    parts.add(self._dated(messages))
            elif rows["op"].null_count:
                parts.add(self._quarantined(rows))

    def _dated(self, table: pa.Table) -> pa.Table:
        """Return rows with the date of their events, and with the batch."""
        dates = table["clusterTime"].cast(pa.timestamp("s", "UTC")).cast(pa.date32())
        return self._numbered(table.append_column(DATE, dates))

    def _numbered(self, table: pa.Table) -> pa.Table:
        numbers = pa.repeat(pa.scalar(self._batch, pa.int64()), table.num_rows)
        return table.append_column(BATCH, numbers)

    def _quarantined(self, rows: pa.RecordBatch) -> pa.Table:
        """Return rows with the columns UNAPPLIED of changes that have no `op`."""
        is_change = pc.is_in(rows["operationType"], value_set=_CHANGES)
        found = pa.Table.from_batches([rows]).filter(pc.and_(pc.is_null(rows["op"]), is_change))
        size = found.num_rows
        found = found.append_column("key", pc.fill_null(found["documentKey"].cast("string"), ""))
        found = found.append_column("problem", pa.repeat(_PROBLEM, size))
        return self._numbered(found)

    def close(self) -> TaskReport:
        """Complete the files. Raises OSError."""
        changes = ChangeReport() if self._changes is None else self._changes.close()
        counts = [(*kind, number) for kind, number in self._by_kind.items()]
        parts = {name: each.close() for name, each in self._parts.items()}
        return TaskReport(parts, changes, self._transactions, counts, self._events)


def bronze_schema(schema: StructType) -> pa.Schema:
    """Return the columns of a job's table of all rows."""
    added = [StructField(DATE, DateType()), StructField(BATCH, LongType())]
    return arrow_schema(StructType([*schema.fields, *added]))


def message_schema() -> pa.Schema:
    """Return the columns of a job's table of messages."""
    added = [pa.field(DATE, pa.date32()), pa.field(BATCH, pa.int64())]
    return pa.schema([*MESSAGE_ROWS, *added])


class JobSource(MergerouterDataSource):
    """The data source of jobs. Options: the source's, documentSchema as JSON, and TABLES."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._tables = from_json(TaskTables, options.pop(TABLES))
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return REPORT, after a check of the options and of the connection."""
        super().schema()
        return REPORT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader for one query. Raises OptionError."""
        with without_traceback():
            options = parse_options(self.options)
            if options.document_schema is not None:
                options = replace(options, document_type=schema_from_json(options.document_schema))
            return super().streamReader(schema_for(options))

    def stream_reader(self, options: StreamOptions) -> JobStreamReader:
        """Return the reader for these options."""
        return JobStreamReader(options, self.loaded, self._tables)


class JobStreamReader(MergerouterStreamReader):
    """Reads a batch in tasks, which write its files to `tables`."""

    changes_scope = True

    def __init__(self, options: StreamOptions, loaded: float, tables: TaskTables) -> None:
        super().__init__(options, loaded)
        self._tables = tables
        self._current = tables.addresses.get(CURRENT)
        self._seen: tuple[Offset, Unread, Sequence[LostDocument]] | None = None

    def unread(self, start: Offset) -> tuple[Unread, Sequence[LostDocument]]:
        """Return what the current table lacks, as the state of its newest version says."""
        gained = start.gained_since
        if self._current is None:
            return gained, ()
        if self._seen is None or self._seen[0] != start:
            document = newest_state(self._current)
            state = from_document(TableState, document) if document else TableState(())
            self._seen = start, {**gained, **state.unread}, state.lost
        return self._seen[1:]

    def namespaces(self) -> set[tuple[str, str]]:
        """Return the collections that had documents in the current table at the start."""
        return set(self._tables.namespaces)

    def small_batch(self, before: Offset, end: Offset) -> list[Task] | None:
        """Return the tasks of a small batch between two offsets, otherwise None.

        The driver reads it by itself, without a job of Spark, which takes longer. Where the bytes
        of batches are limited, tasks report the size of events to their planner. Documents of
        snapshots are divided once, by the planner of Spark's tasks.
        """
        batch, reads_documents = end.batch_after(before), end.signals.reading is not None
        if not batch.is_small or reads_documents or self.options.max_bytes_per_trigger:
            return None
        added = self.added_tasks(before, end)
        return [*([ReadTask(batch.first, batch.end)] if batch.events else []), *added]

    def write(self, tasks: Sequence[Task], scope: Scope | None, number: int) -> TaskReport:
        """Write the files of tasks of a batch. Raises StreamError and OSError."""
        with TaskWriter(self._tables, schema_for(self.options), number) as writer:
            for task in tasks:
                for rows in self.rows(TaskPartition(task, scope)):
                    writer.add(rows)
            return writer.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the row of REPORT of one task. Raises StreamError and OSError."""
        with without_traceback():
            context = TaskContext.get()
            number = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
            if number is None:
                raise StreamError(f"the format {FORMAT} is for jobs: use mergerouter")
            read = cast("TaskPartition", partition)
            yield from reported(partial(self.write, [read.value], read.scope, int(number)))

"""The job that writes collections and their changes to tables.

One query reads the stream. The tasks of a batch write its rows to files of the tables bronze and
messages, and stage its changes of the current table; the driver commits them. Each table recognises
a batch that it has, so each change is in each table exactly once.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, cast

import pyarrow as pa
from pymongo.errors import OperationFailure
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from spark_sink.debezium.message_batches import MESSAGE_ROWS
from spark_sink.errors import OptionError
from spark_sink.events.documents import from_json, to_json
from spark_sink.folders import is_local
from spark_sink.jobs.job_folder import (
    APPENDED,
    BRONZE,
    CURRENT,
    MESSAGES,
    NOTIFIED,
    QUARANTINE,
    TRANSACTIONS,
    JobFolder,
    JobRecord,
)
from spark_sink.jobs.job_source import BATCH_PROPERTY, FORMAT, TABLES, JobSource, JobStreamReader
from spark_sink.jobs.progress import WrittenBatch
from spark_sink.jobs.task_writer import (
    PARTITIONS,
    TaskReport,
    TaskTables,
    dated_schema,
)
from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import TASKS
from spark_sink.options.stream_options import StreamOptions, named_options, parse_options
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.rows.row_schema import is_json_schema, nullable, schema_from_json
from spark_sink.session.spark_session import tasks_by_cores
from spark_sink.source.offsets import Offset
from spark_sink.source.schema import schema_for
from spark_sink.source.tasks import snapshot_planner
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.ddl_events import Namespace, TableScope
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.prepare import PREPARED
from spark_sink.tables.range_merge import UNAPPLIED
from spark_sink.tables.staged_changes import ChangeReport, ChangeStage, remove_interrupted
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_rows import namespaces_in
from spark_sink.tables.version_states import Batch

NOTIFICATIONS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("id", "aggregate_type", "type")),
        pa.field("additional_data", pa.map_(pa.string(), pa.string())),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
    ]
)
"""The columns of a job's table of notifications."""
# Events of a batch and of a task: a batch costs Spark about as much whatever its size, and tasks
# hold no more rows than a file's row group.
_MAX_EVENTS, _TASK_EVENTS = 400_000, 50_000
# How far a verified table may be behind in an idle cluster: its commits contain the result.
_IDLE_ADVANCE = {"idleAdvanceSeconds": "30"}
# How Spark writes a query's log to a local folder. Its default starts a program for each file, to
# set permissions: 85 ms a batch, and 20 ms with this. Both write a file aside and rename it.
_LOG_WRITER = "spark.sql.streaming.checkpointFileManagerClass"
_BY_RENAME = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_STARTS = threading.Lock()
"""Held while a job changes the settings of its session, which other jobs may have, too."""


def take_over(folder: JobFolder) -> int:
    """Prevent commits of earlier starts of a job to its tables; return this start's epoch.

    Raises StreamError if a later start has the tables.
    """
    addresses = [folder.table(name) for name in (*APPENDED, CURRENT)]
    epoch = max(DeltaLog(address).later_epoch() for address in addresses)
    for address in addresses:
        DeltaLog(address, epoch=epoch).reload()
    remove_interrupted(folder.table(CURRENT), epoch)
    return epoch


class Findings:
    """What a verifier passes to the batches of its job, from another thread.

    Args:
        address: of the current table.
        verified: the state of the verification, which the table's commits contain.
    """

    def __init__(self, address: str, verified: Mapping[str, Any]) -> None:
        self.verified = verified
        self.gone = SimpleQueue[Mapping[str, Any]]()
        """Rows of PREPARED, which delete documents: the next batch applies them."""
        self._address = address

    def removals(self) -> ChangeReport:
        """Return the changes in `gone`, each once."""
        gone = [self.gone.get() for _ in range(self.gone.qsize())]
        stage = ChangeStage(self._address)
        stage.add_prepared(pa.RecordBatch.from_pylist(gone, arrow_schema(PREPARED)))
        return stage.close()


@dataclass
class TablesJob:
    """A job in a folder, as its record says.

    Args:
        uri: the router.
        findings: of a verifier of the current table; each batch commits them.
        epoch: the result of `take_over`.
        keep_files: for how many seconds replaced files are kept for their readers; None: as long as
            the tables' default.
    """

    folder: JobFolder
    record: JobRecord
    uri: str
    findings: Findings | None = None
    epoch: int = 0
    keep_files: float | None = None

    def __post_init__(self) -> None:
        self._tables = self.record.tables
        advance = {} if self.findings is None else _IDLE_ADVANCE
        self._options = {**advance, **self.record.source_options(self.uri)}
        self._reads_again = parse_options(self._options).snapshot.policy.reads_documents
        self._form = TableForm()
        self._rows = pa.schema([])
        self._opened: dict[str, DeltaLog] = {}
        self._current: CurrentTable | None = None
        self._reader: JobStreamReader | None = None
        self.written: dict[int, WrittenBatch] = {}
        """What the batches that are not reported yet have written, by their numbers."""

    def start(self, spark: SparkSession, trigger: str | None) -> StreamingQuery:
        """Start the query; an interrupted query continues from its checkpoint.

        `trigger` is the interval between batches, such as "10 seconds"; None: process all that is
        available, and end. Raises OptionError for an invalid schema.
        """
        self._form = table_form(self.record)
        if self._form.is_typed and not DeltaLog(self.folder.table(CURRENT)).exists:
            fields = _shard_keys(parse_options(self._options))
            names = [field.replace(".", "_") if self._form.flattens else field for field in fields]
            self._form = replace(self._form, keys=tuple(dict.fromkeys(("_id", *names))))
        options = job_options(self._options, tasks_by_cores(spark))
        if parse_options(options).snapshot.policy.streams:  # a snapshot alone has no signals
            options = {"signalFolder": self.folder.signals, **options}
        spark.dataSource.register(JobSource)
        options, rows = _with_schema(options)
        self._rows = dated_schema(arrow_schema(rows))
        addresses = {name: self.folder.table(name) for name in (*self._tables, QUARANTINE)}
        known = self._namespaces(parse_options(options).scope)
        tables = TaskTables(addresses, self.record.messages, self.epoch, known)
        options[TABLES] = to_json(tables)
        reader = JobSource(dict(options)).streamReader(StructType())
        self._reader = cast("JobStreamReader", reader)  # an old Spark refuses the query itself
        reports = spark.readStream.format(FORMAT).options(**options).load()
        writer = reports.writeStream.foreachBatch(self._commit)
        writer = writer.option("checkpointLocation", self.folder.checkpoint)
        if trigger is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=trigger)
        with _log_by_rename(spark, self.folder.checkpoint):
            return writer.queryName(f"mergerouter {self.folder.address}").start()

    def _namespaces(self, scope: Scope) -> tuple[Namespace, ...]:
        """Return the collections in the current table; none if the last batch has this scope."""
        last = self.folder.last_planned()
        end = None if last is None else last.end
        is_same = end is None or (end.scope in (None, scope) and end.sought is None)
        if CURRENT not in self._tables or is_same:
            return ()
        return tuple(sorted(namespaces_in(DeltaLog(self.folder.table(CURRENT)))))

    def _commit(self, rows: DataFrame, number: int) -> None:
        """Commit a batch to the tables, from the reports of its tasks.

        The notifications are last: a batch whose notifications are written is in all tables.
        """
        folder, written, seconds = self.folder, TaskReport(), dict[str, float]()
        begin, offset = folder.offset(number - 1), folder.offset(number)
        batch, end = Batch(folder.query() or "", number, offset, begin), Offset.of(offset)
        for report in self._reports(rows, batch, end):
            written.add(report)
        if self.findings is not None:
            batch = replace(batch, verified=self.findings.verified)
        counted, notified = written.transactions.rows(), _notifications(end)
        beside = {NOTIFIED: notified.num_rows, TRANSACTIONS: counted.num_rows}
        batch = self._after(batch, [n for n, some in {**written.parts, **beside}.items() if some])
        for name, schema in ((BRONZE, self._rows), (MESSAGES, dated_schema(MESSAGE_ROWS))):
            if name in self._tables:
                with _timed(seconds, name):
                    self._table(name).append(written.parts.get(name, ()), schema, batch)
        if CURRENT in self._tables:
            if self.findings is not None:
                written.changes.add(self.findings.removals())
            with _timed(seconds, CURRENT):
                self._merge(rows.sparkSession, written.changes, batch, end)
        elif quarantined := written.parts.get(QUARANTINE):
            self._table(QUARANTINE).append(quarantined, arrow_schema(UNAPPLIED), batch)
        if TRANSACTIONS in self._tables:
            with _timed(seconds, TRANSACTIONS):
                self._table(TRANSACTIONS).append_rows(counted, batch)
        self._table(NOTIFIED).append_rows(notified, batch)
        if self.keep_files is not None:
            current = [] if self._current is None else [self._current.log]
            for log in (*self._opened.values(), *current):
                log.keep_files(self.keep_files)
        files = sum(len(written.parts.get(name, ())) for name in (BRONZE, MESSAGES))
        self.written[number] = WrittenBatch(written.events, files, written.counts, seconds)

    def _after(self, batch: Batch, filled: Collection[str]) -> Batch:
        """Return the batch with the number, by table, of the newest batch that has rows in it.

        For the tables `filled` this is the batch itself.
        """
        newest = {}
        for name in {*self._tables, QUARANTINE, NOTIFIED} - {CURRENT}:
            before = self._table(name).state().get("written", {}).get(name, -1)
            newest[name] = batch.number if name in filled else before
        return replace(batch, written={name: n for name, n in newest.items() if n >= 0})

    def _merge(self, spark: SparkSession, changes: ChangeReport, batch: Batch, end: Offset) -> None:
        """Merge the changes of a batch into the current table, and commit them."""
        if self._current is None:
            address = self.folder.table(CURRENT)
            self._current = CurrentTable(address, form=self._form, epoch=self.epoch)
        self._current.reload()
        contains = (end.scope or Scope()).accepts
        scope = TableScope(contains, end.gained) if self._reads_again else None
        is_first = not {BRONZE, MESSAGES} & {*self._tables}  # of the tables that have each batch
        upsert = Upsert(changes, batch, self._table(QUARANTINE), scope, is_first)
        self._current.apply_staged(spark, upsert)
        self._keep_columns(self._current.form)

    def _keep_columns(self, form: TableForm) -> None:
        """Record the columns of a typed table: no row may have those of deleted documents."""
        if form.document_schema is not None and form != self._form:
            schema = form.document_schema.jsonValue()
            self.folder.keep_columns({"schema": schema, "keys": list(form.keys)})
            self._form = form

    def _reports(self, rows: DataFrame, batch: Batch, end: Offset) -> list[TaskReport]:
        """Write the files of a batch, in the driver or in tasks; return the tasks' reports."""
        if self._reader is not None and batch.begin:
            tasks = self._reader.small_batch(Offset.of(batch.begin), end)
            if tasks is not None:
                return [self._reader.write(tasks, end.scope, batch.number)]
        rows.sparkSession.sparkContext.setLocalProperty(BATCH_PROPERTY, str(batch.number))
        return [from_json(TaskReport, row.report) for row in rows.collect()]

    def _table(self, name: str) -> DeltaLog:
        if name not in self._opened:
            address, partitions = self.folder.table(name), PARTITIONS.get(name, ())
            self._opened[name] = DeltaLog(address, partitions, epoch=self.epoch)
        return self._opened[name]


@contextmanager
def _log_by_rename(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Let the query that the block starts write its log by renames, if its folder is local.

    A query takes the setting when it starts. It is the session's, so other queries get it back.
    """
    with _STARTS:
        if not is_local(checkpoint) or spark.conf.get(_LOG_WRITER, None) is not None:
            yield
            return
        spark.conf.set(_LOG_WRITER, _BY_RENAME)
        try:
            yield
        finally:
            spark.conf.unset(_LOG_WRITER)


@contextmanager
def _timed(seconds: dict[str, float], table: str) -> Iterator[None]:
    """Record the seconds that the block takes."""
    begun = time.monotonic()
    yield
    seconds[table] = time.monotonic() - begun


def _notifications(end: Offset) -> pa.Table:
    """Return the notifications of a batch, which its offset contains."""
    notifications = [
        {
            **e,
            "additional_data": [*e["additional_data"].items()],
            "timestamp": e["timestamp"] * 1000,
        }
        for e in end.signals.notifications
    ]
    return pa.Table.from_pylist(notifications, NOTIFICATIONS)


def job_options(given: Mapping[str, str], tasks: int) -> dict[str, str]:
    """Return the options of a job's source with a job's defaults. Raises OptionError.

    Several tasks may have changes of a document, because tables order them by their tokens.
    `tasks` are those of a batch of a snapshot.
    """
    defaults = {
        "maxEventsPerTrigger": str(_MAX_EVENTS),
        "eventsPerPartition": str(_TASK_EVENTS),
        TASKS: str(tasks),
    }
    return {**defaults, **named_options(given)}


def _shard_keys(options: StreamOptions) -> list[str]:
    """Return the fields of the shard keys of the collections. Raises StreamError."""
    with closing(RouterClient(options)) as client:
        planner = snapshot_planner(client, options)
        try:
            collections = client.with_retries(lambda: planner.collections(options.snapshot.accepts))
        except OperationFailure:  # not allowed: a snapshot reports it
            return []
    return [field for collection in sorted(collections, key=str) for field in collection.key]


def table_form(record: JobRecord) -> TableForm:
    """Return the form of a job's current table. Only a session of Spark parses DDL.

    Raises OptionError.
    """
    schema, is_soft = record.schema, record.deletes == "soft"
    if schema == "none":
        return TableForm(keeps_deleted=is_soft)
    keys = tuple(record.columns.get("keys", ("_id",)))
    if schema == "infer":
        known = StructType.fromJson(record.columns.get("schema", StructType([]).jsonValue()))
        return TableForm(known, True, is_soft, record.flatten, keys)
    try:
        return TableForm(_documents_of(schema), False, is_soft, record.flatten, keys).checked()
    except ValueError as error:
        raise OptionError(f"--schema: {error}") from None


def _with_schema(options: Mapping[str, str]) -> tuple[dict[str, str], StructType]:
    """Return options with documentSchema as JSON, and the schema of the source's rows.

    Raises OptionError.
    """
    given = parse_options(options)
    if given.document_schema is None:
        return dict(options), schema_for(given)
    try:
        kind = _documents_of(given.document_schema)
    except ValueError as error:
        raise OptionError(f"option 'documentSchema': {error}") from None
    named = {**named_options(options), "documentSchema": kind.json()}
    return named, schema_for(replace(given, document_type=kind))


def _documents_of(text: str) -> StructType:
    """Return a schema that is given as DDL or JSON. Raises ValueError."""
    if is_json_schema(text):
        return schema_from_json(text)
    try:
        kind = StructType.fromDDL(text)
    except ParseException as error:
        problem = re.sub(r"^\[\w+\] |SQLSTATE: \w+ ", "", str(error).strip().splitlines()[0])
        raise ValueError(f"{problem} in {text.strip()!r}") from None
    if not isinstance(kind, StructType):
        raise ValueError(f"{text.strip()!r} is a type: name fields, such as: total DECIMAL(10,2)")
    return nullable(kind)

"""The job that writes collections and their changes to tables.

One query reads the stream. The tasks of a batch write its rows to files of the tables bronze and
messages, and stage its changes of the current table; the driver commits them (`table_commits`), so
that each change is in each table exactly once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from pymongo.errors import OperationFailure
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from spark_sink.dataclass_json import to_json
from spark_sink.errors import OptionError
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_source import BATCH_PROPERTY, FORMAT, TABLES, JobSource, JobStreamReader
from spark_sink.jobs.job_tables import CURRENT, QUARANTINE, dated_schema
from spark_sink.jobs.table_commits import Findings, TableCommits
from spark_sink.jobs.task_writer import TaskReport, TaskTables
from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import TASKS
from spark_sink.options.stream_options import StreamOptions, named_options, parse_options
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.rows.row_schema import is_json_schema, nullable, schema_from_json
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.snapshot.selections import CollectionPatterns, Namespace
from spark_sink.source.offsets import Offset
from spark_sink.source.schema import schema_for
from spark_sink.spark_session import tasks_by_cores
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.current_table import namespaces_in
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.executors import reports_in
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_state import Batch

# Events of a batch and of a task: a batch costs Spark about as much whatever its size, and tasks
# hold no more rows than a file's row group.
_MAX_EVENTS, _TASK_EVENTS = 400_000, 50_000
# How far a verified table may be behind in an idle cluster: its commits contain the result.
_IDLE_ADVANCE = {"idleAdvanceSeconds": "30"}


@dataclass(frozen=True)
class JobQuery:
    """A job in a folder, as its record says.

    Args:
        uri: the router.
        findings, epoch, keep_files: as for `TableCommits`.
        wrote: gets the number of each batch, and what it has written, in the query's thread.
    """

    folder: JobFolder
    record: JobRecord
    uri: str
    findings: Findings | None = None
    epoch: int = 0
    keep_files: float | None = None
    wrote: Callable[[int, TaskReport], object] = lambda *_: None

    def start(self, spark: SparkSession, trigger: str | None) -> StreamingQuery:
        """Start the query; an interrupted query continues from its checkpoint.

        `trigger` is the interval between batches, such as "10 seconds"; None: process all that is
        available, and end. Raises OptionError for an invalid schema.
        """
        advance = {} if self.findings is None else _IDLE_ADVANCE
        source = {**advance, **self.record.source_options(self.uri)}
        if self.record.snapshot.policy.streams:  # a snapshot alone has no signals
            source = {"signalFolder": self.folder.signals, **source}
        options, parsed = _with_schema(job_options(source, tasks_by_cores(spark)))
        form, rows = self._form(parsed), dated_schema(arrow_schema(schema_for(parsed)))
        options[TABLES] = to_json(self._task_tables(parsed.scope))
        spark.dataSource.register(JobSource)
        # It reads small batches in this process. On a Spark that is too old, `load` fails below.
        reader = JobSource(dict(options)).streamReader(StructType())
        commits = TableCommits(
            self.folder,
            self.record,
            epoch=self.epoch,
            form=form,
            rows=rows,
            findings=self.findings,
            keep_files=self.keep_files,
        )
        commit = partial(self._commit, commits, cast("JobStreamReader", reader))
        reports = spark.readStream.format(FORMAT).options(**options).load()
        writer = reports.writeStream.foreachBatch(commit)
        writer = writer.option("checkpointLocation", self.folder.checkpoint.address)
        if trigger is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=trigger)
        return writer.queryName(f"mergerouter {self.folder.address}").start()

    def _form(self, options: StreamOptions) -> TableForm:
        """Return the form of the current table; a new typed one has the fields of shard keys."""
        form = table_form(self.record)
        if not form.is_typed or DeltaLog(self.folder.table(CURRENT)).exists:
            return form
        fields = _shard_keys(options)
        names = [field.replace(".", "_") if form.flattens else field for field in fields]
        return replace(form, keys=tuple(dict.fromkeys(("_id", *names))))

    def _task_tables(self, scope: Scope) -> TaskTables:
        """Return the tables for tasks, with the collections in the current one if scopes differ."""
        last, known = self.folder.checkpoint.last_planned(), list[Namespace]()
        end = None if last is None else last.end
        is_same = end is None or (end.scope in (None, scope) and end.sought is None)
        if CURRENT in self.record.tables and not is_same:
            known = sorted(namespaces_in(DeltaLog(self.folder.table(CURRENT))))
        names = (*self.record.tables, QUARANTINE)
        addresses = {name: self.folder.table(name) for name in names}
        return TaskTables(addresses, self.record.messages, self.epoch, tuple(known))

    def _commit(
        self, commits: TableCommits, reader: JobStreamReader, rows: DataFrame, number: int
    ) -> None:
        """Commit a batch to the tables, from the reports of its tasks."""
        batch, written = commits.planned(number), TaskReport()
        try:
            for report in _write_batch(reader, rows, batch):
                written.add(report)
        finally:
            reader.stop()  # it connects for the end of a snapshot
        commits.commit(rows.sparkSession, batch, written)
        self.wrote(number, written)


def _write_batch(reader: JobStreamReader, rows: DataFrame, batch: Batch) -> list[TaskReport]:
    """Write the files of a batch, in the driver or in tasks; return the tasks' reports."""
    if batch.begin:
        end = Offset.of(batch.offset)
        tasks = reader.small_batch(Offset.of(batch.begin), end)
        if tasks is not None:
            return [reader.write(tasks, end.scope, batch.number)]
    rows.sparkSession.sparkContext.setLocalProperty(BATCH_PROPERTY, str(batch.number))
    return reports_in(TaskReport, rows)


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
        planner = ChunkPlanner(client.mongo, options.scope, options.snapshot)
        chosen = CollectionPatterns(options.snapshot.collections)
        try:
            collections = client.with_retries(lambda: planner.collections(chosen))
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


def _with_schema(options: Mapping[str, str]) -> tuple[dict[str, str], StreamOptions]:
    """Return options with documentSchema as JSON, and the parsed ones. Raises OptionError."""
    given = parse_options(options)
    if given.document_schema is None:
        return dict(options), given
    try:
        kind = _documents_of(given.document_schema)
    except ValueError as error:
        raise OptionError(f"option 'documentSchema': {error}") from None
    named = {**named_options(options), "documentSchema": kind.json()}
    return named, replace(given, document_type=kind)


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

"""Commits the batches of a job to its tables, each of which recognises a batch that it has."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_sink.debezium.message_batches import MESSAGE_ROWS
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_tables import (
    APPENDED,
    BRONZE,
    CURRENT,
    MESSAGES,
    NOTIFICATION_COLUMNS,
    NOTIFICATIONS,
    PARTITIONS,
    QUARANTINE,
    TRANSACTIONS,
    dated_schema,
)
from spark_sink.jobs.report.progress import WrittenBatch
from spark_sink.jobs.task_writer import TaskReport
from spark_sink.options.scope import Scope
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.source.offsets import Offset
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.ddl_events import TableScope
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.keyed_rows import KEYED
from spark_sink.tables.range_merge import UNAPPLIED
from spark_sink.tables.staged_changes import ChangeReport, ChangeStage, remove_interrupted
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_state import Batch


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
        """Rows of KEYED, which delete documents: the next batch applies them."""
        self._address = address

    def removals(self) -> ChangeReport:
        """Return the changes in `gone`, each once."""
        gone = [self.gone.get() for _ in range(self.gone.qsize())]
        stage = ChangeStage(self._address)
        stage.add_keyed(pa.RecordBatch.from_pylist(gone, arrow_schema(KEYED)))
        return stage.close()


@dataclass
class TableCommits:
    """Commits the batches of one start of a job.

    Args:
        epoch: the result of `take_over`.
        form: of the current table; its columns may follow the documents.
        rows: the columns of bronze.
        findings: of a verifier of the current table; each batch commits them.
        keep_files: for how many seconds replaced files are kept for their readers; None: as long as
            the tables' default.
    """

    folder: JobFolder
    record: JobRecord
    epoch: int
    form: TableForm
    rows: pa.Schema
    findings: Findings | None = None
    keep_files: float | None = None

    def __post_init__(self) -> None:
        self._tables = self.record.tables
        columns = {BRONZE: self.rows, MESSAGES: dated_schema(MESSAGE_ROWS)}
        self._appended = {name: rows for name, rows in columns.items() if name in self._tables}
        self._opened: dict[str, DeltaLog] = {}
        self._current: CurrentTable | None = None

    def planned(self, number: int) -> Batch:
        """Return a batch that the checkpoint has. Raises StreamError if its file is not whole."""
        checkpoint = self.folder.checkpoint
        begin, offset = checkpoint.offset(number - 1), checkpoint.offset(number)
        return Batch(checkpoint.query() or "", number, offset, begin)

    def commit(self, spark: SparkSession | None, batch: Batch, written: TaskReport) -> WrittenBatch:
        """Commit what tasks have written of a batch, and its transactions and notifications.

        The notifications are last: a batch whose notifications are written is in all tables.
        Without `spark` the work is done in this process.
        """
        end, seconds = Offset.of(batch.offset), dict[str, float]()
        if self.findings is not None:
            batch = replace(batch, verified=self.findings.verified)
        counted, notified = written.transactions.rows(), _notifications(end)
        beside = {NOTIFICATIONS: notified.num_rows, TRANSACTIONS: counted.num_rows}
        batch = self._after(batch, [n for n, some in {**written.parts, **beside}.items() if some])
        for name, columns in self._appended.items():
            with _timed(seconds, name):
                self._table(name).append(written.parts.get(name, ()), columns, batch)
        if CURRENT in self._tables:
            if self.findings is not None:
                written.changes.add(self.findings.removals())
            with _timed(seconds, CURRENT):
                self._merge(spark, written.changes, batch, end)
        elif quarantined := written.parts.get(QUARANTINE):
            self._table(QUARANTINE).append(quarantined, arrow_schema(UNAPPLIED), batch)
        if TRANSACTIONS in self._tables:
            with _timed(seconds, TRANSACTIONS):
                self._table(TRANSACTIONS).append_rows(counted, batch)
        self._table(NOTIFICATIONS).append_rows(notified, batch)
        if self.keep_files is not None:
            current = [] if self._current is None else [self._current.log]
            for log in (*self._opened.values(), *current):
                log.keep_files(self.keep_files)
        files = sum(len(written.parts.get(name, ())) for name in self._appended)
        return WrittenBatch(written.events, files, written.counts, seconds)

    def _after(self, batch: Batch, filled: Collection[str]) -> Batch:
        """Return the batch with the number, by table, of the newest batch that has rows in it.

        For the tables `filled` this is the batch itself.
        """
        newest = {}
        for name in {*self._tables, QUARANTINE, NOTIFICATIONS} - {CURRENT}:
            before = self._table(name).state().batch.written.get(name, -1)
            newest[name] = batch.number if name in filled else before
        return replace(batch, written={name: n for name, n in newest.items() if n >= 0})

    def _merge(
        self, spark: SparkSession | None, changes: ChangeReport, batch: Batch, end: Offset
    ) -> None:
        """Merge the changes of a batch into the current table, and commit them."""
        if self._current is None:
            address = self.folder.table(CURRENT)
            self._current = CurrentTable(address, form=self.form, epoch=self.epoch)
        self._current.reload()
        reads_again = self.record.snapshot.policy.reads_documents
        scope = TableScope((end.scope or Scope()).accepts, end.gained) if reads_again else None
        is_first = not self._appended  # of the tables that have each batch
        upsert = Upsert(changes, batch, self._table(QUARANTINE), scope, is_first)
        self._current.apply_staged(spark, upsert)
        with self._current.log.clean_up():  # of what failed tasks have staged
            remove_interrupted(self._current.address, self.epoch)
        self._keep_columns(self._current.form)

    def _keep_columns(self, form: TableForm) -> None:
        """Record the columns of a typed table: no row may have those of deleted documents."""
        if form.document_schema is not None and form != self.form:
            schema = form.document_schema.jsonValue()
            self.folder.keep_columns({"schema": schema, "keys": list(form.keys)})
            self.form = form

    def _table(self, name: str) -> DeltaLog:
        if name not in self._opened:
            address, partitions = self.folder.table(name), PARTITIONS.get(name, ())
            self._opened[name] = DeltaLog(address, partitions, epoch=self.epoch)
        return self._opened[name]


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
            **notification,
            "additional_data": [*notification["additional_data"].items()],
            "timestamp": notification["timestamp"] * 1000,
        }
        for notification in end.snapshots.batch.notifications
    ]
    return pa.Table.from_pylist(notifications, NOTIFICATION_COLUMNS)

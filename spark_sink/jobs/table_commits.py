"""Commits the batches of a job to its tables, each of which knows its batches (`DeltaLog.has`)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
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
    with_all_batches,
)
from spark_sink.jobs.task_writer import TaskReport
from spark_sink.options.scope import Scope
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.source.offsets import Offset
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.ddl_events import TableScope
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.keyed_rows import KEYED
from spark_sink.tables.merge_task import UNAPPLIED
from spark_sink.tables.staged_changes import ChangeReport, ChangeStage, remove_staged
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
    remove_staged(folder.table(CURRENT), epoch)
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
    """Commits the batches of one start of a job. Raises StreamError if a later one has its tables.

    Args:
        epoch: the result of `take_over`.
        form: of the current table, as the record has it; its columns may follow the documents.
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
        names = (*self.record.tables, QUARANTINE, NOTIFICATIONS)
        addresses = {name: self.folder.table(name) for name in names}
        self._current: CurrentTable | None = None
        if current := addresses.pop(CURRENT, None):
            self._current = CurrentTable(current, form=self.form, epoch=self.epoch)
        self._logs = {
            name: DeltaLog(address, PARTITIONS.get(name, ()), epoch=self.epoch)
            for name, address in addresses.items()
        }
        for log in self._logs.values():  # before Spark plans a batch beside that of a later start
            log.reload()
        columns = {BRONZE: self.rows, MESSAGES: dated_schema(MESSAGE_ROWS)}
        self._appended = {name: rows for name, rows in columns.items() if name in self._logs}
        self._with_all = with_all_batches(self.record.tables)

    def planned(self, number: int) -> Batch:
        """Return a batch that the checkpoint has. Raises StreamError if its file is not whole."""
        checkpoint = self.folder.checkpoint
        begin, offset = checkpoint.offset(number - 1), checkpoint.offset(number)
        return Batch(checkpoint.query() or "", number, offset, begin)

    def commit(self, spark: SparkSession | None, batch: Batch, written: TaskReport) -> None:
        """Commit what tasks have written of a batch, and its transactions and notifications.

        Its `seconds` are set. Without `spark` the work is done in this process.
        """
        end, seconds, logs = Offset.of(batch.offset), written.seconds, self._logs
        if self.findings is not None:
            batch = replace(batch, verified=self.findings.verified)
            written.changes.add(self.findings.removals())
        counted, notified = written.transactions.rows(), _notifications(end)
        beside = {NOTIFICATIONS: notified.num_rows, TRANSACTIONS: counted.num_rows}
        batch = self._with_filled(batch, {**written.parts, **beside})
        for name, columns in self._appended.items():
            with _timed(seconds, name):
                logs[name].append(written.parts.get(name, ()), columns, batch)
        if self._current is not None:
            with _timed(seconds, CURRENT):
                self._merge(self._current, spark, written.changes, batch, end)
        elif quarantined := written.parts.get(QUARANTINE):
            logs[QUARANTINE].append(quarantined, arrow_schema(UNAPPLIED), batch)
        if TRANSACTIONS in logs and (counted.num_rows or TRANSACTIONS in self._with_all):
            with _timed(seconds, TRANSACTIONS):
                logs[TRANSACTIONS].append_rows(counted, batch)
        if notified.num_rows:
            logs[NOTIFICATIONS].append_rows(notified, batch)
        if self.keep_files is not None:
            for log in (*logs.values(), *([self._current.log] if self._current else ())):
                log.keep_files(self.keep_files)

    def _with_filled(self, batch: Batch, written: Mapping[str, Any]) -> Batch:
        """Return the batch with the number, by table, of the newest batch that has rows in it.

        `written` has, by the name of a table, what is true if this batch has rows for it.
        """
        before = {n: log.state().batch.written.get(n, -1) for n, log in self._logs.items()}
        newest = {n: batch.number if written.get(n) else old for n, old in before.items()}
        return replace(batch, written={name: n for name, n in newest.items() if n >= 0})

    def _merge(
        self,
        table: CurrentTable,
        spark: SparkSession | None,
        changes: ChangeReport,
        batch: Batch,
        end: Offset,
    ) -> None:
        """Merge the changes of a batch into the current table, and commit them."""
        table.reload()
        reads_again = self.record.snapshot.policy.reads_documents
        scope = (
            TableScope((end.scope or Scope()).accepts, end.snapshots.gains) if reads_again else None
        )
        table.apply_staged(spark, Upsert(changes, batch, self._logs[QUARANTINE], scope))
        form = table.form
        if form.document_schema is not None and form != self.form:
            # No row may have the columns of deleted documents.
            schema = form.document_schema.jsonValue()
            self.folder.keep_columns({"schema": schema, "keys": list(form.keys)})
            self.form = form


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

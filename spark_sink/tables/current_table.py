"""Delta tables with the documents of collections at a position in the stream.

A batch writes again the files that have its keys (`upsert`), and one commit replaces them and moves
the position, for all readers at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_sink.errors import OptionError
from spark_sink.events.documents import from_document
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.key_ranges import KEY_RANGE
from spark_sink.tables.staged_changes import (
    CHANGE_COLUMNS,
    ChangeReport,
    remove_changes,
    remove_interrupted,
    stage_rows,
)
from spark_sink.tables.state_files import Batch
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_rows import read_rows
from spark_sink.tables.table_state import TableScope, TableState
from spark_sink.tables.tasks import REPORT, reported, reports_in
from spark_sink.tables.upsert import TableVersion, Upsert, commit, merge, plan


class CurrentTable:
    """The table at the address `target`, to which only one query may write.

    Args:
        keys: the fields of the document key that identify a document.
        form: the columns to write; without it those of the table.
        epoch: of the start of a job that writes to it.
    """

    def __init__(
        self,
        target: str,
        keys: Sequence[str] = ("_id",),
        *,
        form: TableForm | None = None,
        epoch: int = 0,
    ) -> None:
        log = DeltaLog(target, (KEY_RANGE,), (form or TableForm()).statistics_columns, epoch=epoch)
        self._version = _newest(log, form, keys, epoch)
        if self.state.keys != tuple(keys):
            raise OptionError(
                f"the table at {target} has the keys {', '.join(self.state.keys)}: use these, or "
                "write to another folder"
            )

    def reload(self) -> None:
        """Continue from the newest version: others may have compacted the table."""
        version = self._version
        if version.log.reload():
            self._version = _newest(version.log, version.form, version.state.keys, version.epoch)

    @classmethod
    def existing(cls, target: str, form: TableForm | None = None) -> CurrentTable:
        """Return the table in a folder, with its keys. Raises OptionError if there is none."""
        log = DeltaLog(target)
        if not log.exists:
            raise OptionError(f"there is no current table at {target}: correct the path")
        return cls(target, log.state().get("keys", ("_id",)), form=form)

    def at(self, version: int, state: Mapping[str, Any]) -> CurrentTable:
        """Return an older version to read, whose commit has `state`. Raises StreamError."""
        found = copy(self)
        log = self._version.log.at(version, state)
        form = TableForm.of(log.schema)
        found._version = TableVersion(log, from_document(TableState, state), form, form)
        return found

    @property
    def address(self) -> str:
        """The folder as a path or URI for Spark."""
        return self._version.log.address

    @property
    def log(self) -> DeltaLog:
        """The commits of the table."""
        return self._version.log

    @property
    def state(self) -> TableState:
        """The state of the version that `read` reads."""
        return self._version.state

    @property
    def form(self) -> TableForm:
        """The columns of the next version."""
        return self._version.form

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows of the current version, without KEY_RANGE."""
        names = [each["name"] for each in self.log.schema["fields"]]
        return read_rows(spark, self.log, [name for name in names if name != KEY_RANGE])

    def count(self) -> int:
        """Return the number of documents."""
        return self.log.count()

    def apply(
        self, events: DataFrame, batch: Batch | None = None, quarantine: DeltaLog | None = None
    ) -> None:
        """Apply rows of the source, and commit the result as the current version.

        See `apply_staged`.
        """
        self.reload()
        remove_interrupted(self.address, self._version.epoch)
        if batch is not None and self.log.has(batch):
            return
        stage = partial(
            stage_rows,
            address=self.address,
            keys=self.state.keys,
            tolerant=quarantine is not None,
            epoch=self._version.epoch,
        )
        staged = events.select(*CHANGE_COLUMNS).mapInArrow(partial(reported, stage), REPORT)
        reports = reports_in(ChangeReport, staged)
        self.apply_staged(events.sparkSession, reports, batch, quarantine)

    def apply_staged(
        self,
        spark: SparkSession | None,
        reports: Iterable[ChangeReport],
        batch: Batch | None = None,
        quarantine: DeltaLog | None = None,
        scope: TableScope | None = None,
        *,
        creates_quarantine: bool = False,
    ) -> None:
        """Apply what tasks have staged, and commit the result as the current version.

        Nothing happens if the table has the batch already. The events that cannot be applied are
        appended to `quarantine`, which requires a batch, before the commit; a document with such an
        event leaves the table until a later event contains it. Without it such an event raises
        StreamError, and nothing is committed. Without `spark` the work is done in this process.
        See `Upsert` for the other arguments.
        """
        changes = ChangeReport()
        for each in reports:
            changes.add(each)
        if batch is None or not self.log.has(batch):
            upsert = Upsert(changes, batch, quarantine, scope, creates_quarantine)
            planned = plan(spark, self._version, upsert)
            merged = merge(spark, self._version, upsert, planned)
            self._version = commit(self._version, upsert, planned, merged)
        remove_changes(self.address, changes.groups)


def apply_changes(
    events: DataFrame, target: str, keys: Sequence[str] = ("_id",)
) -> DataStreamWriter | None:
    """Keep the table at `target` equal to the collections that `events` come from.

    For a stream this returns a writer, to be started with a checkpointLocation; the events of a
    batch are applied immediately. Applying events again changes nothing. With its first batch a
    query ends an earlier start of it that still runs.

    Args:
        events: rows of this package's source, with its columns.
        keys: the fields of the document key that identify a document.

    Raises OptionError if the table has other keys. The query, or the call, fails with StreamError
    if an update without a post-image changes a document that the table does not have.
    """
    if not events.isStreaming:
        CurrentTable(target, keys).apply(events)
        return None
    epoch = DeltaLog(target).later_epoch()

    def apply(rows: DataFrame, batch_id: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        table = CurrentTable(target, keys, epoch=epoch)
        table.apply(rows, Batch(query, batch_id) if query else None)

    return events.writeStream.foreachBatch(apply)


def _newest(log: DeltaLog, form: TableForm | None, keys: Iterable[str], epoch: int) -> TableVersion:
    """Return the newest version, for a batch that writes a form. Raises OptionError."""
    stored = TableForm.of(log.schema, log.statistics_columns) if log.exists else None
    state, document = TableState(tuple(keys)), log.state()
    if log.exists:
        if "keys" not in document:
            raise OptionError(
                f"the Delta table at {log.address} is no current table: write to another folder"
            )
        state = from_document(TableState, document)
    form = _form_after(log, stored, form or stored or TableForm())
    return TableVersion(log, state, stored, form, epoch)


def _form_after(log: DeltaLog, before: TableForm | None, form: TableForm) -> TableForm:
    """Return the form to write, whose schema begins with the table's. Raises OptionError."""
    if before is None:
        return form
    if (form.is_typed, form.keeps_deleted) != (before.is_typed, before.keeps_deleted):
        raise OptionError(
            f"the table at {log.address} has other columns: start its job with the "
            "--schema and --deletes of before, or write to another folder"
        )
    known = () if before.schema is None else before.schema.fieldNames()
    new = (name for name in form.keys if name not in (*before.keys, *known))
    form = replace(form, keys=(*before.keys, *new))  # no file has a column of the new ones
    return replace(form, schema=before.schema) if form.infers else form

"""Delta tables with the documents of collections at a position in the stream.

A batch is applied in three steps. *Plan* finds the files that have the keys of the batch; rows that
a DDL event moves or removes become changes of the batch. *Merge* writes the files again in tasks.
*Commit* gives the table the new files and its state at once. Until then readers see nothing of a
batch, and a batch that ends early can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import compress, groupby
from operator import attrgetter

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from spark_sink.errors import OptionError
from spark_sink.events.positions import ABOVE_ALL_TOKENS
from spark_sink.folders import Folder
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.rows.checksum import NO_ROWS, Checksum
from spark_sink.tables.ddl_events import DdlEvent, TableScope, ddl_event_of, renamed_by
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.executors import REPORT, reported, reports_in, run_tasks
from spark_sink.tables.fold import Fold
from spark_sink.tables.key_ranges import (
    ChangeGroup,
    KeyRange,
    KeyRanges,
    Merge,
    merges_of,
    merges_of_rest,
)
from spark_sink.tables.merge_task import UNAPPLIED, MergeReport, MergeTask
from spark_sink.tables.parquet_parts import PartFile
from spark_sink.tables.places import KEY_RANGE
from spark_sink.tables.range_files import partition_digest
from spark_sink.tables.staged_changes import (
    CHANGE_COLUMNS,
    ChangeReport,
    places_in,
    remove_staged,
    stage_file,
    stage_moved,
    stage_rows,
)
from spark_sink.tables.state_files import restored_error
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_state import Batch, TableState
from spark_sink.tables.table_version import TableVersion

# The most bytes that the driver merges itself, since to start a job of Spark takes as long.
_DRIVER_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Upsert:
    """The changes of a batch, and how they are applied.

    Args:
        changes: what tasks have staged.
        batch: the batch that they are; None for changes that belong to none.
        quarantine: the table for events that cannot be applied, which requires a batch; without it
            such an event raises StreamError.
        scope: the collections that the table must have whole; without it the state notes none that
            must be read again.
    """

    changes: ChangeReport
    batch: Batch | None = None
    quarantine: DeltaLog | None = None
    scope: TableScope | None = None


@dataclass(frozen=True)
class MergePlan:
    """What a batch changes in a version.

    Args:
        state: the state after the batch, without what only the merges find.
        moved: the partitions whose rows DDL events move; they are staged among the changes.
        ranges: the version's ranges of keys, without the moved ones.
        merges: what is written again.
        fold: what applies changes to rows.
    """

    state: TableState
    moved: frozenset[str]
    ranges: KeyRanges
    merges: Sequence[Merge]
    fold: Fold


class CurrentTable:
    """The table at the address `target`, to which only one query may write.

    The object stands for the version that it has read or committed last.

    Args:
        keys: the fields of the document key that identify a document; None for those of the table.
        form: the columns to write; without it those of the table.
        epoch: of the start of a job that writes to it.
    """

    def __init__(
        self,
        target: str,
        keys: Sequence[str] | None = ("_id",),
        *,
        form: TableForm | None = None,
        epoch: int = 0,
    ) -> None:
        self.log = DeltaLog(target, (KEY_RANGE,), epoch=epoch)
        """The commits of the table."""
        self.address = self.log.address
        """The folder as a path or URI for Spark."""
        self.state = TableState(tuple(keys or ()))
        """The state of the version."""
        self._epoch = epoch
        self._stored: TableForm | None = None
        self._read_version(form)
        if keys is not None and self.state.keys != tuple(keys):
            raise OptionError(
                f"the table at {target} has the keys {', '.join(self.state.keys)}: use these, or "
                "write to another folder"
            )

    def _read_version(self, form: TableForm | None) -> None:
        """Read the version of the log, for a batch that writes a form. Raises OptionError."""
        if self.log.exists:
            state = self.log.state()
            if not state.keys:
                raise OptionError(
                    f"the Delta table at {self.address} is no current table: write to another "
                    "folder"
                )
            self._stored = TableForm.of(self.log.schema, self.log.statistics_columns)
            self.state = state
        self.form = _form_after(self.address, self._stored, form or self._stored or TableForm())
        """The columns of the next version."""

    def reload(self) -> None:
        """Continue from the newest version: others may have compacted the table."""
        if self.log.reload():
            self._read_version(self.form)

    @classmethod
    def existing(cls, target: str, form: TableForm | None = None) -> CurrentTable:
        """Return the table in a folder, with its keys. Raises OptionError if there is none."""
        table = cls(target, None, form=form)
        if not table.log.exists:
            raise OptionError(f"there is no current table at {target}: correct the path")
        return table

    def apply(self, events: DataFrame, batch: Batch | None = None) -> None:
        """Apply rows of the source, and commit the result as the newest version.

        See `apply_staged`. Raises StreamError if an older version of the table was restored, unless
        another query begins, with a snapshot.
        """
        self.reload()
        was_restored = self.log.is_restored()
        if was_restored and (batch is None or batch.query == self.log.state().batch.query):
            raise restored_error(self.address)
        remove_staged(self.address, self._epoch)
        if batch is not None and self.log.has(batch):
            return
        keys, epoch = self.state.keys, self._epoch
        stage = partial(stage_rows, address=self.address, keys=keys, epoch=epoch)
        staged = events.select(*CHANGE_COLUMNS).mapInArrow(partial(reported, stage), REPORT)
        changes = ChangeReport.total(reports_in(ChangeReport, staged))
        if was_restored and changes == ChangeReport():
            return  # the snapshot begins with the next batch
        try:
            if was_restored:
                self._accept_restored(changes)
            self.apply_staged(events.sparkSession, Upsert(changes, batch))
        except BaseException:
            remove_staged(self.address, self._epoch)
            raise

    def _accept_restored(self, changes: ChangeReport) -> None:
        """Continue with the rows of a restored version, if a snapshot brings it up to date.

        Raises StreamError otherwise.
        """
        if not changes.is_initial:
            raise restored_error(self.address)
        names = [name for name in self.log.schema.names if name != KEY_RANGE]
        checksum = sum(map(Checksum.of, self.log.rows(names)), NO_ROWS)
        self.state = replace(self.state, checksum=checksum)

    def apply_staged(self, spark: SparkSession | None, upsert: Upsert) -> None:
        """Apply what tasks have staged, and commit the result as the newest version.

        Nothing happens if the table has the batch already. The events that cannot be applied are
        appended to the quarantine before the commit; a document with such an event leaves the table
        until a later event contains it. Without a quarantine nothing is committed then. Without
        `spark` the work is done in this process. Raises StreamError if another writer was faster,
        and OSError.
        """
        if upsert.batch is None or not self.log.has(upsert.batch):
            plan = self._plan(spark, upsert)
            self._commit(upsert, plan, *self._merge(spark, upsert, plan))
        with self.log.clean_up():
            remove_staged(self.address, self._epoch)

    def _plan(self, spark: SparkSession | None, upsert: Upsert) -> MergePlan:
        """Return what a batch changes. Tasks stage the rows that its DDL events move."""
        before, scope, changes = self.state, upsert.scope, upsert.changes
        ddl_events = tuple(sorted(map(ddl_event_of, changes.ddl)))
        new_events = before.not_applied(ddl_events)
        state = before.after(changes, ddl_events, scope)
        incomplete = {*state.unread}
        if scope is not None:
            targets = {event.target for event in ddl_events if event.target is not None}
            incomplete |= {name for name in targets if not scope.contains(*name)}
        is_read = changes.groups or ddl_events or self._rewrites_all(self.form)
        ranges = KeyRanges.of(self.log.files(), self.form.column) if is_read else KeyRanges()
        affected = {
            index for event in new_events for index in ranges.older(event.token, event.prefixes)
        }
        moved = [ranges[index] for index in sorted(affected)]
        if ddl_events:
            changes = self._staged_anew(spark, moved, changes.groups, ddl_events, new_events)
            ranges = ranges.without(affected)
        merges = merges_of(ranges, changes.groups, places_in(self.address, changes.groups))
        fold = Fold(
            complete_from=state.complete_from,
            complete_in={**state.complete_in, **dict.fromkeys(incomplete, ABOVE_ALL_TOKENS)},
            keeps_deleted=self.form.keeps_deleted,
            renamed=renamed_by(new_events),
        )
        state = replace(state, checksum=state.checksum - changes.removed)
        partitions = frozenset(name for each in moved for name in each.partitions)
        return MergePlan(state, partitions, ranges, merges, fold)

    def _rewrites_all(self, form: TableForm) -> bool:
        """Return whether all files are written again, because their columns do not fit a form."""
        return self._stored is not None and form.rewrites(self._stored)

    def _staged_anew(
        self,
        spark: SparkSession | None,
        moved: Sequence[KeyRange],
        groups: Sequence[ChangeGroup],
        ddl_events: Sequence[DdlEvent],
        new_events: Sequence[DdlEvent],
    ) -> ChangeReport:
        """Stage changes and rows of files again, with the namespaces that DDL events give them.

        Rows have the effect of those that are not new.
        """
        of_file, stage = attrgetter("path"), (self.address, self._epoch)
        by_file = groupby(sorted(groups, key=of_file), of_file)
        tasks = [partial(stage_moved, *stage, ddl_events, [*own]) for _, own in by_file]
        columns = self.form.base_columns
        files = (path for key_range in moved for path in key_range.paths)
        tasks += [partial(stage_file, *stage, new_events, columns, path) for path in files]
        return ChangeReport.total(run_tasks(spark, ChangeReport, tasks))

    def _merge(
        self, spark: SparkSession | None, upsert: Upsert, plan: MergePlan
    ) -> tuple[TableForm, list[tuple[Merge, MergeReport]]]:
        """Write the files of a plan, in tasks; return the table's next form, and what was written.

        If documents do not fit the form, it grows, and what the new one does not fit is written
        again.
        """
        form, pending = self.form, [*plan.merges, *self._other_merges(plan, self.form)]
        done: list[tuple[Merge, MergeReport]] = []
        while pending:
            done += zip(pending, self._written(spark, upsert, plan, form, pending), strict=True)
            wanted = [report.wanted for _, report in done if report.wanted is not None]
            before, form = form, reduce(TableForm.grown, map(StructType.fromJson, wanted), form)
            if form == before:
                break
            outdated = [form.rewrites(before) or report.wanted is not None for _, report in done]
            pending = []
            for merge, report in compress(done, outdated):
                pending.append(merge)
                Folder(self.address).remove(*(part.path for part in report.parts))
                if upsert.quarantine is not None:
                    paths = (part.path for part in report.problems)
                    Folder(upsert.quarantine.address).remove(*paths)
            done = [one for one, is_outdated in zip(done, outdated, strict=True) if not is_outdated]
            if not self._rewrites_all(before):
                pending += self._other_merges(plan, form)
        return form, done

    def _other_merges(self, plan: MergePlan, form: TableForm) -> list[Merge]:
        """Return merges of the files that a plan does not write, if they do not fit a form."""
        return merges_of_rest(plan.ranges, plan.merges) if self._rewrites_all(form) else []

    def _written(
        self,
        spark: SparkSession | None,
        upsert: Upsert,
        plan: MergePlan,
        form: TableForm,
        merges: Sequence[Merge],
    ) -> list[MergeReport]:
        """Write the files of some merges of a plan, in a form."""
        quarantine = None
        if upsert.quarantine is not None and upsert.batch is not None:
            quarantine = upsert.quarantine.address, upsert.batch.number
        again = self._rewrites_all(form)
        tasks = [
            MergeTask(self.address, quarantine, merge, plan.fold, form, again) for merge in merges
        ]
        session = spark if sum(merge.size for merge in merges) > _DRIVER_BYTES else None
        return run_tasks(session, MergeReport, tasks, "files merged")

    def _commit(
        self,
        upsert: Upsert,
        plan: MergePlan,
        form: TableForm,
        written: Sequence[tuple[Merge, MergeReport]],
    ) -> None:
        """Commit what was written, with the state after the batch.

        The quarantine gets its rows first. Without a change and a batch nothing is committed.
        """
        reports = [report for _, report in written]
        batch = self._quarantined(upsert, [each for one in reports for each in one.problems])
        parts = [part for report in reports for part in report.parts]
        replaced = plan.moved.union(*(merge.base.partitions for merge, _ in written))
        new = {part.partition[KEY_RANGE] for part in parts}
        state, added = plan.state, sum((report.added for report in reports), NO_ROWS)
        if upsert.scope is not None:
            lost = (document for report in reports for document in report.lost)
            contains = upsert.scope.contains
            state = state.with_lost([each for each in lost if contains(*each.namespace)])
        state = replace(
            state,
            checksum=state.checksum + added,
            partitions=state.partitions ^ partition_digest(replaced) ^ partition_digest(new),
            batch=state.batch if batch is None else batch,
        )
        if not (replaced or parts or state != self.state):
            return
        log = self.log
        names = [name for name in form.statistics_columns if name in form.file_schema.names]
        log.replace(parts, form.file_schema, state, replaced, names)
        self.state, self._stored, self.form = state, form, form

    def _quarantined(self, upsert: Upsert, problems: Sequence[PartFile]) -> Batch | None:
        """Append events to the quarantine; return the batch, which knows whether it has some.

        Both tables begin with one batch, so that a later start takes over both.
        """
        batch, quarantine = upsert.batch, upsert.quarantine
        if batch is None or quarantine is None or not (problems or not self.log.exists):
            return batch
        batch = batch.wrote(quarantine.name)
        quarantine.append(problems, arrow_schema(UNAPPLIED), batch)
        return batch


def apply_changes(
    events: DataFrame, target: str, keys: Sequence[str] = ("_id",)
) -> DataStreamWriter | None:
    """Keep the table at `target` equal to the collections that `events` come from.

    For a stream this returns a writer, to be started with a checkpointLocation; the events of a
    batch are applied immediately. Applying them again together changes nothing. With its first
    batch a query ends an earlier start of it that still runs. A new query on a table begins with
    snapshotMode=always, or where the last one ended: events from before that, one batch at a time,
    restore what a drop or a rename has removed since. On a table of which an older version was
    restored, a new query has to begin with a snapshot.

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


def namespaces_in(version: TableVersion) -> set[tuple[str, str]]:
    """Return the collections, by database and name, whose documents a table has."""
    form = TableForm.of(version.schema) if version.exists else TableForm()
    names = [form.column(name) for name in ("database", "collection")]
    namespaces: set[tuple[str, str]] = set()
    for batch in version.rows(names) if version.exists else ():
        rows = pa.Table.from_batches([batch]).group_by(names).aggregate([])
        namespaces |= set(zip(*rows.to_pydict().values(), strict=True))
    return namespaces


def _form_after(address: str, before: TableForm | None, form: TableForm) -> TableForm:
    """Return the form to write, whose schema begins with the table's. Raises OptionError."""
    if before is None:
        return form
    if (form.is_typed, form.keeps_deleted) != (before.is_typed, before.keeps_deleted):
        raise OptionError(
            f"the table at {address} has other columns: start its job with the same --schema and "
            "--deletes as before, or write to another folder"
        )
    # A column that files have without statistics gets none. The exception are types that never have
    # statistics: once such a column has them, its type has changed, and with it all files.
    known = {*before.keys, *replace(before, keys=form.keys).statistics_columns}
    form = replace(form, keys=(*before.keys, *(name for name in form.keys if name not in known)))
    return replace(form, document_schema=before.document_schema) if form.infers else form

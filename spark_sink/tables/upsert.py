"""A batch of a current table: `plan`, `merge` and `commit`.

`plan` finds the files that have the keys of a batch, `merge` writes them again in tasks, and
`commit` gives the table the new files and its state at once. Until then readers see nothing of a
batch, and a batch that ends early can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_sink.folders import remove_files
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.append_table import AppendTable
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.fold import UNREAD, Fold
from spark_sink.tables.key_ranges import (
    KEY_RANGE,
    ChangeGroup,
    KeyRange,
    KeyRanges,
    Merge,
    combined,
    merges_of,
    merges_of_rest,
)
from spark_sink.tables.log_state import Batch
from spark_sink.tables.prepare import DdlEvent, ddl_event_of
from spark_sink.tables.range_merge import QUARANTINE, MergeReport, MergeTask
from spark_sink.tables.staged_changes import (
    ChangeReport,
    Rename,
    read_groups,
    remove_changes,
)
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_state import TableScope, TableState, targets_of, unread_after
from spark_sink.tables.tasks import run_tasks

# Bytes of files and changes that the driver merges itself: a job of Spark takes as long.
_DRIVER_BYTES = 8 * 1024 * 1024
# Commits after which the files of versions that nobody reads any more are deleted.
_COMMITS_PER_VACUUM = 20


@dataclass(frozen=True)
class TableVersion:
    """The version of a table that a batch is applied to.

    Args:
        log: the table's log, at that version.
        state: what the version knows beside its rows.
        stored: the columns of its files; None if there is no table yet.
        form: the columns that are written next.
        epoch: of the start that writes.
    """

    log: DeltaLog
    state: TableState
    stored: TableForm | None
    form: TableForm
    epoch: int = 0

    @property
    def is_rewritten(self) -> bool:
        """Whether the next batch writes all files again, because the columns have changed."""
        return self.stored is not None and self.form.rewrites(self.stored)

    def ranges(self) -> KeyRanges:
        """Return the ranges of keys of its files. Raises StreamError."""
        return KeyRanges.of(self.log.files(), self.form.column)


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
        leads: whether no table but the quarantine gets the batch before this one. Then both begin
            with one batch, so that a later start of the job takes over both.
    """

    changes: ChangeReport
    batch: Batch | None = None
    quarantine: AppendTable | None = None
    scope: TableScope | None = None
    leads: bool = False


@dataclass(frozen=True)
class Plan:
    """What a batch changes in a version.

    Args:
        state: the state after the batch, without what only the merges find.
        ranges: the version's ranges of keys.
        merges: what is written again.
        changes: the staged changes, after DDL events with the rows that these move.
        moved: the partitions that have had these rows.
        fold: what applies changes to rows.
    """

    state: TableState
    ranges: KeyRanges
    merges: Sequence[Merge]
    changes: ChangeReport
    moved: frozenset[str]
    fold: Fold


@dataclass(frozen=True)
class Merged:
    """What was written: merges with their reports, and the form of the new files."""

    form: TableForm
    merges: Sequence[Merge]
    reports: Sequence[MergeReport]


def plan(spark: SparkSession | None, version: TableVersion, upsert: Upsert) -> Plan:
    """Return what a batch changes. Rows that its DDL events move are staged by tasks.

    Without `spark` the work is done in this process. Raises StreamError and OSError.
    """
    before, scope = version.state, upsert.scope
    ddl_events = tuple(sorted(map(ddl_event_of, upsert.changes.ddl)))
    state, unread = before.after(upsert.changes, ddl_events), set(before.unread)
    if scope is not None:
        found = {**before.unread, **scope.unread}
        state = replace(
            state, unread=unread_after(found, before.unknown(ddl_events), scope.contains)
        )
        unread = {e for e in targets_of(ddl_events) if not scope.contains(*e)} | {*state.unread}
    changes, moved = upsert.changes, list[KeyRange]()
    writes = changes.groups or ddl_events or version.is_rewritten
    ranges = version.ranges() if writes else KeyRanges()
    if ddl_events:
        events = before.unknown(ddl_events)
        affected = {index for e in events for index in ranges.older(e.token, e.prefixes)}
        moved = [ranges[index] for index in sorted(affected)]
        paths = [path for each in moved for path in each.paths]
        changes = staged_anew(spark, version, paths, changes.groups, ddl_events)
        ranges = ranges.emptied(affected)

    def places(group: ChangeGroup) -> list[str]:
        rows = read_groups(version.log.address, [group], ["place"])
        found: list[str] = rows["place"].to_pylist()
        return found

    return Plan(
        state,
        ranges,
        merges_of(ranges, changes.groups, places),
        changes,
        frozenset(name for each in moved for name in each.partitions),
        Fold(
            state.complete_from,
            {**state.complete_in, **{".".join(name): UNREAD for name in unread}},
            upsert.quarantine is not None,
            version.form.keeps_deleted,
        ),
    )


def merge(
    spark: SparkSession | None, version: TableVersion, upsert: Upsert, planned: Plan
) -> Merged:
    """Write the files of a plan, in tasks; without `spark` in this process.

    Where documents need a wider schema, their files are written once more with it; all files are if
    theirs does not fit the table any more. Raises StreamError and OSError.
    """
    form, again = version.form, version.is_rewritten
    task = MergeTask(
        version.log.address,
        None if upsert.quarantine is None else upsert.quarantine.log.address,
        None if upsert.batch is None else upsert.batch.number,
        Merge("", None, None),
        planned.fold,
        form,
    )
    rest = merges_of_rest(planned.ranges, planned.merges) if again else []
    merges = [*planned.merges, *rest]
    reports = _run(spark, merges, replace(task, again=again))
    wanted = [StructType.fromJson(each.wanted) for each in reports if each.wanted is not None]
    if not wanted:
        return Merged(form, merges, reports)
    grown = reduce(TableForm.grown, wanted, form)
    rewrites = grown.rewrites(form)
    pairs = list(zip(merges, reports, strict=True))
    kept = [] if rewrites else [pair for pair in pairs if pair[1].wanted is None]
    left = [pair for pair in pairs if rewrites or pair[1].wanted is not None]
    for _, report in left:
        remove_files(version.log.address, (each["path"] for each in report.parts))
    chosen = [each for each, _ in left]
    if rewrites and not again:
        chosen += merges_of_rest(planned.ranges, planned.merges)
    reports = _run(spark, chosen, replace(task, form=grown, again=rewrites))
    return Merged(
        grown,
        [*(each for each, _ in kept), *chosen],
        [*(report for _, report in kept), *reports],
    )


def commit(version: TableVersion, upsert: Upsert, planned: Plan, merged: Merged) -> TableVersion:
    """Commit what was written, with the state after the batch; return the new version.

    The quarantine gets its rows first. Without a change and a batch nothing is committed. Raises
    StreamError if another writer was faster.
    """
    batch, reports, state = upsert.batch, merged.reports, planned.state
    problems = [each for report in reports for each in report.problems]
    if (problems or upsert.leads) and upsert.quarantine is not None and batch is not None:
        batch = batch.wrote(upsert.quarantine.name)
        upsert.quarantine.commit(problems, arrow_schema(QUARANTINE), batch)
    if upsert.scope is not None:
        lost = (each for report in reports for each in report.lost)
        contains = upsert.scope.contains
        state = state.without([each for each in lost if contains(each.database, each.collection)])
    checksum = sum((report.added for report in reports), state.checksum)
    rewritten = {n for each in merged.merges if each.rows for n in each.rows.partitions}
    replaced = planned.moved | rewritten
    parts = [each for report in reports for each in report.parts]
    new = {json.loads(each["partition"])[KEY_RANGE] for each in parts}
    state = replace(
        state,
        checksum=checksum - planned.changes.removed,
        partitions=state.partitions ^ combined(replaced) ^ combined(new),
    )
    if replaced or parts or state != version.state or batch is not None:
        log, form = version.log, merged.form
        compared = [name for name in form.compared if name in form.stored.names]
        before = log.compared if log.exists else compared
        log.compare([name for name in before if name in compared])
        replacement = {KEY_RANGE: sorted(replaced)}
        log.replace(parts, form.stored, state.document, batch, **replacement)
        log.compare(compared)
        version = replace(version, state=state, stored=form, form=form)
        if log.version and log.version % _COMMITS_PER_VACUUM == 0:
            log.vacuum()
    if upsert.changes.ddl:
        remove_changes(version.log.address, planned.changes.groups)
    return version


def staged_anew(
    spark: SparkSession | None,
    version: TableVersion,
    files: Sequence[str],
    groups: Sequence[ChangeGroup] = (),
    ddl_events: tuple[DdlEvent, ...] = (),
) -> ChangeReport:
    """Stage rows of files, and changes, with the namespaces that DDL events give them."""
    by_file: dict[str, list[ChangeGroup]] = {}
    for each in groups:
        by_file.setdefault(each.path, []).append(each)
    address, epoch = version.log.address, version.epoch
    tasks = [Rename(address, path, epoch, ddl_events, tuple(own)) for path, own in by_file.items()]
    events, columns = version.state.unknown(ddl_events), version.form.version_columns
    tasks += [Rename(address, path, epoch, events, columns=columns) for path in files]
    report = ChangeReport()
    for found in run_tasks(spark, ChangeReport, tasks):
        report.add(found)
    return report


def _run(spark: SparkSession | None, merges: Sequence[Merge], task: MergeTask) -> list[MergeReport]:
    work = sum(each.size for each in merges)
    tasks = [replace(task, merge=each) for each in merges]
    return run_tasks(spark if work > _DRIVER_BYTES else None, MergeReport, tasks)

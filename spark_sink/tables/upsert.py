"""A batch of a current table: `plan`, `merge` and `commit`.

`plan` finds the files that have the keys of a batch, `merge` writes them again in tasks, and
`commit` gives the table the new files and its state at once. Until then readers see nothing of a
batch, and a batch that ends early can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_sink.folders import remove_files
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.fold import UNREAD, Fold
from spark_sink.tables.key_ranges import (
    KEY_RANGE,
    ChangeGroup,
    KeyRange,
    KeyRanges,
    Merge,
    merges_of,
    merges_of_rest,
    partition_digest,
)
from spark_sink.tables.prepare import DdlEvent, ddl_event_of
from spark_sink.tables.range_merge import UNAPPLIED, MergeReport, MergeTask
from spark_sink.tables.staged_changes import (
    ChangeReport,
    read_groups,
    remove_changes,
    stage_file,
    stage_moved,
)
from spark_sink.tables.state_files import Batch
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_state import TableScope, TableState, unread_after
from spark_sink.tables.tasks import run_tasks

# The most bytes that the driver merges itself, since to start a job of Spark takes as long.
_DRIVER_BYTES = 8 * 1024 * 1024
# Commits after which the files of versions that nobody reads any more are deleted.
_COMMITS_PER_VACUUM = 20


@dataclass(frozen=True)
class TableVersion:
    """The version of a table that a batch is applied to.

    Args:
        log: the table's log, at that version.
        state: what is recorded for the version beside its files.
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
        creates_quarantine: whether the table's first commit creates the quarantine as well, even an
            empty one. So both begin with one batch, and a later start takes over both.
    """

    changes: ChangeReport
    batch: Batch | None = None
    quarantine: DeltaLog | None = None
    scope: TableScope | None = None
    creates_quarantine: bool = False


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
    """What was written: the form of the new files, and the reports of the merges."""

    form: TableForm
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
        named = {each.target for each in ddl_events if each.target is not None}
        unread = {*state.unread, *(each for each in named if not scope.contains(*each))}
    changes, moved = upsert.changes, list[KeyRange]()
    writes = changes.groups or ddl_events or version.is_rewritten
    ranges = KeyRanges.of(version.log.files(), version.form.column) if writes else KeyRanges()
    if ddl_events:
        events = before.unknown(ddl_events)
        affected = {index for e in events for index in ranges.older(e.token, e.prefixes)}
        moved = [ranges[index] for index in sorted(affected)]
        paths = [path for each in moved for path in each.paths]
        changes = staged_anew(spark, version, paths, changes.groups, ddl_events)
        ranges = ranges.without(affected)

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
    spark: SparkSession | None,
    version: TableVersion,
    upsert: Upsert,
    planned: Plan,
) -> Merged:
    """Write the files of a plan, in tasks; without `spark` in this process.

    Where documents need a wider schema, their files are written once more with it; all files are if
    theirs does not fit the table any more. Raises StreamError and OSError.
    """
    form, again = version.form, version.is_rewritten
    task = partial(
        MergeTask,
        version.log.address,
        None if upsert.quarantine is None else upsert.quarantine.address,
        None if upsert.batch is None else upsert.batch.number,
        fold=planned.fold,
    )
    rest = partial(merges_of_rest, planned.ranges, planned.merges)  # as long as the table
    left, done = [*planned.merges, *(rest() if again else ())], list[tuple[Merge, MergeReport]]()
    while True:
        work = sum(each.size for each in left)
        tasks = [task(merge=each, form=form, again=again) for each in left]
        session = spark if work > _DRIVER_BYTES else None
        reports = run_tasks(session, MergeReport, tasks, "files merged")
        done += zip(left, reports, strict=True)
        wanted = [StructType.fromJson(each.wanted) for _, each in done if each.wanted is not None]
        before, form = form, reduce(TableForm.grown, wanted, form)
        if form == before:
            return Merged(form, [report for _, report in done])
        rewrites = form.rewrites(before)
        stale = [pair for pair in done if rewrites or pair[1].wanted is not None]
        for _, report in stale:
            remove_files(version.log.address, (each["path"] for each in report.parts))
        done = [] if rewrites else [pair for pair in done if pair[1].wanted is None]
        left = [*(each for each, _ in stale), *(rest() if rewrites and not again else ())]
        again = again or rewrites


def commit(version: TableVersion, upsert: Upsert, planned: Plan, merged: Merged) -> TableVersion:
    """Commit what was written, with the state after the batch; return the new version.

    The quarantine gets its rows first. Without a change and a batch nothing is committed. Raises
    StreamError if another writer was faster.
    """
    batch, reports, state = upsert.batch, merged.reports, planned.state
    problems = [each for report in reports for each in report.problems]
    begins = upsert.creates_quarantine and not version.log.exists
    if (problems or begins) and upsert.quarantine is not None and batch is not None:
        batch = batch.wrote(upsert.quarantine.name)
        upsert.quarantine.append(problems, arrow_schema(UNAPPLIED), batch)
    if upsert.scope is not None:
        lost = (each for report in reports for each in report.lost)
        contains = upsert.scope.contains
        state = state.without([each for each in lost if contains(each.database, each.collection)])
    checksum = sum((report.added for report in reports), state.checksum)
    replaced = planned.moved.union(*(each.replaced for each in reports))
    parts = [each for report in reports for each in report.parts]
    new = {json.loads(each["partition"])[KEY_RANGE] for each in parts}
    state = replace(
        state,
        checksum=checksum - planned.changes.removed,
        partitions=state.partitions ^ partition_digest(replaced) ^ partition_digest(new),
    )
    if replaced or parts or state != version.state or batch is not None:
        log, form = version.log, merged.form
        names = [name for name in form.statistics_columns if name in form.stored.names]
        # A column loses statistics before the commit, or gets them after it: no file lacks any.
        before = log.statistics_columns if log.exists else names
        log.set_statistics_columns([name for name in before if name in names])
        log.replace(parts, form.stored, state.document, batch, replaced)
        log.set_statistics_columns(names)
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
    groups: Sequence[ChangeGroup],
    ddl_events: Sequence[DdlEvent],
) -> ChangeReport:
    """Stage rows of files, and changes, with the namespaces that DDL events give them."""
    by_file: dict[str, list[ChangeGroup]] = {}
    for each in groups:
        by_file.setdefault(each.path, []).append(each)
    stage = version.log.address, version.epoch
    tasks = [partial(stage_moved, *stage, ddl_events, own) for own in by_file.values()]
    events, columns = version.state.unknown(ddl_events), version.form.version_columns
    tasks += [partial(stage_file, *stage, events, columns, path) for path in files]
    report = ChangeReport()
    for found in run_tasks(spark, ChangeReport, tasks):
        report.add(found)
    return report

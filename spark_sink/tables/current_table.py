"""A Delta table with the documents of collections at a position in the stream.

Rows are in the order of their keys, and divided into ranges of keys, which are the partitions of
the table and have one file each. A batch writes those ranges again that have changes; one commit
replaces them and moves the position, atomically for all readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import reduce
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from spark_sink.errors import OptionError
from spark_sink.events.documents import from_document
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.append_table import AppendTable
from spark_sink.tables.ddl_events import DdlEvent, ddl_event_of
from spark_sink.tables.delta_log import Batch, DeltaLog
from spark_sink.tables.fold import DELETED, UNREAD, VERSION, Fold
from spark_sink.tables.key_ranges import ChangeGroup, Section, ranges_after, sections_of
from spark_sink.tables.range_merge import QUARANTINE, MergeReport, MergeTask
from spark_sink.tables.staged_changes import (
    CHANGE_COLUMNS,
    ChangeReport,
    Rename,
    StageRows,
    read_groups,
    remove_changes,
    remove_files,
    remove_interrupted,
)
from spark_sink.tables.table_form import KEY_RANGE, TableForm
from spark_sink.tables.table_scan import read_rows
from spark_sink.tables.table_state import (
    Covers,
    Place,
    TableState,
    Unread,
    targets_of,
    unread_after,
)
from spark_sink.tables.tasks import REPORT, reports_in, run_tasks

# Bytes of files and changes that the driver merges itself: a job of Spark takes as long.
_DRIVER_BYTES = 8 * 1024 * 1024
# Commits after which the files of versions that nobody reads any more are deleted.
_COMMITS_PER_VACUUM = 20
# Above every place that has a prefix.
_LAST = "\U0010ffff"


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
        self._epoch = epoch
        self._log = DeltaLog(target, (KEY_RANGE,), (form or TableForm()).compared, epoch=epoch)
        self._stored = self._stored_form()
        self._form = self._form_of(form or self._stored or TableForm())
        self._state = self._read_state() or TableState(tuple(keys))
        if self._state.keys != tuple(keys):
            raise OptionError(
                f"the table at {target} has the keys {', '.join(self._state.keys)}: use these, "
                "or write to another folder"
            )

    def reload(self) -> None:
        """Continue from the newest version, which others may have committed, by a compaction."""
        if self._log.reload():
            self._stored = self._stored_form()
            self._form = self._form_of(self._form)
            self._state = self._read_state() or self._state

    @classmethod
    def existing(cls, target: str, form: TableForm | None = None) -> CurrentTable:
        """Return the table in a folder, with its keys. Raises OptionError if there is none."""
        log = DeltaLog(target)
        if not log.exists:
            raise OptionError(f"there is no current table at {target}: correct the path")
        return cls(target, log.position().get("keys", ("_id",)), form=form)

    def at(self, version: int, position: Mapping[str, Any]) -> CurrentTable:
        """Return an older version to read, with what its commit says. Raises StreamError."""
        found = copy(self)
        found._log = self._log.at(version, position)
        found._state = from_document(TableState, position)
        found._stored = found._form = TableForm.of(found._log.schema)
        return found

    @property
    def address(self) -> str:
        """The folder as a path or URI for Spark."""
        return self._log.address

    @property
    def state(self) -> TableState:
        """The form and the position of the version that `read` reads."""
        return self._state

    @property
    def batch(self) -> Batch | None:
        """The job's batch that has written the version; None in a table of `apply_changes`."""
        return Batch.of(self._log.position())

    @property
    def form(self) -> TableForm:
        """The columns that are written next."""
        return self._form

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows of the current version, without KEY_RANGE."""
        names = [each["name"] for each in self._log.schema["fields"]]
        return read_rows(spark, self._log, [name for name in names if name != KEY_RANGE])

    def versions(self, spark: SparkSession, *, deleted: bool = False) -> DataFrame:
        """Return the columns VERSION of each document that is not deleted.

        With `deleted` these come, too, with DELETED if the table keeps them.
        """
        names = self._version_columns()
        living = ~pc.field(DELETED) if self._form.keeps_deleted and not deleted else None
        rows = read_rows(spark, self._log, names, living)
        named = zip(names, (*VERSION, DELETED), strict=False)
        rows = rows.select(*(F.col(name).alias(known) for name, known in named))
        return rows if deleted else rows.drop(DELETED)

    def _version_columns(self) -> tuple[str, ...]:
        """Return what the columns VERSION are called here, and DELETED if the table has it."""
        names = (*VERSION, DELETED) if self._form.keeps_deleted else VERSION
        return tuple(map(self._form.column, names))

    def count(self) -> int:
        """Return the number of documents."""
        return self._log.count()

    def apply(
        self, events: DataFrame, batch: Batch | None = None, quarantine: AppendTable | None = None
    ) -> None:
        """Apply rows of the source, and commit the result as the current version.

        See `apply_staged`.
        """
        self.reload()
        remove_interrupted(self.address, self._epoch)
        if batch is not None and self._log.has(batch):
            return
        stage = StageRows(self.address, self._state.keys, quarantine is not None, self._epoch)
        staged = events.select(*CHANGE_COLUMNS).mapInArrow(stage, REPORT)
        reports = reports_in(ChangeReport, staged)
        self.apply_staged(events.sparkSession, reports, batch, quarantine)

    def apply_staged(
        self,
        spark: SparkSession | None,
        reports: Iterable[ChangeReport],
        batch: Batch | None = None,
        quarantine: AppendTable | None = None,
        covers: Covers | None = None,
        gained: Unread | None = None,
        *,
        leads: bool = False,
    ) -> None:
        """Apply what tasks have staged, and commit the result as the current version.

        Nothing happens if the table has the batch already. The events that cannot be applied are
        appended to `quarantine`, which requires a batch, before the commit; a document with such an
        event leaves the table until a later event contains it. Without it such an event raises
        StreamError, and nothing is committed. Without `spark` the work is done in this process.
        `covers` says for which collections the state notes that they must be read again; without
        it for none. `gained` are further ones, since before the batch. With `leads` no table but
        the quarantine gets the batch before this one: then both begin with one batch, so that a
        later start of the job takes over both.
        """
        read = ChangeReport()
        for each in reports:
            read.add(each)
        if batch is None or not self._log.has(batch):
            leads = leads and not self._log.exists
            self._apply(spark, read, batch, quarantine, covers, gained or {}, leads)
        remove_changes(self.address, read.groups)

    def _apply(
        self,
        spark: SparkSession | None,
        read: ChangeReport,
        batch: Batch | None,
        quarantine: AppendTable | None,
        covers: Covers | None,
        gained: Unread,
        leads: bool,
    ) -> None:
        ddl_events = tuple(sorted(map(ddl_event_of, read.ddl)))
        state = self._state.after(read, ddl_events)
        outside: list[Place] = []
        if covers is not None:
            outside = [each for each in targets_of(ddl_events) if not covers(*each)]
            unread = {**self._state.unread, **gained}
            unread = unread_after(unread, self._state.unknown(ddl_events), covers)
            state = replace(state, unread=unread)
        files: dict[str, list[dict[str, Any]]] = {}
        for each in self._log.actions():
            files.setdefault(each[f"partition.{KEY_RANGE}"], []).append(each)
        affected = self._affected(self._state.unknown(ddl_events), files)
        if ddl_events:
            paths = [each["path"] for name in affected for each in files.pop(name, ())]
            read = self.staged(spark, paths, read.groups, ddl_events)
        sizes = {name: sum(each["size_bytes"] for each in found) for name, found in files.items()}

        def places(group: ChangeGroup) -> list[str]:
            found: list[str] = read_groups(self.address, [group], ["place"])["place"].to_pylist()
            return found

        sections = sections_of(state.ranges, read.groups, sizes, places)
        lacking = {".".join(place): UNREAD for place in (*state.unread, *outside)}
        complete_in = {**state.complete_in, **lacking}
        names = ["" if each.base is None else each.base.name for each in sections]

        def task(section: Section, form: TableForm, again: bool) -> MergeTask:
            name = "" if section.base is None else section.base.name
            tolerant = quarantine is not None
            fold = Fold(state.complete_from, complete_in, tolerant, form.keeps_deleted)
            return MergeTask(
                self.address,
                None if quarantine is None else quarantine.log.address,
                None if batch is None else batch.number,
                section,
                [each["path"] for each in files.get(name, ())],
                sizes.get(name, 0),
                names.count(name) > 1,
                fold,
                form,
                again,
            )

        others = [each for each in state.ranges if each.name in files.keys() - set(names)]
        rest = [Section(each.first, None, each) for each in others]
        form, written, reports = self._merged(spark, sections, rest, task)
        problems = [each for report in reports for each in report.problems]
        if (problems or leads) and quarantine is not None and batch is not None:
            batch = batch.wrote(quarantine.name)
            quarantine.commit(problems, arrow_schema(QUARANTINE), batch)
        if covers is not None:
            lost = [each for report in reports for each in report.lost]
            state = state.without([e for e in lost if covers(e.database, e.collection)])
        replaced = affected | {each.base.name for each in written if each.base is not None}
        new = [each for report in reports for each in report.ranges]
        added = sum((report.added for report in reports), state.checksum)
        ranges = ranges_after(state.ranges, replaced, new)
        state = replace(state, ranges=ranges, checksum=added - read.removed)
        if replaced or new or state != self._state or batch is not None:
            parts = [each for report in reports for each in report.parts]
            replacement = {KEY_RANGE: sorted(replaced)}
            compared = [name for name in form.compared if name in form.stored.names]
            before = self._log.compared if self._log.exists else compared
            self._log.compare([name for name in before if name in compared])
            self._log.replace(parts, form.stored, state.document, batch, **replacement)
            self._log.compare(compared)
            self._state, self._stored, self._form = state, form, form
            if self._log.version and self._log.version % _COMMITS_PER_VACUUM == 0:
                self._log.vacuum()
        if ddl_events:
            remove_changes(self.address, read.groups)

    def _merged(
        self,
        spark: SparkSession | None,
        sections: Sequence[Section],
        rest: Sequence[Section],
        task: Callable[[Section, TableForm, bool], MergeTask],
    ) -> tuple[TableForm, Sequence[Section], Sequence[MergeReport]]:
        """Merge sections; return the form of the files, the sections that were written, and how.

        Where the documents need a wider schema, their sections are written once more with it. The
        `rest` of the sections is written only if their files do not fit the table any more.
        """

        def run(chosen: Sequence[Section], form: TableForm, again: bool) -> list[MergeReport]:
            tasks = [task(each, form, again) for each in chosen]
            work = sum(t.size + sum(each.size for each in t.section.changes) for t in tasks)
            return run_tasks(spark if work > _DRIVER_BYTES else None, MergeReport, tasks)

        form, before = self._form, self._stored
        again = before is not None and form.rewrites(before)
        if again:
            sections, rest = [*sections, *rest], ()
        reports = run(sections, form, again)
        wanted = [StructType.fromJson(each.wanted) for each in reports if each.wanted is not None]
        if not wanted:
            return form, sections, reports
        form = reduce(TableForm.grown, wanted, form)
        again = form.rewrites(self._form)
        pairs = list(zip(sections, reports, strict=True))
        kept = [] if again else [pair for pair in pairs if pair[1].wanted is None]
        left = [pair for pair in pairs if again or pair[1].wanted is not None]
        for _, report in left:
            remove_files(self.address, (each["path"] for each in report.parts))
        chosen = [each for each, _ in left] + list(rest if again else ())
        sections = [*(each for each, _ in kept), *chosen]
        return form, sections, [*(each for _, each in kept), *run(chosen, form, again)]

    def _form_of(self, form: TableForm) -> TableForm:
        """Return the form to write, whose schema begins with the table's. Raises OptionError."""
        if self._stored is None:
            return form
        before = self._stored
        if (form.is_typed, form.keeps_deleted) != (before.is_typed, before.keeps_deleted):
            raise OptionError(
                f"the table at {self._log.address} has other columns: start its job with the "
                "--schema and --deletes of before, or write to another folder"
            )
        known = () if before.schema is None else before.schema.fieldNames()
        new = (name for name in form.keys if name not in (*before.keys, *known))
        form = replace(form, keys=(*before.keys, *new))  # no file has a column of the new ones
        return replace(form, schema=before.schema) if form.infers else form

    def _stored_form(self) -> TableForm | None:
        log = self._log
        return TableForm.of(log.schema, log.compared) if log.exists else None

    def _affected(
        self, ddl_events: Sequence[DdlEvent], files: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> set[str]:
        """Return the names of the ranges that may have rows that DDL events change."""
        least = f"min.{self._form.column('token')}"
        tokens = {
            name: min((each.get(least) or "" for each in found), default="~")
            for name, found in files.items()
        }
        return {
            each.name
            for each in self._state.ranges
            for event in ddl_events
            if tokens.get(each.name, "~") < event.token
            and any(each.first < p + _LAST and p <= each.last for p in event.prefixes)
        }

    def staged(
        self,
        spark: SparkSession | None,
        files: Sequence[str],
        groups: Sequence[ChangeGroup] = (),
        ddl_events: tuple[DdlEvent, ...] = (),
    ) -> ChangeReport:
        """Stage rows of files, and changes, with the namespaces that DDL events give them."""
        by_file: dict[str, list[ChangeGroup]] = {}
        for each in groups:
            by_file.setdefault(each.path, []).append(each)
        staged = [
            Rename(self.address, path, self._epoch, ddl_events, tuple(found))
            for path, found in by_file.items()
        ]
        stored = [
            Rename(
                self.address,
                path,
                self._epoch,
                self._state.unknown(ddl_events),
                columns=self._version_columns(),
            )
            for path in files
        ]
        report = ChangeReport()
        for found_there in run_tasks(spark, ChangeReport, [*staged, *stored]):
            report.add(found_there)
        return report

    def _read_state(self) -> TableState | None:
        if not self._log.exists:
            return None
        state = self._log.position()
        if "keys" not in state:
            raise OptionError(
                f"the Delta table at {self._log.address} is no current table: write to another "
                "folder"
            )
        return from_document(TableState, state)

"""Staged changes: files that hold the changes of a batch until they are merged.

A task sorts its changes by place and writes them to files beside the current table, in a folder
that readers of Delta tables ignore. Executors import this module (docs/on-a-cluster.md).
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_sink.events.header import SNAPSHOT_END
from spark_sink.events.positions import ABOVE_ALL_TOKENS
from spark_sink.events.slices import field_of, fields_of
from spark_sink.folders import Folder
from spark_sink.rows.arrow_types import arrow_schema, filtered
from spark_sink.rows.checksum import NO_ROWS, Checksum
from spark_sink.tables.ddl_events import DDL_TYPES, DdlEvent
from spark_sink.tables.key_ranges import ChangeGroup
from spark_sink.tables.keyed_rows import KEYED, KeyedRows, sorted_rows

CHANGE_COLUMNS = ("database", "collection", "operationType", "token", "event")
"""The columns of the source's rows from which a current table is made."""
_CHANGES = ("insert", "update", "replace", "delete", "read")
_FOLDER = "_changes"
_KEYED = arrow_schema(KEYED)
_ROWS_PER_GROUP = 5_000
# A task reads whole groups: small ones contain few changes of other tasks.
_GROUP_BYTES = 1024 * 1024
# Bytes of changes that a task sorts together.
_SORTED_BYTES = 16 * 1024 * 1024


@dataclass
class ChangeReport:
    """What a task has read.

    Attributes:
        groups: the row groups of the files that it has written.
        through: the token of the last event; empty if there is none.
        ddl: the BSON of DDL events and of ends of snapshots.
        before_snapshot: the token of the last event before the first row of a snapshot.
        is_initial: whether a snapshot is read that no signal and no table has requested.
        removed: the checksum of the rows that were staged from files of the table.
    """

    groups: list[ChangeGroup] = field(default_factory=list)
    through: str = ""
    ddl: list[bytes] = field(default_factory=list)
    before_snapshot: str = ""
    is_initial: bool = False
    removed: Checksum = NO_ROWS

    @classmethod
    def total(cls, reports: Iterable[ChangeReport]) -> ChangeReport:
        """Return what several tasks have read."""
        total = cls()
        for report in reports:
            total.add(report)
        return total

    def add(self, other: ChangeReport) -> None:
        """Add what another task has read."""
        self.groups += other.groups
        self.ddl += other.ddl
        self.removed += other.removed
        self.through = max(self.through, other.through)
        known = filter(None, (self.before_snapshot, other.before_snapshot))
        self.before_snapshot = min(known, default="")
        self.is_initial |= other.is_initial


class ChangeStage:
    """Stages the changes of one task.

    Args:
        address: the current table's.
        keys: the fields of the document key that identify a document.
        epoch: of the start of the job; a later start removes what earlier starts have staged.
    """

    def __init__(self, address: str, keys: Sequence[str] = ("_id",), *, epoch: int = 0) -> None:
        self._epoch = epoch
        self._keyed_rows = KeyedRows(keys, ())
        self._folder = Folder(address)
        self._pending: list[pa.RecordBatch] = []
        self._size = 0
        self._first_read = ABOVE_ALL_TOKENS
        self._report = ChangeReport()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with CHANGE_COLUMNS. Raises OSError."""
        rows = batch.select(CHANGE_COLUMNS)
        kinds = rows["operationType"]
        report = self._report
        is_read = pc.equal(kinds, "read")
        marks = pc.fill_null(pc.or_(is_read, pc.equal(kinds, SNAPSHOT_END)), fill_value=False)
        last = pc.max(rows["token"].filter(pc.invert(marks))).as_py()
        report.through = max(report.through, last or "")
        ddl = pc.is_in(kinds, value_set=pa.array(DDL_TYPES))
        report.ddl += rows["event"].filter(ddl).to_pylist()
        for event in rows["event"].filter(marks).slice(0, 1).to_pylist():
            of_request = (field_of(event, b"signal"), field_of(event, b"requested"))
            report.is_initial |= of_request == (None, None)
        self._note_snapshot(rows.filter(pc.fill_null(is_read, fill_value=False)))
        changes = filtered(rows, pc.is_in(kinds, value_set=pa.array(_CHANGES)))
        for keyed in self._keyed_rows.events([changes.drop_columns(["operationType"])]):
            self.add_keyed(keyed)

    def add_keyed(self, batch: pa.RecordBatch) -> None:
        """Add rows of KEYED. Raises OSError."""
        if batch.num_rows:
            self._pending.append(batch)
            self._size += batch.nbytes
        if self._size >= _SORTED_BYTES:
            self._write()

    def close(self) -> ChangeReport:
        """Complete the files, and return the report. Raises OSError."""
        self._write()
        return self._report

    def _note_snapshot(self, rows: pa.RecordBatch) -> None:
        """Note which event came before the first of a snapshot's rows."""
        if not rows.num_rows or rows["token"][0].as_py() >= self._first_read:
            return
        self._first_read = rows["token"][0].as_py()
        data = field_of(rows["event"][0].as_py(), b"signal")
        signal = {} if data is None else fields_of(data.value)
        streamed = signal.get(b"streamed")
        self._report.before_snapshot = (streamed and streamed.text()) or self._first_read

    def _write(self) -> None:
        if not self._pending:
            return
        rows = sorted_rows(pa.Table.from_batches(self._pending))
        path = f"{_FOLDER}/{self._epoch}-{uuid.uuid4().hex}.parquet"
        share = self._size // rows.num_rows
        step = max(1, min(_ROWS_PER_GROUP, _GROUP_BYTES // max(1, share)))
        with self._folder.create(path) as stream:
            pq.write_table(
                rows,
                stream,
                row_group_size=step,
                compression="lz4",
                use_dictionary=False,
                write_statistics=False,
            )
        for number, start in enumerate(range(0, rows.num_rows, step)):
            places = rows["place"].slice(start, step)
            first, last = places[0].as_py(), places[-1].as_py()
            self._report.groups.append(ChangeGroup(path, number, first, last, share * len(places)))
        self._pending, self._size = [], 0


def stage_rows(
    batches: Iterable[pa.RecordBatch], address: str, keys: Sequence[str], epoch: int = 0
) -> ChangeReport:
    """Stage rows of the source in one task, for the table at an address, as `ChangeStage`."""
    stage = ChangeStage(address, keys, epoch=epoch)
    for batch in batches:
        stage.add(batch)
    return stage.close()


def stage_moved(
    address: str, epoch: int, ddl_events: Sequence[DdlEvent], groups: Sequence[ChangeGroup]
) -> ChangeReport:
    """Stage changes again in one task, with the namespaces that DDL events give them. OSError."""
    stage, keyed_rows = ChangeStage(address, epoch=epoch), KeyedRows((), ddl_events)
    for moved in map(keyed_rows.after_ddl, read_groups(address, groups).to_batches()):
        stage.add_keyed(moved)
    return stage.close()


def stage_file(
    address: str, epoch: int, ddl_events: Sequence[DdlEvent], columns: Sequence[str], path: str
) -> ChangeReport:
    """Stage the rows of a file of the table in one task, as `stage_moved`.

    `columns` are the names in the table of the columns that `KeyedRows.table_rows` reads.
    """
    stage, keyed_rows = ChangeStage(address, epoch=epoch), KeyedRows((), ddl_events)
    removed = NO_ROWS
    with Folder(address).files.open_input_file(path) as stream:
        for stored in pq.ParquetFile(stream).iter_batches(_ROWS_PER_GROUP):
            removed += Checksum.of(stored)
            for moved in keyed_rows.table_rows([stored.select(columns)]):
                stage.add_keyed(moved)
    return replace(stage.close(), removed=removed)


def read_groups(
    address: str,
    groups: Sequence[ChangeGroup],
    columns: list[str] | None = None,
    chosen: Callable[[pa.Table], pa.Table] = lambda rows: rows,
) -> pa.Table:
    """Return staged changes, sorted within each file. Raises OSError.

    `chosen` returns which rows of a file are kept in memory.
    """
    files = Folder(address).files
    numbers: dict[str, list[int]] = {}
    for group in groups:
        numbers.setdefault(group.path, []).append(group.number)
    tables = []
    for path, wanted in numbers.items():
        with files.open_input_file(path) as stream:
            file = pq.ParquetFile(stream)
            tables.append(chosen(file.read_row_groups(wanted, columns, use_threads=False)))
    return pa.concat_tables(tables) if tables else _KEYED.empty_table()


def places_in(address: str, groups: Sequence[ChangeGroup]) -> Callable[[ChangeGroup], list[str]]:
    """Return what reads the places of one of the groups, in order; each file once. OSError."""

    by_file: dict[str, list[ChangeGroup]] = {}
    for group in groups:
        by_file.setdefault(group.path, []).append(group)

    @cache
    def of_file(path: str) -> list[str]:
        return list(read_groups(address, by_file[path], ["place"])["place"].to_pylist())

    def of_group(group: ChangeGroup) -> list[str]:
        places = of_file(group.path)
        return places[bisect_left(places, group.first) : bisect_right(places, group.last)]

    return of_group


def remove_staged(address: str, epoch: int = 0) -> None:
    """Remove what starts with an epoch up to this one have staged, while this one stages nothing.

    It is applied, or nobody will: an earlier start may still be running, but it cannot commit any
    more. Raises OSError.
    """
    folder = Folder(address)
    staged = folder.listed(_FOLDER)
    epochs = ((file.base_name.partition("-")[0], file.path) for file in staged)
    folder.remove(*(path for text, path in epochs if text.isdecimal() and int(text) <= epoch))

"""A version of a Delta table, read through delta-rs: its schema, files and rows, and its state.

Versions that pyarrow would read wrongly, because of features of Delta that another program has
turned on, are refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from operator import and_
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_sink.errors import FULL_DISK, StreamError
from spark_sink.folders import Folder
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.executors import REPORT_PROGRESS, rows_of
from spark_sink.tables.parquet_parts import BATCH, RowFilter, TableFile, TableScan
from spark_sink.tables.places import KEY_RANGE
from spark_sink.tables.range_files import partition_digest, partitions_of
from spark_sink.tables.state_files import (
    APPLICATION,
    commit_path,
    read_state,
    restored_error,
    state_in_commits,
)
from spark_sink.tables.table_state import Batch, TableState

STATISTICS = "delta.dataSkippingStatsColumns"
"""The property of a table with the columns that have statistics in its commits."""
DROP_FEATURE = (
    "drop it in Spark with ALTER TABLE name DROP FEATURE {} TRUNCATE HISTORY, now and again a "
    "day later (docs/limitations.md#of-the-tables)"
)
"""The remedy for a feature with which a table cannot be read or written."""
_COLUMN_MAPPING = "delta.columnMapping.mode"
"""The property of a table whose files may have other names for its columns."""
_UNREAD_FEATURES = {"deletionVectors", "columnMapping"}
"""The features of tables that other programs may turn on, and that pyarrow's reader ignores."""
_PATHS_LOOKED_UP = 1_000
"""Files that are looked up or deleted between two reports of progress."""
_SCAN_BYTES = 64 * 1024 * 1024
"""Bytes of files for one task."""
_NO_FILES = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("num_records", pa.int64())]
).empty_table()


class DeletedVersionError(StreamError):
    """A version of a table cannot be read, because files of it have been deleted."""


class TableVersion:
    """A version of the table at an address. Methods raise StreamError where the storage fails.

    Args:
        address: of the folder, as a path or URI for Spark.
        table: the version; None if there is no table.
    """

    def __init__(self, address: str, table: DeltaTable | None) -> None:
        self.address = address
        self._table = table
        self._known_state: tuple[int | None, TableState] = None, TableState()

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.address.rpartition("/")[2]

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    @property
    def version(self) -> int | None:
        """The number of the version; None if there is no table."""
        return None if self._table is None else int(self._table.version())

    @property
    def id(self) -> str:
        """The id of the table, which one that is made again at the address does not have."""
        return "" if self._table is None else str(self._table.metadata().id)

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the table."""
        return {} if self._table is None else self._table.metadata().configuration

    @property
    def partitions(self) -> list[str]:
        """The partition columns."""
        return [] if self._table is None else self._table.metadata().partition_columns

    @property
    def schema(self) -> StructType:
        """The schema, of a table that exists."""
        assert self._table is not None
        return StructType.fromJson(json.loads(self._table.schema().to_json()))

    @property
    def statistics_columns(self) -> Sequence[str]:
        """The columns with statistics in the commits."""
        names = self.properties.get(STATISTICS)
        return names.split(",") if names else []

    def files(self) -> pa.Table:
        """Return what the log says about each file, as flat columns; `path` is as in the log."""
        if self._table is None:
            return _NO_FILES
        return pa.table(self._table.get_add_actions(True))

    def files_with(self, chosen: RowFilter = ()) -> list[TableFile]:
        """Return the files without those that, by their statistics, have no chosen row."""
        files = self.files()
        for condition in chosen:
            if isinstance(condition, tuple):
                files = _with_rows(files, *condition)
        columns = {name: f"partition.{name}" for name in self.partitions}
        names = ["path", "size_bytes", "modification_time", *columns.values()]
        return [
            TableFile(
                unquote(row["path"]),
                row["size_bytes"],
                {name: row[column] for name, column in columns.items()},
                row["modification_time"],
            )
            for row in (files.select(names).to_pylist() if files.num_rows else ())
        ]

    def scans(
        self,
        columns: Sequence[str],
        chosen: RowFilter = (),
        files: Iterable[TableFile] | None = None,
    ) -> list[TableScan]:
        """Return scans of columns, which leave out files without a chosen row.

        `files` are the files to read; None for all of the version.
        """
        portions: list[list[tuple[str, Mapping[str, Any]]]] = []
        size = _SCAN_BYTES
        for file in self.files_with(chosen) if files is None else files:
            if size >= _SCAN_BYTES:
                portions.append([])
                size = 0
            size += file.size
            portions[-1].append((file.path, file.partition))
        schema = arrow_schema(self.schema)
        terms = [
            pq.filters_to_expression([term]) if isinstance(term, tuple) else term for term in chosen
        ]
        rows = reduce(and_, terms) if terms else None
        return [TableScan(self.address, schema, columns, portion, rows) for portion in portions]

    def rows(self, columns: Sequence[str], chosen: RowFilter = ()) -> Iterator[pa.RecordBatch]:
        """Return columns of the chosen rows, read in this process."""
        with self.stream_errors():
            scans = self.scans(columns, chosen)
            files = [file for part in scans for file in part.files]
            for first in scans[:1]:
                yield from replace(first, files=files).together()

    def read(
        self, spark: SparkSession, columns: Sequence[str] | None = None, chosen: RowFilter = ()
    ) -> DataFrame:
        """Return columns, by default all but KEY_RANGE, of the chosen rows, read in tasks."""
        every = self.schema
        names = [name for name in every.names if name != KEY_RANGE] if columns is None else columns
        schema = StructType([every[name] for name in names])
        return rows_of(spark, [partial(iter, part) for part in self.scans(names, chosen)], schema)

    def paths(self) -> set[str]:
        """Return the relative paths of the files."""
        return {*map(unquote, self.files()["path"].to_pylist())}

    def count(self) -> int:
        """Return the number of rows, by the statistics of files."""
        return int(pc.sum(self.files()["num_records"]).as_py() or 0)

    def state(self) -> TableState:
        """Return the state of the version; TableState() if no commit has given it one.

        Raises StreamError if it is lost.
        """
        number = self._transaction(APPLICATION)
        if number is not None and number != self._known_state[0]:
            with self.stream_errors():
                self._known_state = number, read_state(self.address, number)
        return self._known_state[1]

    def batch(self) -> Batch:
        """Return the newest batch. Raises StreamError if there is none."""
        batch = self.state().batch
        if not batch.query:
            raise StreamError(
                f"the table at {self.address} has no batch, so no job has written it: correct the "
                "path, or restore the folder with all its files"
            )
        return batch

    def is_restored(self, name: str = "") -> bool:
        """Return whether the version is an older one that another program has restored.

        It lacks batches, but has the state of a later version: application transactions survive a
        restore. If the commits of both have expired, the files are compared with the state. A
        current table must have the partitions of its state. Another table, whose `name` is given,
        must have rows of the newest batch that wrote some; without a name others may remove rows
        from the table.
        """
        state, known = self.state(), None
        if state != TableState() and self.version is not None:
            with self.stream_errors():
                known = state_in_commits(Folder(self.address), self.version)
        if known is not None:
            return known != state
        if KEY_RANGE in self.partitions:
            return bool(partition_digest(partitions_of(self.files())) != state.partitions)
        newest = state.batch.written.get(name)
        return newest is not None and not any(
            rows.num_rows for rows in self.rows([BATCH], [(BATCH, "==", newest)])
        )

    def require_not_restored(self, name: str = "") -> None:
        """Raise StreamError if an older version was restored (`is_restored`)."""
        if self.is_restored(name):
            raise restored_error(self.address)

    def at(self, version: int, state: TableState) -> TableVersion:
        """Return an older version; its commit has `state`.

        Raises DeletedVersionError if its commit or one of its files has been deleted, and
        StreamError, also if a feature of Delta that it had hides rows from pyarrow.
        """
        with self.stream_errors():
            table = DeltaTable(self.address)
            try:
                table.load_as_version(version)
            except DeltaError as error:
                # It is of one kind for all reasons: this raises OSError where the storage fails.
                Folder(self.address).has(commit_path(version))
                raise self._deleted_version_error(version, error) from None
            older = TableVersion(self.address, table)
            older.require_readable()
            replaced = older.paths() - self.paths()
            what = f"replaced files of {self.name} looked up"
            if sum(map(len, existing_files(self.address, replaced, what))) < len(replaced):
                raise self._deleted_version_error(version)
        older._known_state = older._transaction(APPLICATION), state
        return older

    def _deleted_version_error(self, version: int, cause: object = None) -> DeletedVersionError:
        return DeletedVersionError(
            f"files of version {version} of the table at {self.address} have been deleted: the "
            "table's property delta.deletedFileRetentionDuration says how long they are kept. Make "
            "the table of that time again with job rebuild --to",
            cause,
        )

    def require_readable(self) -> None:
        """Raise StreamError if files have deleted rows, or columns under other names.

        pyarrow would return these rows, and a compaction would write them again.
        """
        if self._table is None:
            return
        unread = _UNREAD_FEATURES & {*(self._table.protocol().reader_features or ())}
        if self.properties.get(_COLUMN_MAPPING, "none") != "none":
            unread.add("columnMapping")
        for feature in sorted(unread):
            raise StreamError(
                f"version {self.version} of the table at {self.address} has the feature "
                f"{feature} of Delta, with which its rows cannot be read here: "
                f"{DROP_FEATURE.format(feature)}"
            )

    def _transaction(self, name: str) -> int | None:
        """Return the number of the newest application transaction with a name."""
        if self._table is None:
            return None
        with self.stream_errors():
            return self._table.transaction_version(name)

    @contextmanager
    def stream_errors(self) -> Iterator[None]:
        """Raise StreamError, with the remedy, for what delta-rs, Arrow and the storage raise."""
        try:
            yield
        except (DeltaError, OSError, pa.ArrowException) as error:
            remedy = "correct the path or the access to it, or restore it if files are lost"
            if any(message in str(error) for message in FULL_DISK):
                remedy = "the disk is full. Free space, and start again; nothing is lost"
            raise StreamError(
                f"the table at {self.address} cannot be read or written: {remedy}", error
            ) from None


def existing_files(address: str, paths: Collection[str], what: str) -> Iterator[list[fs.FileInfo]]:
    """Return which of these files a folder has, a portion at a time. Raises OSError.

    REPORT_PROGRESS is called with `what`, after what the caller has done with a portion.
    """
    files = Folder(address).files
    every = sorted(paths)
    for start in range(0, len(every), _PATHS_LOOKED_UP):
        chosen = every[start : start + _PATHS_LOOKED_UP]
        infos = files.get_file_info(chosen)
        yield [info for info in infos if info.type == fs.FileType.File]
        REPORT_PROGRESS.get()(what, start + len(chosen), len(every))


def _with_rows(files: pa.Table, name: str, operator: str, value: Any) -> pa.Table:
    """Return the files that may have a row whose column compares so with a value."""
    sides = {"<": ("min.",), "<=": ("min.",), ">": ("max.",), ">=": ("max.",)}
    for side in sides.get(operator, ("min.", "max.")):
        if side + name in files.column_names:
            compare = pc.less_equal if side == "min." else pc.greater_equal
            matches = compare(files[side + name], pa.scalar(value))
            files = files.filter(pc.fill_null(matches, fill_value=True))
    return files

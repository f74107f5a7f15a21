"""The Parquet files of Delta tables: tasks write their rows to files, and read the rows of files.

The driver commits the files afterwards. A file that no commit names is not part of a table. So a
task that runs twice leaves a file that `DeltaLog.vacuum` removes, and no row twice. pyarrow reads
the files: neither Delta's extension of Spark nor Hadoop's client is needed, and object stores are
read with the credentials that they are written with. Executors import this module
(docs/on-a-cluster.md).
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from operator import and_
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from spark_sink.folders import Folder
from spark_sink.rows.checksum import NO_ROWS, Checksum
from spark_sink.rows.row_schema import UNIQUE_COLUMNS

BATCH = "batch"
"""The column with the number of a row's batch, in tables to which batches are appended."""
WITH_STATISTICS = (
    "token",
    "clusterTime",
    "namespace",
    "database",
    "collection",
    "key",
    "operationType",
    "batch",
)
"""The columns whose least and greatest values are in the commit, by default."""
WITHOUT_DICTIONARY = (*UNIQUE_COLUMNS, "key", "document")
"""The columns whose values rarely repeat, by default."""
# At this level zstd costs no more than snappy does, for files of the same size. LZ4 costs less, but
# not all readers know its present form (docs/performance.md#current-tables).
_COMPRESSION = {"compression": "zstd", "compression_level": -5}
# Bytes of rows, before compression, that a task collects before it writes them as a row group.
_GROUP_BYTES = 32 * 1024 * 1024
FILE_BYTES = 128 * 1024 * 1024
"""The bytes after which a file ends."""
# The most files that a task has open.
_MOST_OPEN = 100
# What Spark and Hive escape in the names of partitions' folders.
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f")
# With the column's name, a file system's limit of 255 holds, which namespaces may exceed.
_FOLDER_BYTES = 200
_LAST_TEXT = "\U0010ffff"
_NULL = "__HIVE_DEFAULT_PARTITION__"

# Rows that a scan has in memory.
_ROWS_PER_READ = 10_000
_FORMAT = ds.ParquetFileFormat()
_VIEWS = {pa.string_view(), pa.binary_view()}
RowFilter = Sequence[tuple[str, str, Any] | pc.Expression]
"""Conditions that the rows of a result fulfil. Those that are a column, one of the operators ==, <,
<=, > and >=, and a value also exclude whole files, by the statistics in the log."""


@dataclass(frozen=True)
class TableFile:
    """A file of a table.

    Args:
        path: relative to the table.
        size: in bytes.
        partition: the values of the partition columns, by name.
        modified: when it was written, in milliseconds since 1970.
    """

    path: str
    size: int
    partition: Mapping[str, Any]
    modified: int


@dataclass(frozen=True)
class PartFile(TableFile):
    """A file that a task has written: its statistics as Delta has them, and its rows' checksum."""

    stats: dict[str, Any]
    checksum: Checksum = NO_ROWS


_Partition = tuple[str | None, ...]


class Parts:
    """The files that a task writes for one table; they are removed if the block of `with` fails.

    Otherwise each attempt to write to a full disk would leave files that no commit names.

    Args:
        root: the table's address, a path or a URI that pyarrow knows.
        schema: of all columns of the table; rows are cast to it.
        partitions: the columns whose values name the folders; the files do not contain them.
        statistics_columns: the columns whose least and greatest values are in the commit, so that
            readers leave out files.
        unique: the columns whose values rarely repeat, and which get no dictionary. The files have
            the least and greatest values of all other columns, too.
        summed: whether the files get checksums.
    """

    def __init__(
        self,
        root: str,
        schema: pa.Schema,
        partitions: Sequence[str] = (),
        *,
        statistics_columns: Sequence[str] = WITH_STATISTICS,
        unique: Sequence[str] = WITHOUT_DICTIONARY,
        summed: bool = True,
    ) -> None:
        self._schema = schema
        self._summed = summed
        self._partitions = tuple(partitions)
        self._statistics_columns = statistics_columns
        names = [name for name in schema.names if name not in self._partitions]
        self._stored = pa.schema([schema.field(name) for name in names])
        self._form = {
            **_COMPRESSION,
            "use_dictionary": [name for name in names if name not in unique],
            "write_statistics": [n for n in names if n in statistics_columns or n not in unique],
        }
        self._folder = Folder(root)
        self._pending: dict[_Partition, list[pa.Table]] = defaultdict(list)
        self._pending_bytes = 0
        self._open: dict[_Partition, _Part] = {}
        self._paths: list[str] = []
        self._done: list[PartFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        for part in self._open.values():
            part.give_up()
        with suppress(OSError):
            self._folder.remove(*self._paths)

    @property
    def size(self) -> int:
        """The bytes of the files that are being written, without the rows that wait."""
        return sum(part.size for part in self._open.values())

    def add(self, rows: pa.Table) -> None:
        """Write rows, whose columns may be in another order than the schema's."""
        rows = rows.select(self._schema.names)
        if not rows.schema.equals(self._schema):
            rows = rows.cast(self._schema)
        for partition, chosen in self._divided(rows):
            self._pending[partition].append(chosen)
            self._pending_bytes += chosen.nbytes
        if self._pending_bytes >= _GROUP_BYTES:
            self._write_pending()

    def close(self) -> list[PartFile]:
        """Complete the files, and return those that no call has returned."""
        self._write_pending()
        self._end(list(self._open))
        done, self._done = self._done, []
        return done

    def _divided(self, rows: pa.Table) -> Iterator[tuple[_Partition, pa.Table]]:
        parts: list[tuple[_Partition, pa.Table]] = [((), rows)] if rows.num_rows else []
        for name in self._partitions:
            parts = [
                ((*values, None if value is None else str(value)), chosen)
                for values, part in parts
                for value, chosen in _by_value(part, name)
            ]
        yield from parts

    def _write_pending(self) -> None:
        for partition, tables in self._pending.items():
            if partition not in self._open:
                if len(self._open) >= _MOST_OPEN:
                    self._end(list(self._open))
                self._open[partition] = self._part(partition)
            rows = pa.concat_tables(tables)
            groups = max(1, round(rows.nbytes / _GROUP_BYTES))
            self._open[partition].write(rows, -(-rows.num_rows // groups))
        self._pending.clear()
        self._pending_bytes = 0
        self._end([key for key, part in self._open.items() if part.size >= FILE_BYTES])

    def _part(self, partition: _Partition) -> _Part:
        values = dict(zip(self._partitions, partition, strict=True))
        folders = [f"{name}={_folder_name(value)}" for name, value in values.items()]
        path = "/".join([*folders, f"part-{uuid.uuid4().hex}.parquet"])
        self._paths.append(path)
        stream = self._folder.create(path)
        return _Part(path, values, stream, self._stored, self._form, self._summed)

    def _end(self, partitions: Sequence[_Partition]) -> None:
        for partition in partitions:
            self._done.append(self._open.pop(partition).close(self._statistics_columns))


@dataclass
class _Part:
    """A file that is being written."""

    path: str
    values: dict[str, str | None]
    stream: pa.NativeFile
    schema: pa.Schema
    form: dict[str, Any]
    summed: bool

    def __post_init__(self) -> None:
        self._checksum, self._written = NO_ROWS, list[pq.FileMetaData]()
        written = {"metadata_collector": self._written}
        self._writer = pq.ParquetWriter(self.stream, self.schema, **written, **self.form)

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return int(self.stream.tell())

    def write(self, rows: pa.Table, group_rows: int) -> None:
        """Write rows of the table, `group_rows` of them in each row group."""
        if self.summed:
            self._checksum += Checksum.of(rows)
        self._writer.write_table(rows.select(self.schema.names), group_rows)

    def give_up(self) -> None:
        """Close the file, whose contents do not matter."""
        self._writer.is_open = False  # otherwise its destructor tries again, and prints the failure
        for opened in (self._writer.writer, self.stream):
            with suppress(OSError, RuntimeError):
                opened.close()

    def close(self, statistics_columns: Sequence[str]) -> PartFile:
        """Complete the file, and return it, with statistics of these columns."""
        self._writer.close()
        size = self.size
        self.stream.close()
        stats = statistics(self._written[0], statistics_columns)
        now = int(time.time() * 1000)
        return PartFile(self.path, size, self.values, now, stats, self._checksum)


def numbered(rows: pa.Table, batch: int) -> pa.Table:
    """Return rows with the number of their batch as BATCH."""
    return rows.append_column(BATCH, pa.repeat(pa.scalar(batch, pa.int64()), rows.num_rows))


def statistics(metadata: pq.FileMetaData, columns: Sequence[str]) -> dict[str, Any]:
    """Return Delta's statistics of a file: the number of rows, and columns' least and greatest."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        summaries = [group.column(index).statistics for group in groups]
        if name not in columns or not all(
            summary and summary.has_null_count for summary in summaries
        ):
            continue
        nulls[name] = sum(summary.null_count for summary in summaries)
        filled = [summary for summary in summaries if summary.num_values]
        if filled and all(summary.has_min_max for summary in filled):
            least[name] = _json_value(min(summary.min for summary in filled))
            greatest[name] = _json_value(max(summary.max for summary in filled))
        elif filled and filled[0].physical_type == "BYTE_ARRAY":  # texts of more than 4 KiB
            least[name], greatest[name] = "", _LAST_TEXT
    return {
        "numRecords": metadata.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }


def _by_value(rows: pa.Table, name: str) -> Iterator[tuple[Any, pa.Table]]:
    """Return the values of a column, each with its rows."""
    values = rows[name].unique().to_pylist()
    for value in values:
        if len(values) == 1:
            yield value, rows
            continue
        column = rows[name]
        yield value, rows.filter(pc.is_null(column) if value is None else pc.equal(column, value))


def _folder_name(value: str | None) -> str:
    """Return the folder of a partition, whose value readers know from the log: it may be cut."""
    if value is None:
        return _NULL
    name = "".join(f"%{ord(c):02X}" if c in _ESCAPED or ord(c) < 32 else c for c in value)
    return name.encode()[:_FOLDER_BYTES].decode(errors="ignore")


def _json_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime | date) else value


@dataclass(frozen=True)
class TableScan:
    """Reads some files of a table.

    Args:
        address: the table's, a path or a URI.
        schema: of the table; a file may lack some columns, and fields of structs.
        columns: those to return.
        files: their paths, and the values of their partition columns.
        chosen: a condition on rows; None for all of them.
    """

    address: str
    schema: pa.Schema
    columns: Sequence[str]
    files: Sequence[tuple[str, Mapping[str, Any]]]
    chosen: pc.Expression | None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Return the rows of one file after the other. Raises OSError."""
        for file in self._fragments():
            has_views = self.chosen is not None and _has_views(file)
            batches = file.scanner(
                schema=self.schema,
                columns=self.schema.names if has_views else [*self.columns],
                filter=None if has_views else self.chosen,
                batch_size=_ROWS_PER_READ,
                batch_readahead=1,
                fragment_readahead=1,
                use_threads=False,
            ).to_batches()
            for batch in batches:
                rows = pa.Table.from_batches([batch])  # has texts and bytes instead of views
                rows = rows.filter(self.chosen) if has_views else rows
                yield from rows.select(self.columns).to_batches()

    def together(self) -> Iterator[pa.RecordBatch]:
        """Return the rows; several files are read at once. Raises OSError."""
        files = [*self._fragments()]
        if self.chosen is not None and any(map(_has_views, files)):
            yield from self
        else:
            dataset = ds.FileSystemDataset(files, self.schema, _FORMAT)
            yield from dataset.scanner(columns=[*self.columns], filter=self.chosen).to_batches()

    def _fragments(self) -> Iterator[ds.ParquetFileFragment]:
        opened = Folder(self.address).files
        for path, partition in self.files:
            yield _FORMAT.make_fragment(path, opened, _condition(partition))


def _has_views(file: ds.Fragment) -> bool:
    """Return whether a file has types that delta-rs writes, and that pyarrow cannot compare."""
    return bool(_VIEWS & {field.type for field in file.physical_schema})


def _condition(partition: Mapping[str, Any]) -> pc.Expression:
    """Return the values of the partition columns of a file as a condition."""
    conditions = [
        pc.field(name).is_null() if value is None else pc.field(name) == value
        for name, value in partition.items()
    ]
    return reduce(and_, conditions, pc.scalar(True))

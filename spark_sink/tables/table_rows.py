"""The rows of a version of a table: read in this process, or in tasks of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_sink.folders import Folder
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.executors import rows_of
from spark_sink.tables.parquet_parts import BATCH, RowFilter, TableFile, TableScan
from spark_sink.tables.places import KEY_RANGE
from spark_sink.tables.range_files import partition_digest, partitions_of
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_state import TableState
from spark_sink.tables.table_version import TableVersion
from spark_sink.tables.version_states import newest_in, restored_error

# Bytes of files for one task.
_SCAN_BYTES = 64 * 1024 * 1024


def scans_of(
    log: TableVersion,
    columns: Sequence[str],
    chosen: RowFilter = (),
    files: Iterable[TableFile] | None = None,
) -> list[TableScan]:
    """Return scans of columns of a version, which leave out files without a `chosen` row.

    `files` are the files to read; None for all of the version.
    """
    portions: list[list[tuple[str, Mapping[str, Any]]]] = []
    size = _SCAN_BYTES
    for file in log.files_with(chosen) if files is None else files:
        if size >= _SCAN_BYTES:
            portions.append([])
            size = 0
        size += file.size
        portions[-1].append((file.path, file.partition))
    schema = arrow_schema(log.schema)
    terms = [
        pq.filters_to_expression([term]) if isinstance(term, tuple) else term for term in chosen
    ]
    rows = reduce(and_, terms) if terms else None
    return [TableScan(log.address, schema, columns, portion, rows) for portion in portions]


def scan(
    log: TableVersion, columns: Sequence[str], chosen: RowFilter = ()
) -> Iterator[pa.RecordBatch]:
    """Return columns of the chosen rows of a version. Raises StreamError."""
    with log.stream_errors():
        scans = scans_of(log, columns, chosen)
        files = [file for part in scans for file in part.files]
        for first in scans[:1]:
            yield from replace(first, files=files).together()


def read_rows(
    spark: SparkSession,
    log: TableVersion,
    columns: Sequence[str] | None = None,
    chosen: RowFilter = (),
) -> DataFrame:
    """Return columns, by default all but KEY_RANGE, of the chosen rows of a version that exists."""
    every = log.schema
    names = [name for name in every.names if name != KEY_RANGE] if columns is None else columns
    scans = scans_of(log, names, chosen)
    schema = StructType([every[name] for name in names])
    return rows_of(spark, [partial(iter, part) for part in scans], schema)


def namespaces_in(log: TableVersion) -> set[tuple[str, str]]:
    """Return the collections, by database and name, whose documents a table has."""
    form = TableForm.of(log.schema) if log.exists else TableForm()
    names = [form.column(name) for name in ("database", "collection")]
    namespaces: set[tuple[str, str]] = set()
    for batch in scan(log, names) if log.exists else ():
        rows = pa.Table.from_batches([batch]).group_by(names).aggregate([])
        namespaces |= set(zip(*rows.to_pydict().values(), strict=True))
    return namespaces


def is_whole(log: TableVersion, name: str = "") -> bool:
    """Return whether no older version was restored beneath the state of a later one.

    If the commits of both have expired, the files are compared with the state. A current table must
    have the partitions of its state. Another table, whose `name` is given, must have rows of the
    newest batch that wrote some; without a name others may remove rows from the table. Raises
    StreamError.
    """
    state, newest = log.state(), None
    if state != TableState() and log.version is not None:
        with log.stream_errors():
            newest = newest_in(Folder(log.address), log.version)
    return _has_rows_of(log, state, name) if newest is None else newest == state


def require_whole(log: TableVersion, name: str = "") -> None:
    """Raise StreamError if the table is not whole (`is_whole`)."""
    if not is_whole(log, name):
        raise restored_error(log.address)


def _has_rows_of(log: TableVersion, state: TableState, name: str) -> bool:
    """Return whether the files fit a state, also after others have compacted them."""
    if KEY_RANGE in log.partitions:
        return bool(partition_digest(partitions_of(log.files())) == state.partitions)
    newest = state.batch.written.get(name)
    return newest is None or any(
        rows.num_rows for rows in scan(log, [BATCH], [(BATCH, "==", newest)])
    )

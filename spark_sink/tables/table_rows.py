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

from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.executors import rows_of
from spark_sink.tables.parquet_parts import RowFilter, TableFile, TableScan
from spark_sink.tables.places import KEY_RANGE
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_version import TableVersion

# Bytes of files for one task.
_SCAN_BYTES = 64 * 1024 * 1024


def scans_of(
    version: TableVersion,
    columns: Sequence[str],
    chosen: RowFilter = (),
    files: Iterable[TableFile] | None = None,
) -> list[TableScan]:
    """Return scans of columns of a version, which leave out files without a `chosen` row.

    `files` are the files to read; None for all of the version.
    """
    portions: list[list[tuple[str, Mapping[str, Any]]]] = []
    size = _SCAN_BYTES
    for file in version.files_with(chosen) if files is None else files:
        if size >= _SCAN_BYTES:
            portions.append([])
            size = 0
        size += file.size
        portions[-1].append((file.path, file.partition))
    schema = arrow_schema(version.schema)
    terms = [
        pq.filters_to_expression([term]) if isinstance(term, tuple) else term for term in chosen
    ]
    rows = reduce(and_, terms) if terms else None
    return [TableScan(version.address, schema, columns, portion, rows) for portion in portions]


def scan(
    version: TableVersion, columns: Sequence[str], chosen: RowFilter = ()
) -> Iterator[pa.RecordBatch]:
    """Return columns of the chosen rows of a version. Raises StreamError."""
    with version.stream_errors():
        scans = scans_of(version, columns, chosen)
        files = [file for part in scans for file in part.files]
        for first in scans[:1]:
            yield from replace(first, files=files).together()


def read_rows(
    spark: SparkSession,
    version: TableVersion,
    columns: Sequence[str] | None = None,
    chosen: RowFilter = (),
) -> DataFrame:
    """Return columns, by default all but KEY_RANGE, of the chosen rows of a version that exists."""
    every = version.schema
    names = [name for name in every.names if name != KEY_RANGE] if columns is None else columns
    scans = scans_of(version, names, chosen)
    schema = StructType([every[name] for name in names])
    return rows_of(spark, [partial(iter, part) for part in scans], schema)


def namespaces_in(version: TableVersion) -> set[tuple[str, str]]:
    """Return the collections, by database and name, whose documents a table has."""
    form = TableForm.of(version.schema) if version.exists else TableForm()
    names = [form.column(name) for name in ("database", "collection")]
    namespaces: set[tuple[str, str]] = set()
    for batch in scan(version, names) if version.exists else ():
        rows = pa.Table.from_batches([batch]).group_by(names).aggregate([])
        namespaces |= set(zip(*rows.to_pydict().values(), strict=True))
    return namespaces

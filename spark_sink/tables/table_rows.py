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
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.key_ranges import KEY_RANGE, partition_digest, partitions_of
from spark_sink.tables.parquet_parts import BATCH, partition_in
from spark_sink.tables.state_files import PARTITIONS, newest_in, restored_error
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_scan import Chosen, TableScan
from spark_sink.tables.tasks import MapRows, rows_of

# Bytes of files for one task.
_TASK_BYTES = 64 * 1024 * 1024


def scans_of(
    log: DeltaLog,
    columns: Sequence[str],
    chosen: Chosen = (),
    files: Iterable[Mapping[str, Any]] | None = None,
) -> list[TableScan]:
    """Return what reads columns of a version, without files that have no row that is `chosen`.

    `files` are those to read, as `DeltaLog.actions` describes them, if not all of them.
    """
    found: list[list[tuple[str, Mapping[str, Any]]]] = []
    size = _TASK_BYTES
    for action in log.actions(chosen) if files is None else files:
        if size >= _TASK_BYTES:
            found.append([])
            size = 0
        size += action["size_bytes"]
        found[-1].append((action["path"], partition_in(action)))
    schema = arrow_schema(StructType.fromJson(log.schema))
    terms = [pq.filters_to_expression([e]) if isinstance(e, tuple) else e for e in chosen]
    rows = reduce(and_, terms) if terms else None
    return [TableScan(log.address, schema, columns, each, rows) for each in found]


def scan(log: DeltaLog, columns: Sequence[str], chosen: Chosen = ()) -> Iterator[pa.RecordBatch]:
    """Return columns of the rows of a version that are chosen. Raises StreamError."""
    with log.failures():
        scans = scans_of(log, columns, chosen)
        files = [file for each in scans for file in each.files]
        for each in scans[:1]:
            yield from replace(each, files=files).together()


def read_rows(
    spark: SparkSession,
    log: DeltaLog,
    columns: Sequence[str] | None = None,
    chosen: Chosen = (),
    mapped: tuple[MapRows, str | StructType] | None = None,
) -> DataFrame:
    """Return columns, without some all of them, of the rows of a version that exists.

    With `mapped` the function's rows of them, which have the schema that is given. Their
    names need not be such as `DataFrame.mapInArrow` can parse, without a backtick or a star.
    """
    every = StructType.fromJson(log.schema)
    names = every.fieldNames() if columns is None else columns
    scans = scans_of(log, names, chosen)
    function, kinds = mapped or (iter, StructType([every[name] for name in names]))
    return rows_of(spark, [partial(function, each) for each in scans], kinds)


def namespaces_in(log: DeltaLog) -> set[tuple[str, str]]:
    """Return the collections of which a table has documents, by database and name."""
    form = TableForm.of(log.schema) if log.exists else TableForm()
    names = [form.column(name) for name in ("database", "collection")]
    found: set[tuple[str, str]] = set()
    for batch in scan(log, names) if log.exists else ():
        rows = pa.Table.from_batches([batch]).group_by(names).aggregate([])
        found |= set(zip(*rows.to_pydict().values(), strict=True))
    return found


def require_whole(log: DeltaLog, rows_of: str = "") -> None:
    """Raise StreamError if an older version was restored beneath the state of a later one.

    Once the commits of both have expired, the files tell it: a current table has other partitions
    than its state. Others lack rows of the newest batch that has some, which the state knows by the
    name `rows_of`; it is empty for a table from which others may remove them.
    """
    state, newest = log.state(), None
    if state and log.version is not None:
        with log.failures():
            newest = newest_in(Folder(log.address), log.version)
    is_whole = _has_rows_of(log, state, rows_of) if newest is None else newest == state
    if not is_whole:
        raise restored_error(log.address)


def _has_rows_of(log: DeltaLog, state: Mapping[str, Any], name: str) -> bool:
    """Return whether the files are those of a state, however others have compacted them."""
    if KEY_RANGE in log.partitions:
        return bool(partition_digest(partitions_of(log.files())) == state.get(PARTITIONS, 0))
    newest = state.get("written", {}).get(name)
    return newest is None or any(
        rows.num_rows for rows in scan(log, [BATCH], [(BATCH, "==", newest)])
    )

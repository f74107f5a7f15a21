"""Work of the tables in tasks of Spark: those that return a report each, and those that read rows.

No rows pass the JVM on their way to a table. Rows are read through pyarrow, so that neither Delta's
extension of Spark nor Hadoop's client is needed, and object stores are read with the same
credentials as they are written. Executors import this module, which requires pyarrow only.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_sink.events.documents import from_json, to_json
from spark_sink.folders import open_folder
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.parquet_parts import partition_in

if TYPE_CHECKING:
    from spark_sink.tables.delta_log import DeltaLog

REPORT = "report string"
"""The column of reports, which are dataclasses as JSON."""
_Report = TypeVar("_Report")
MadeRows = Iterator[pa.RecordBatch]
MapRows = Callable[[Iterable[pa.RecordBatch]], MadeRows]
"""Makes rows of rows, in a task."""
TOLD: ContextVar[Callable[[str, int, int], None]] = ContextVar("TOLD", default=lambda *_: None)
"""Called during long work: what is counted, how many are done, and of how many."""
# Tasks per core in one job of Spark, which sends the list of all tasks with each of them.
_TASKS_PER_CORE = 16


def run_tasks(
    spark: SparkSession | None,
    kind: type[_Report],
    tasks: Sequence[Callable[[], _Report]],
    what: str = "tasks done",
) -> list[_Report]:
    """Return the reports of tasks, which run on executors, or without Spark in this process.

    TOLD is told how many are done; `what` is the text for that.
    """
    found: list[_Report] = []
    step = 1 if spark is None else _TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    for start in range(0, len(tasks), step):
        chosen = tasks[start : start + step]
        if spark is None:
            found += [task() for task in chosen]
        else:
            works = [partial(reported, each) for each in chosen]
            found += reports_in(kind, rows_of(spark, works, REPORT))
        TOLD.get()(what, len(found), len(tasks))
    return found


def reported(task: Callable[..., Any], *batches: Iterable[pa.RecordBatch]) -> MadeRows:
    """Run a task, and return its report as a row: a function for `mapInArrow` with its task."""
    _freeze_imports()
    yield pa.RecordBatch.from_pydict({REPORT.split()[0]: [to_json(task(*batches))]})


@cache
def _freeze_imports() -> None:
    """Exempt what the worker has imported from the garbage collection that follows each task."""
    gc.freeze()


def reports_in(kind: type[_Report], rows: DataFrame) -> list[_Report]:
    """Run the tasks of rows with REPORT, and return the reports."""
    return [from_json(kind, row.report) for row in rows.collect()]


def rows_of(
    spark: SparkSession, works: Sequence[Callable[[], MadeRows]], schema: str | StructType
) -> DataFrame:
    """Return the rows of works, each of which is a task of Spark."""
    numbers = spark.range(0, len(works), 1, max(1, len(works)))
    return numbers.mapInArrow(partial(_run, works), schema)


def _run(works: Sequence[Callable[[], MadeRows]], batches: Iterable[pa.RecordBatch]) -> MadeRows:
    for batch in batches:
        for number in batch["id"].to_pylist():
            yield from works[number]()


# Bytes of files for one task, and rows that it has in memory.
_TASK_BYTES = 64 * 1024 * 1024
_ROWS = 10_000
_FORMAT = ds.ParquetFileFormat()
_VIEWS = {pa.string_view(), pa.binary_view()}
Chosen = Sequence[tuple[str, str, Any] | pc.Expression]
"""Conditions on rows, all of which hold. By those such as ("token", "<=", "82"), with one of the
operators ==, <, <=, > and >=, whole files are left out, as the log's statistics tell them."""


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
        """Return the rows, of one file after the other. Raises OSError."""
        for file in self._fragments():
            if self.chosen is None or not _has_views(file):
                yield from self._batches(file, self.columns, self.chosen)
                continue
            for batch in self._batches(file, self.schema.names, None):  # as texts and bytes
                rows = pa.Table.from_batches([batch]).filter(self.chosen)
                yield from rows.select(self.columns).to_batches()

    def _batches(
        self, file: ds.Fragment, columns: Sequence[str], chosen: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        yield from file.scanner(
            schema=self.schema,
            columns=[*columns],
            filter=chosen,
            batch_size=_ROWS,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        ).to_batches()

    def together(self) -> Iterator[pa.RecordBatch]:
        """Return the rows; several files are read at a time. Raises OSError."""
        files = [*self._fragments()]
        if self.chosen is not None and any(map(_has_views, files)):
            yield from self
        else:
            dataset = ds.FileSystemDataset(files, self.schema, _FORMAT)
            yield from dataset.scanner(columns=[*self.columns], filter=self.chosen).to_batches()

    def _fragments(self) -> Iterator[ds.ParquetFileFragment]:
        opened, folder = open_folder(self.address)
        for path, partition in self.files:
            yield _FORMAT.make_fragment(f"{folder}/{path}", opened, _condition(partition))


def _has_views(file: ds.Fragment) -> bool:
    """Return whether a file has types as delta-rs writes them, which pyarrow cannot compare."""
    return bool(_VIEWS & {each.type for each in file.physical_schema})


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


def _condition(partition: Mapping[str, Any]) -> pc.Expression:
    """Return the values of the partition columns of a file as a condition."""
    conditions = [
        pc.field(name).is_null() if value is None else pc.field(name) == value
        for name, value in partition.items()
    ]
    return reduce(and_, conditions, pc.scalar(True))

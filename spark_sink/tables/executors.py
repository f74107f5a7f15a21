"""Runs work on tables in tasks of Spark. A task returns a report or rows.

Executors import this module: they have neither deltalake nor pydantic (docs/on-a-cluster.md).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_sink.dataclass_json import from_json, to_json

REPORT = "report string"
"""The column with the report of a task, a dataclass as JSON."""
_Report = TypeVar("_Report")
MadeRows = Iterator[pa.RecordBatch]
REPORT_PROGRESS = ContextVar[Callable[[str, int, int], None]]("progress", default=lambda *_: None)
"""Called during long work with what is counted, the number that is done, and the total."""
# Tasks per core in one job of Spark: with each task, Spark sends the list of all of them.
_TASKS_PER_CORE = 16


def run_tasks(
    spark: SparkSession | None,
    kind: type[_Report],
    tasks: Sequence[Callable[[], _Report]],
    what: str = "tasks done",
) -> list[_Report]:
    """Run tasks on executors, or in this process if `spark` is None; return their reports.

    REPORT_PROGRESS is called with `what` and the number of tasks that are done.
    """
    reports: list[_Report] = []
    step = 1 if spark is None else _TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    for start in range(0, len(tasks), step):
        chosen = tasks[start : start + step]
        if spark is None:
            reports += [task() for task in chosen]
        else:
            works = [partial(reported, task) for task in chosen]
            reports += reports_in(kind, rows_of(spark, works, REPORT))
        REPORT_PROGRESS.get()(what, len(reports), len(tasks))
    return reports


def reported(task: Callable[..., Any], *batches: Iterable[pa.RecordBatch]) -> MadeRows:
    """Run a task, and return its report as a row; `mapInArrow` gets it with its task bound."""
    _freeze_imports()
    yield pa.RecordBatch.from_pydict({REPORT.split()[0]: [to_json(task(*batches))]})


@cache
def _freeze_imports() -> None:
    """Exclude what the worker has imported from the garbage collection after each task."""
    gc.freeze()


def reports_in(kind: type[_Report], rows: DataFrame) -> list[_Report]:
    """Run the tasks that make rows with REPORT, and return the reports."""
    return [from_json(kind, row.report) for row in rows.collect()]


def rows_of(
    spark: SparkSession, works: Sequence[Callable[[], MadeRows]], schema: str | StructType
) -> DataFrame:
    """Return the rows that `works` make; each of them is a task of Spark."""
    numbers = spark.range(0, len(works), 1, max(1, len(works)))
    return numbers.mapInArrow(partial(_run, works), schema)


def _run(works: Sequence[Callable[[], MadeRows]], batches: Iterable[pa.RecordBatch]) -> MadeRows:
    for batch in batches:
        for number in batch["id"].to_pylist():
            yield from works[number]()

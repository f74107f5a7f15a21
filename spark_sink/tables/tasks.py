"""Runs work of the tables in tasks of Spark, which return a report each: no rows pass the JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_sink.events.documents import from_json, to_json

REPORT = "report string"
"""The column of reports, which are dataclasses as JSON."""
_Report = TypeVar("_Report")


@dataclass(frozen=True)
class _Runner:
    """Runs the tasks whose numbers are its rows: a function for `DataFrame.mapInArrow`."""

    tasks: Sequence[Callable[[], Any]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield report_batch([self.tasks[number]() for number in batch["id"].to_pylist()])


def run_tasks(
    spark: SparkSession | None, kind: type[_Report], tasks: Sequence[Callable[[], _Report]]
) -> list[_Report]:
    """Return the reports of tasks, which run on executors, or without Spark in this process."""
    if spark is None:
        return [task() for task in tasks]
    if not tasks:
        return []
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    return reports_in(kind, numbers.mapInArrow(_Runner(tasks), REPORT))


def reports_in(kind: type[_Report], rows: DataFrame) -> list[_Report]:
    """Run the tasks of rows with REPORT, and return the reports."""
    return [from_json(kind, row.report) for row in rows.collect()]


def report_batch(reports: Sequence[Any]) -> pa.RecordBatch:
    """Return reports as rows."""
    texts = pa.array(map(to_json, reports), pa.string())
    return pa.RecordBatch.from_arrays([texts], names=["report"])

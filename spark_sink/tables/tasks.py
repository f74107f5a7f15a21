"""Runs work of the tables in tasks of Spark, which return a report each: no rows pass the JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

REPORT = "report string"
"""The column of reports, which are JSON documents."""

Task = Callable[[], str]
"""Does its work and returns its report; it can be pickled."""


@dataclass(frozen=True)
class _Runner:
    """Runs the tasks whose numbers are its rows: a function for `DataFrame.mapInArrow`."""

    tasks: Sequence[Task]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield report_batch([self.tasks[number]() for number in batch["id"].to_pylist()])


def run_tasks(spark: SparkSession | None, tasks: Sequence[Task]) -> list[str]:
    """Return the reports of tasks, which run on executors, or without Spark in this process."""
    if spark is None:
        return [task() for task in tasks]
    if not tasks:
        return []
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    return reports_in(numbers.mapInArrow(_Runner(tasks), REPORT))


def reports_in(rows: DataFrame) -> list[str]:
    """Run the tasks of rows with REPORT, and return the reports."""
    return [row.report for row in rows.collect()]


def report_batch(reports: Sequence[str]) -> pa.RecordBatch:
    """Return reports as rows."""
    return pa.RecordBatch.from_arrays([pa.array(reports, pa.string())], names=["report"])

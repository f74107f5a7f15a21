"""Compares the rows of a table with the checksum of all rows that were written to it.

So damage of any age is found, in any column, also where no oplog has the events any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from spark_sink.rows.checksum import NO_ROWS, Checksum
from spark_sink.tables.append_table import stored_checksum
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.key_ranges import KEY_RANGE
from spark_sink.tables.tasks import TableScan, run_tasks, scans_of


@dataclass(frozen=True)
class _Sum:
    """A task that sums the rows of a scan."""

    scan: TableScan

    def __call__(self) -> Checksum:
        return sum(map(Checksum.of, self.scan), NO_ROWS)


def checksum_difference(spark: SparkSession | None, log: DeltaLog) -> Mapping[str, Any] | None:
    """Return how the rows of a version differ from what was written; None if they do not.

    Without `spark` the work is done in this process. Raises StreamError and OSError.
    """
    names = [each["name"] for each in log.schema["fields"] if each["name"] != KEY_RANGE]
    tasks = [_Sum(each) for each in scans_of(log, names)]
    found = sum(run_tasks(spark, Checksum, tasks), NO_ROWS)
    written = stored_checksum(log)
    if found == written:
        return None
    return {"difference": "checksum", "rows": found.rows, "written": written.rows}

"""Keeps the tables of a job small: on request, and by a schedule within the job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from spark_sink.errors import SourceError
from spark_sink.jobs.job_folder import APPENDED, CURRENT, JobFolder
from spark_sink.jobs.tables_job import appended_table
from spark_sink.tables.delta_log import DeltaLog


def compact_tables(folder: JobFolder) -> list[str]:
    """Merge small files, delete those that no reader needs, and return a line for each table.

    The job may run meanwhile. Raises StreamError.
    """
    lines = []
    for name in APPENDED:
        table = appended_table(folder, name)
        if table.log.exists:
            before, after = table.compact()
            table.log.vacuum(full=True)
            lines.append(f"{name}: {before} files compacted into {after}")
    current = DeltaLog(folder.table(CURRENT))
    if current.exists:  # its files are written again as they grow
        current.vacuum(full=True)
    return lines


class Schedule:
    """Compacts the tables of a running job each time that an interval has passed.

    Args:
        seconds: the interval.
        stream: where the lines are printed.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        folder: JobFolder,
        seconds: float,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._seconds = seconds
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._last = clock()

    def __call__(self) -> None:
        """Compact the tables if it is time. A failure is printed, and the job continues."""
        if self._clock() - self._last < self._seconds:
            return
        try:
            lines = compact_tables(self._folder)
        except SourceError as error:
            lines = [f"the tables were not compacted; the job continues: {error}"]
        self._last = self._clock()
        for line in lines:
            print(line, file=self._stream, flush=True)

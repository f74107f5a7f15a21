"""Keeps the tables of a job small: on request, and by a schedule within the job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from spark_sink.errors import SourceError
from spark_sink.jobs.job_folder import APPENDED, CURRENT, JobFolder
from spark_sink.jobs.progress import WorkReport
from spark_sink.jobs.tables_job import appended_table
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.tasks import Tell, tell_nobody


def compact_tables(folder: JobFolder, tell: Tell = tell_nobody) -> Iterator[str]:
    """Merge small files, delete those that no reader needs; return a line about each table.

    The job may run meanwhile. Raises StreamError.
    """
    for name in APPENDED:
        table = appended_table(folder, name)
        if table.log.exists:
            before, after = table.compact(tell)
            deleted = table.log.vacuum(tell, full=True)
            yield f"{name}: {before} files compacted into {after}, {deleted} old ones deleted"
    current = DeltaLog(folder.table(CURRENT))
    if current.exists:  # its files are written again as they grow
        yield f"{CURRENT}: {current.vacuum(tell, full=True)} old files deleted"


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
            for line in compact_tables(self._folder, WorkReport(self._stream, self._clock)):
                self._tell(line)
        except SourceError as error:
            self._tell(f"the tables were not all compacted; the job continues: {error}")
        self._last = self._clock()

    def _tell(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

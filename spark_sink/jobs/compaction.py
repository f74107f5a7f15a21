"""Compacts the tables of a job: on request, and at an interval beside its query.

Small files of tables that batches are appended to are replaced by large ones. delta-rs lets a
compaction replace files that another commit has removed, so two compactions at a time would double
rows. So this module writes the rows itself, and commits only to a version that still has the old
files (`DeltaLog.exchange`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import datetime
from itertools import takewhile
from operator import attrgetter
from typing import Any

import pyarrow as pa

from spark_sink.console import say
from spark_sink.folders import Folder
from spark_sink.jobs.failure_texts import cause_of
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_tables import APPENDED, CURRENT
from spark_sink.jobs.orderly_stop import STOP_TIMEOUT
from spark_sink.jobs.report.progress import printed_progress
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.executors import REPORT_PROGRESS
from spark_sink.tables.parquet_parts import FILE_BYTES, Parts, TableFile

_Files = Sequence[TableFile]
# The most files, and bytes, that one commit replaces.
_PORTION_FILES, _PORTION_BYTES = 1_000, 8 * FILE_BYTES
# The file in a job's folder that is written when a compaction begins: it may end the process.
_LAST = "compacted"


def _never() -> bool:
    return False


def compact_tables(folder: JobFolder, is_stopped: Callable[[], bool] = _never) -> Iterator[str]:
    """Merge small files, and delete files that no reader needs; yield a line for each table.

    The job may run meanwhile. After a stop no more portion or table begins. Raises StreamError.
    """
    Folder(folder.address).write(_LAST, "")
    for name in APPENDED:
        log = DeltaLog(folder.table(name))
        if log.exists and not is_stopped():
            before, after = merge_small_files(log, is_stopped)
            deleted = log.vacuum(full=True)
            yield f"{name}: {before} files compacted into {after}, {deleted} old ones deleted"
    current = DeltaLog(folder.table(CURRENT))
    if current.exists and not is_stopped():  # its files are written again as they grow
        yield f"{CURRENT}: {current.vacuum(full=True)} old files deleted"


@contextmanager
def compaction_beside(folder: JobFolder, seconds: float | None) -> Iterator[None]:
    """Compact a job's tables in a thread during the block, so many seconds after the last began.

    The last time may be that of an earlier start. None: never. A failure is printed, and the job
    continues. At its end, the block waits for the portion in progress, a minute at most.
    """
    if seconds is None:
        yield
        return
    ending = threading.Event()

    def compact() -> None:
        pause = seconds
        with suppress(OSError):  # it fails again below, and is printed
            pause = _until_next(folder, seconds)
        while not ending.wait(pause):
            pause = seconds
            try:
                with printed_progress():
                    for line in compact_tables(folder, ending.is_set):
                        say(line)
            except Exception as error:  # noqa: BLE001 - the job continues
                say(f"the tables were not all compacted; the job continues: {cause_of(error)}")

    run = copy_context().run
    thread = threading.Thread(target=run, args=(compact,), name="compaction", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(STOP_TIMEOUT)


def _until_next(folder: JobFolder, seconds: float) -> float:
    """Return how long the next compaction is to wait; the first start begins the interval."""
    files = Folder(folder.address)
    last: datetime | None = files.files.get_file_info(_LAST).mtime
    if last is None:
        files.write(_LAST, "")
        return seconds
    return min(seconds, max(0.0, last.timestamp() + seconds - time.time()))


def merge_small_files(log: DeltaLog, is_stopped: Callable[[], bool] = _never) -> tuple[int, int]:
    """Replace small files by large ones with the same rows; return their numbers.

    These are the numbers of all files, before and after. Each portion is committed and reported by
    itself. Other writers may change the table meanwhile; files that they replace are skipped.
    Raises StreamError.
    """
    log.reload()
    files = log.files_with()
    small, done = _small_files(files), 0
    pending, before = small, len(small) + 1
    while 0 < len(pending) < before and not is_stopped():
        before = len(pending)
        rest = {file.path for file in pending}
        for portion in takewhile(lambda _: not is_stopped(), _portions(pending)):
            rest |= _replace(log, portion)
            done += len(portion)
            if pending is small:
                REPORT_PROGRESS.get()(f"small files of {log.name} compacted", done, len(small))
        # Small files that several portions have left may be merged with each other.
        pending = _small_files([file for file in log.files_with() if file.path in rest])
    return len(files), log.files().num_rows


def _replace(log: DeltaLog, files: _Files) -> set[str]:
    """Replace files by new ones with the same rows; return the paths of the new ones.

    The result is empty if another writer has replaced one of the files.
    """
    schema = arrow_schema(log.schema)
    options: dict[str, Any] = {"statistics_columns": log.statistics_columns, "summed": False}
    with log.stream_errors(), Parts(log.address, schema, log.partitions, **options) as parts:
        for scan in log.scans(schema.names, files=files):
            for rows in scan:
                parts.add(pa.Table.from_batches([rows]))
        written = parts.close()
    paths = {file.path for file in written}
    if log.exchange(files, written):
        return paths
    with log.stream_errors():
        Folder(log.address).remove(*paths)
    return set()


def _small_files(files: Iterable[TableFile]) -> list[TableFile]:
    """Return the small files of partitions with several of them, in the order of their rows."""
    by_partition: dict[tuple[Any, ...], list[TableFile]] = {}
    for file in sorted(files, key=attrgetter("modified")):
        if file.size < FILE_BYTES // 2:
            by_partition.setdefault(tuple(file.partition.values()), []).append(file)
    return [file for alike in by_partition.values() if len(alike) > 1 for file in alike]


def _portions(files: _Files) -> Iterator[_Files]:
    """Divide files into portions that are written, and lost by a failure, together."""
    start = size = 0
    for end, file in enumerate(files):
        if end - start >= _PORTION_FILES or size >= _PORTION_BYTES:
            yield files[start:end]
            start, size = end, 0
        size += file.size
    if files:
        yield files[start:]

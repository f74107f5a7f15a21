"""Restores what a job has lost, from its tables.

The checkpoint is made from the commits of the tables, which contain the offsets of batches. A
current table is made from the rows of bronze alone, so the oplogs need not contain the events.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from bson.timestamp import Timestamp
from pyspark.sql import SparkSession

from spark_sink.errors import OptionError, StreamError
from spark_sink.jobs.checkpoint import LoggedBatch
from spark_sink.jobs.history.newest_batch import newest_batch
from spark_sink.jobs.history.point_in_time import bronze_at
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_query import table_form
from spark_sink.jobs.job_tables import BRONZE, CURRENT, QUARANTINE
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.executors import run_tasks
from spark_sink.tables.merge_task import UNAPPLIED
from spark_sink.tables.staged_changes import ChangeReport, remove_staged, stage_rows
from spark_sink.tables.table_state import Batch


def restore_checkpoint(folder: JobFolder) -> tuple[Batch, bool]:
    """Make the checkpoint of a job from its tables; return their `newest_batch`.

    A checkpoint that says the same is left as it is, with the times of its commits. Until the
    tables have a batch it is kept, as it tells where the job begins. Raises OptionError and
    StreamError as `restored_batch`.
    """
    newest = last, is_whole = newest_batch(folder)
    if _restored(folder, newest)[1]:
        folder.checkpoint.remove_checksums()
        return newest
    offsets = {last.number - 1: last.begin} if last.number else {}
    offsets[last.number] = last.offset
    folder.checkpoint.write(last.query, offsets, last.number if is_whole else last.number - 1)
    return newest


def restored_batch(folder: JobFolder) -> LoggedBatch | None:
    """Return the newest batch of the checkpoint as the next start restores it; None before any.

    The tables alone know where the job is: a checkpoint may be lost, truncated, or an older copy. A
    batch that only some of them have is repeated, and one that none of them has is planned again.
    Raises OptionError as `newest_batch`, and if the checkpoint is another job's, or is damaged
    without a batch in the tables; and StreamError.
    """
    return _restored(folder, newest_batch(folder))[0]


def _restored(folder: JobFolder, newest: tuple[Batch, bool]) -> tuple[LoggedBatch | None, bool]:
    """Return `restored_batch`, by the `newest_batch`, and whether the checkpoint is that now."""
    checkpoint, (last, is_whole) = folder.checkpoint, newest
    if not last.query:
        try:
            checkpoint.query()
            return checkpoint.last_planned(), True
        except StreamError as error:
            raise OptionError(
                f"{error}. But these contain no batch yet to continue from: remove the "
                f"folder {checkpoint.address}, and start the job again"
            ) from None
    query, planned, begin = None, None, None
    with suppress(StreamError):  # a damaged checkpoint is made again
        query, planned = checkpoint.query(), checkpoint.last_planned()
        begin = checkpoint.offset(last.number - 1)  # which Spark reads, too
    if query not in (None, last.query):
        raise OptionError(
            f"the checkpoint {checkpoint.address} is not that of the tables in "
            f"{folder.address}: remove it, and the next start makes it again from the tables"
        )
    is_same = planned and planned.committed and (begin, planned.offset) == (last.begin, last.offset)
    if query and is_whole and is_same:
        return planned, True
    committed = datetime.now(UTC) if is_whole else None
    return LoggedBatch(last.number, {**last.offset}, committed), False


def lacks_current(folder: JobFolder) -> bool:
    """Return whether the job's current table is lost, and can be made again from bronze."""
    logs = [DeltaLog(folder.table(name)) for name in (BRONZE, CURRENT)]
    return CURRENT in folder.record().tables and logs[0].exists and not logs[1].exists


def rebuild_table(
    spark: SparkSession | None, folder: JobFolder, time: Timestamp | None = None, into: str = ""
) -> CurrentTable:
    """Make a current table of the rows of bronze alone, and commit it as their batch.

    It is the job's lost table, with which the job continues, or one as of a cluster time in the
    folder `into`, which gets the tables `current` and `quarantine`. Raises OptionError if `into`
    has such a table, and StreamError if bronze has not reached the time, or begins later. Without
    `spark` the work is done in this process.
    """
    target = JobFolder(into or folder.address)
    if DeltaLog(target.table(CURRENT)).exists:
        raise OptionError(f"there is a table in {into} already: give another folder with --into")
    if not DeltaLog(folder.table(BRONZE)).exists:
        raise OptionError(f"the job in {folder.address} has no bronze table, which has the history")
    scans, batch, scope = bronze_at(folder, time)
    table = CurrentTable(target.table(CURRENT), form=table_form(folder.record()))
    remove_staged(table.address)  # files of an interrupted attempt
    tasks = [partial(stage_rows, part, table.address, table.state.keys) for part in scans]
    staged = run_tasks(spark, ChangeReport, tasks, "parts of bronze read")
    quarantine = DeltaLog(target.table(QUARANTINE))
    if quarantine.exists:  # it has the events that the lost table could not apply
        own = quarantine.state().batch
        if own.number == batch.number and own.offset != batch.offset:  # of a seek that was killed
            quarantine.amend(replace(own, offset=batch.offset))
        quarantine.append([], arrow_schema(UNAPPLIED), batch)
    table.apply_staged(spark, Upsert(ChangeReport.total(staged), batch, quarantine, scope))
    return table

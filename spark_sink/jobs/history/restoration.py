"""Makes a current table again from the rows of bronze alone: no oplog need contain the events."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from bson.timestamp import Timestamp
from pyspark.sql import SparkSession

from spark_sink.errors import OptionError, StreamError
from spark_sink.jobs.history.job_history import scope_at
from spark_sink.jobs.history.left_out_events import complete_seek
from spark_sink.jobs.history.point_in_time import bronze_at
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_query import table_form
from spark_sink.jobs.job_tables import BRONZE, CURRENT, QUARANTINE
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.source.offsets import Offset
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.executors import run_tasks
from spark_sink.tables.merge_task import UNAPPLIED
from spark_sink.tables.parquet_parts import BATCH
from spark_sink.tables.staged_changes import (
    CHANGE_COLUMNS,
    ChangeReport,
    remove_staged,
    stage_rows,
)
from spark_sink.tables.table_state import Batch


def lacks_current(folder: JobFolder) -> bool:
    """Return whether bronze has what the job's current table lacks: all, or the last batch."""
    bronze, current = (DeltaLog(folder.table(name)) for name in (BRONZE, CURRENT))
    if CURRENT not in folder.record().tables or not bronze.exists:
        return False
    return not current.exists or current.state().batch.offset == bronze.state().batch.begin


def rebuild_table(
    spark: SparkSession | None, folder: JobFolder, time: Timestamp | None = None, into: str = ""
) -> CurrentTable:
    """Make a current table of the rows of bronze alone, and commit it as their batch.

    It is the job's table, with which the job continues, or one as of a cluster time in the folder
    `into`, which gets the tables `current` and `quarantine`. One that lacks the last batch alone,
    as after an interrupted attempt, gets that. Raises OptionError if `into` has such a table, and
    StreamError if bronze has not reached the time, or begins later. Without `spark` the work is
    done in this process.
    """
    target = JobFolder(into or folder.address)
    if into and DeltaLog(target.table(CURRENT)).exists:
        raise OptionError(f"there is a table in {into} already: give another folder with --into")
    if not DeltaLog(folder.table(BRONZE)).exists:
        raise OptionError(f"the job in {folder.address} has no bronze table, which has the history")
    bronze, chosen, batch, scope = bronze_at(folder, time)
    complete_seek(folder, batch)
    table = CurrentTable(target.table(CURRENT), form=table_form(folder.record()))
    quarantine, steps = DeltaLog(target.table(QUARANTINE)), [(batch, scope, chosen)]
    if table.log.exists:
        steps = [(batch, scope, [(BATCH, "==", batch.number)])]
    elif quarantine.exists:
        # It has the events that the lost table could not apply, but for a batch that was killed.
        number, committed = batch.number, None
        with suppress(StreamError):  # a damaged checkpoint shows nothing
            committed = folder.checkpoint.last_committed()
        is_whole = committed is not None and committed.offset == batch.offset
        if batch.begin and not (is_whole or quarantine.state().batch.number == number):
            before = Batch(batch.query, number - 1, batch.begin)
            was = scope_at(folder.record(), Offset.of(batch.begin, in_table=True))
            steps = [(before, was, [(BATCH, "<", number)]), (batch, scope, [(BATCH, "==", number)])]
        quarantine.append([], arrow_schema(UNAPPLIED), steps[0][0])
    for each, its_scope, rows in steps:
        remove_staged(table.address)  # files of an interrupted attempt
        scans, keys = bronze.scans(CHANGE_COLUMNS, rows), table.state.keys
        tasks = [partial(stage_rows, part, table.address, keys) for part in scans]
        staged = run_tasks(spark, ChangeReport, tasks, "parts of bronze read")
        table.apply_staged(spark, Upsert(ChangeReport.total(staged), each, quarantine, its_scope))
    return table

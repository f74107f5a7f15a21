"""Consistent reads of all tables of a job at one cluster time: their versions, or their rows.

Each has the events before one cut of a `JobHistory`, and every transaction whole.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
from bson.timestamp import Timestamp
from pyspark.sql import DataFrame, SparkSession

from shard_client.bson.resume_token import high_water_mark
from spark_sink.errors import StreamError
from spark_sink.events.header import SNAPSHOT_END
from spark_sink.events.positions import AtTime
from spark_sink.jobs.history.job_history import (
    JobHistory,
    Versions,
    cut_of,
    scope_at,
    snapshot_ends,
)
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_query import table_form
from spark_sink.jobs.job_tables import BRONZE, CURRENT, TOKENS
from spark_sink.options.declared import argument
from spark_sink.options.parsers import cluster_time
from spark_sink.snapshot.unread import unread_names
from spark_sink.source.offsets import Offset
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.ddl_events import TableScope, unread_after
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.fold import BASE, TABLE
from spark_sink.tables.frame_fold import FrameFold
from spark_sink.tables.parquet_parts import BATCH, RowFilter
from spark_sink.tables.staged_changes import CHANGE_COLUMNS
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_state import Batch
from spark_sink.tables.table_version import DeletedVersionError


def versions_at(folder: JobFolder, time: Timestamp) -> tuple[int, Timestamp, Versions]:
    """Return the newest versions of all tables that hold nothing from after a time.

    They are those of one batch, whose number and cut precede them: they hold all events before the
    cut, and every transaction whole. Raises StreamError if the tables have not reached the time, or
    if the versions of that time have been deleted.
    """
    history = JobHistory(folder, time)
    number, end, versions = history.whole_before()
    for name, version in versions.items():
        history.logs[name].at(*version)
    return number, cut_of(end), versions


def read_at(spark: SparkSession, out: str, time: str) -> dict[str, DataFrame]:
    """Return the rows of a job's tables by name, as they were at one cluster time.

    They have all events up to that time, and every transaction whole. `current` is an older version
    of the table, or else a snapshot in `bronze`, with the later events of `bronze` applied. In a
    job without bronze it is the version of the last batch before the time. Raises OptionError for a
    text that is not a time, and StreamError as `versions_at`.

    Args:
        out: the job's folder.
        time: such as 2026-01-31T12:00:00Z, or "seconds,increment".
    """
    history = JobHistory(JobFolder(out), argument(cluster_time, time, "time"))
    cut, logs = history.whole_cut(), history.logs
    frames = {
        name: logs[name].read(spark, chosen=history.rows_before(cut, name))
        for name in logs.keys() & TOKENS.keys()
    }
    if CURRENT in logs:
        read = _current_from_bronze if BRONZE in logs else _current_version
        frames[CURRENT] = read(spark, history, cut)
    return frames


def _current_version(spark: SparkSession, history: JobHistory, cut: Timestamp) -> DataFrame:
    """Return the rows of the current table after the last batch before a cut."""
    for _, _, versions in history.complete_before(cut):
        return history.logs[CURRENT].at(*versions[CURRENT]).read(spark)
    raise history.no_versions_error()


def _current_from_bronze(spark: SparkSession, history: JobHistory, cut: Timestamp) -> DataFrame:
    """Return the rows of the current table before a cut, and warn of those that it lacks.

    They are those of an older version, if its files still exist, with later events of bronze.
    """
    bronze = history.logs[BRONZE]
    table = CurrentTable.existing(history.logs[CURRENT].address, table_form(history.record))
    rows, since = spark.createDataFrame([], TABLE).select(*BASE), -1
    for number, _, versions in islice(history.complete_before(cut), 1):
        with suppress(DeletedVersionError):
            older = history.logs[CURRENT].at(*versions[CURRENT])
            columns = TableForm.of(older.schema).base_columns
            rows, since = older.read(spark, columns), number
    if since < 0:
        _require_begun(bronze, history.record, cut)
    later = [*_counts_before(bronze, cut), (BATCH, ">", since)]
    changes = bronze.read(spark, (*CHANGE_COLUMNS, "op"), later)
    fold = FrameFold(table.state.keys, changes, table.form)
    frame, scope = fold.of_table(rows), history.scope(cut)
    events = fold.ddl_events
    unread = {} if scope is None else unread_after(scope.unread, events, scope.contains)
    if names := unread_names(unread):
        warnings.warn(f"current lacks documents of {names}: {UNREAD_THEN}", stacklevel=3)
    return frame


UNREAD_THEN = "at this time the job had not read them again yet. Give a later time"
"""Why collections are not complete in a table of an earlier time, and the remedy."""


def bronze_at(
    folder: JobFolder, time: Timestamp | None
) -> tuple[DeltaLog, RowFilter, Batch, TableScope | None]:
    """Return bronze, and of which rows a current table is made: all, or those up to a time.

    Also return the newest batch of bronze, with the offset of that time, and the table's scope.
    Raises StreamError if bronze has not reached the time, or begins later.
    """
    log, cut = DeltaLog(folder.table(BRONZE)), None
    chosen: RowFilter = ()
    log.require_not_restored(BRONZE)
    batch = log.batch()
    if time is None:
        scope = scope_at(folder.record(), Offset.of(batch.offset, in_table=True))
    else:
        history = JobHistory(folder, time, (BRONZE,))
        cut = history.whole_cut()
        batch = Batch(batch.query, batch.number, Offset(AtTime(cut)).document)
        chosen, scope = _counts_before(log, cut), history.scope(cut)
    _require_begun(log, folder.record(), cut)
    return log, chosen, batch, scope


def _counts_before(log: DeltaLog, cut: Timestamp) -> RowFilter:
    """Return which rows of bronze count before a cut.

    The end of a snapshot counts if all of it was read before.
    """
    late = [end["_id"]["_data"] for end in snapshot_ends(log) if end["readUntil"] >= cut]
    is_late = pc.field("token").isin(pa.array(late, pa.string()))
    kept = (pc.field("operationType") != SNAPSHOT_END) | ~is_late
    return [kept, ("token", "<=", high_water_mark(cut))]


def _require_begun(log: DeltaLog, record: JobRecord, cut: Timestamp | None = None) -> None:
    """Raise StreamError unless bronze has the job's first snapshot whole, if there was one.

    With a `cut` all of it must have been read before.
    """
    ends = [end["readUntil"] for end in snapshot_ends(log) if not end.get("requested")]
    begins = record.snapshot.policy.at_first and not record.snapshot.custom
    end = log.state().batch.end
    if not ends and begins and (end is None or not end.is_in_snapshot):
        raise StreamError(
            f"the table at {log.address} does not have the snapshot any more with which the job "
            "began, so no current table can be made of it: start a job in another folder"
        )
    if cut is None:
        return
    reads = log.rows(["token"], [("operationType", "==", "read")])
    if min(ends, default=cut) >= cut and any(rows.num_rows for rows in reads):
        until = f"until {min(ends).as_datetime().isoformat()}" if ends else "later"
        raise StreamError(
            f"the table at {log.address} begins with a snapshot that was read {until}: give a "
            "later time"
        )

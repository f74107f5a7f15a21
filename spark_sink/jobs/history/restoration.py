"""Restores what a job has lost, from its tables.

The checkpoint is made from the commits of the tables, which contain the offsets of batches. A
current table is made from the rows of bronze alone, so the oplogs need not contain the events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from bson.timestamp import Timestamp
from pyspark.sql import SparkSession

from spark_sink.console import say
from spark_sink.errors import OptionError, StreamError
from spark_sink.jobs.history.point_in_time import bronze_at
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_query import table_form
from spark_sink.jobs.job_tables import (
    ALL_BATCHES,
    BRONZE,
    CURRENT,
    MESSAGES,
    NOTIFICATIONS,
    QUARANTINE,
)
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.executors import run_tasks
from spark_sink.tables.merge_task import UNAPPLIED
from spark_sink.tables.staged_changes import ChangeReport, remove_staged, stage_rows
from spark_sink.tables.table_state import Batch


def restore_checkpoint(folder: JobFolder) -> int | None:
    """Restore the checkpoint if it is lost, damaged, or older than the tables, and print that.

    With an older checkpoint, new batches would have numbers that the tables already have, and the
    tables would skip them. The next start repeats the last batch, and writes it to the tables that
    lack it. Return its number, or None if the checkpoint is unchanged. Raises OptionError if the
    tables do not contain the position of the job, if the checkpoint is another job's, or if a table
    lacks a batch that the checkpoint has; and StreamError if an older version of a table was
    restored.
    """
    if not folder.exists:
        return None
    folder.checkpoint.remove_checksums()
    by_table = _batches(folder)
    newest = [batch for batch in by_table.values() if batch.query]
    last = max((batch.number for batch in newest), default=-1)
    queries = {batch.query for batch in newest}
    why, done = _reason_to_restore(folder, newest, last)
    if len(queries) > 1:
        raise OptionError(
            f"the tables of the job in {folder.address} are not of one query: restore the folder "
            "from a backup, or start the job in another one"
        )
    if lacking := lacking_tables(by_table, done):
        raise _lacks_batches(folder, lacking[0])
    if not why or not newest:
        return None
    offsets = {batch.number - 1: batch.begin for batch in newest if batch.begin}
    offsets |= {batch.number: batch.offset for batch in newest}
    if last and last - 1 not in offsets:
        raise OptionError(
            f"the tables of the job in {folder.address} do not contain the offset of batch "
            f"{last - 1}: start the job in another folder"
        )
    offsets = {number: offset for number, offset in offsets.items() if number >= last - 1}
    folder.checkpoint.remove()
    folder.checkpoint.write(queries.pop(), offsets, last - 1)
    say(f"the checkpoint was {why}, and is again that of batch {last}")
    return last


def _reason_to_restore(folder: JobFolder, newest: Sequence[Batch], last: int) -> tuple[str, int]:
    """Return what is wrong with the checkpoint, if anything, and the last batch that is complete.

    `newest` are the newest batches of the tables, and `last` is the number of the last one.
    """
    checkpoint = folder.checkpoint
    try:
        query, batches = checkpoint.query(), checkpoint.batches()
    except StreamError as error:
        if not newest:
            raise OptionError(
                f"{error}. But these contain no batch yet to continue from: remove the "
                f"folder {checkpoint.address}, and start the job again"
            ) from None
        say(f"{error}. Repeat a job seek that no start has followed")
        return "damaged", last - 1
    if query is None:
        return "lost", last - 1
    if any(batch.query != query for batch in newest):
        raise OptionError(
            f"the checkpoint {checkpoint.address} is not that of the tables in {folder.address}: "
            "remove it, and the next start makes it again from the tables"
        )
    done = max((batch.number for batch in batches if batch.committed is not None), default=-1)
    if not batches or batches[-1].number < last:
        return "older than the tables", done
    is_other = any(checkpoint.offset(batch.number) not in ({}, batch.offset) for batch in newest)
    return "of another start" if is_other else "", done


def lacking_tables(by_table: Mapping[str, Batch], done: int) -> list[str]:
    """Return the names of tables that lack a batch, if the batches up to `done` are complete.

    `by_table` has the newest batch of each table by name.
    """
    needed = dict.fromkeys(by_table.keys() & {*ALL_BATCHES}, done)
    for name, number in (pair for batch in by_table.values() for pair in batch.written.items()):
        needed[name] = max(needed.get(name, -1), number if number <= done else -1)
    return [n for n, number in needed.items() if by_table.get(n, Batch()).number < number]


def _batches(folder: JobFolder) -> dict[str, Batch]:
    """Return the newest batch of each table of a job, by name.

    Raises StreamError if an older version of a table was restored.
    """
    by_table: dict[str, Batch] = {}
    for name in {**dict.fromkeys(folder.record().tables), QUARANTINE: None, NOTIFICATIONS: None}:
        log = DeltaLog(folder.table(name))
        log.require_not_restored(name if name in (BRONZE, MESSAGES) else "")
        by_table[name] = log.state().batch
    return by_table


def _lacks_batches(folder: JobFolder, name: str) -> OptionError:
    """Return the error for a table that has lost batches, with the remedy."""
    remedy = "restore it from a backup"
    if name == CURRENT and BRONZE in folder.record().tables:
        remedy = "remove what is left of it and let job rebuild make it again"
    return OptionError(
        f"the table at {folder.table(name)} lacks batches that the job has written to it: "
        f"{remedy}, or start a job in another folder"
    )


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
        quarantine.append([], arrow_schema(UNAPPLIED), batch)
    table.apply_staged(spark, Upsert(ChangeReport.total(staged), batch, quarantine, scope))
    return table

"""Restores what a job has lost, from its tables, and sets a job to a later position.

The checkpoint is made from the commits of the tables, which contain the offsets of batches. A
current table is made from the rows of bronze alone, so the oplogs need not contain the events.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from bson.timestamp import Timestamp
from pyspark.sql import SparkSession

from spark_sink.batches.batch_planner import BatchPlanner
from spark_sink.errors import HistoryLostError, OptionError, StreamError, say
from spark_sink.events.positions import AtTime, FromNow, Position, Token, after, is_after, key_of
from spark_sink.jobs.job_folder import (
    ALL_BATCHES,
    APPENDED,
    BRONZE,
    CURRENT,
    MESSAGES,
    NOTIFIED,
    QUARANTINE,
    JobFolder,
    LoggedBatch,
)
from spark_sink.jobs.point_in_time import bronze_at
from spark_sink.jobs.tables_job import table_form, take_over
from spark_sink.options.snapshot_options import QueryStart
from spark_sink.options.stream_options import parse_options
from spark_sink.options.values import argument, position
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.source.offsets import Offset
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.executors import run_tasks
from spark_sink.tables.range_merge import UNAPPLIED
from spark_sink.tables.staged_changes import (
    ChangeReport,
    remove_interrupted,
    stage_rows,
)
from spark_sink.tables.state_files import Batch, end_of
from spark_sink.tables.table_rows import require_whole

# How far the clock of this machine may be behind that of the cluster.
_AHEAD_SECONDS = 60


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
    folder.remove_checksums()
    kept = _batches(folder)
    newest = [each for each in kept.values() if each]
    last = max((each.number for each in newest), default=-1)
    query, batches, why, done = None, [], "lost", last - 1
    try:
        query, batches = folder.query(), folder.batches()
    except StreamError as error:
        if not newest:
            raise OptionError(
                f"{error}. But these contain no batch yet to continue from: remove the "
                f"folder {folder.checkpoint}, and start the job again"
            ) from None
        query, why = None, "damaged"
        say(f"{error}. Repeat a job seek that no start has followed")
    queries = {each.query for each in newest}
    if query is not None:
        if not queries <= {query}:
            raise OptionError(
                f"the checkpoint {folder.checkpoint} is not that of the tables in "
                f"{folder.address}: remove it, and the next start makes it again from the tables"
            )
        done = max((each.number for each in batches if each.committed is not None), default=-1)
        why = "older than the tables"
        if batches and batches[-1].number >= last:
            others = [each for each in newest if folder.offset(each.number) != each.offset]
            why = "of another start" if any(folder.offset(b.number) for b in others) else ""
    elif len(queries) > 1:
        raise OptionError(
            f"the tables of the job in {folder.address} are not of one query: restore the folder "
            "from a backup, or start the job in another one"
        )
    for name in lacking_tables(kept, done):
        raise _lacks_batches(folder, name)
    if not why or not newest:
        return None
    offsets = {each.number - 1: each.begin for each in newest if each.begin}
    offsets |= {each.number: each.offset for each in newest}
    if last and last - 1 not in offsets:
        raise OptionError(
            f"the tables of the job in {folder.address} do not contain the offset of batch "
            f"{last - 1}: start the job in another folder"
        )
    offsets = {number: offset for number, offset in offsets.items() if number >= last - 1}
    folder.remove_checkpoint()
    folder.write_checkpoint(queries.pop(), offsets, last - 1)
    say(f"the checkpoint was {why}, and is again that of batch {last}")
    return last


def lacking_tables(kept: Mapping[str, Batch | None], done: int) -> list[str]:
    """Return the names of tables that lack a batch, if the batches up to `done` are complete.

    `kept` has the newest batch of each table by name, None for one without batches.
    """
    needed = dict.fromkeys(kept.keys() & {*ALL_BATCHES}, done)
    for name, number in ((n, b) for each in kept.values() if each for n, b in each.written.items()):
        needed[name] = max(needed.get(name, -1), number if number <= done else -1)
    newest = {name: each.number for name, each in kept.items() if each}
    return [name for name, number in needed.items() if newest.get(name, -1) < number]


def _batches(folder: JobFolder) -> dict[str, Batch | None]:
    """Return the newest batch of each table of a job, by name; None for one without batches.

    Raises StreamError if an older version of a table was restored.
    """
    found: dict[str, Batch | None] = {}
    for name in {**dict.fromkeys(folder.record().tables), QUARANTINE: None, NOTIFIED: None}:
        log = DeltaLog(folder.table(name))
        require_whole(log, name if name in (BRONZE, MESSAGES) else "")
        found[name] = Batch.of(log.state())
    return found


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
    made = JobFolder(into or folder.address)
    if DeltaLog(made.table(CURRENT)).exists:
        raise OptionError(f"there is a table in {into} already: give another folder with --into")
    if not DeltaLog(folder.table(BRONZE)).exists:
        raise OptionError(f"the job in {folder.address} has no bronze table, which has the history")
    scans, batch, scope = bronze_at(folder, time)
    table = CurrentTable(made.table(CURRENT), form=table_form(folder.record()))
    remove_interrupted(table.address, 1)  # files of an interrupted attempt
    tasks = [partial(stage_rows, each, table.address, table.state.keys) for each in scans]
    staged = run_tasks(spark, ChangeReport, tasks, "parts of bronze read")
    quarantine = DeltaLog(made.table(QUARANTINE))
    if quarantine.exists:  # it has the events that the lost table could not apply
        quarantine.append([], arrow_schema(UNAPPLIED), batch)
    table.apply_staged(spark, Upsert(ChangeReport.total(staged), batch, quarantine, scope))
    return table


def seek(folder: JobFolder, to: str) -> str:
    """Plan the batch that leaves out all events before a position; return where the job continues.

    It also leaves out the signals that were sent to a collection before the position.

    It replaces a batch that was planned and that some table lacks, so a seek may be corrected until
    the job has been started.

    Args:
        to: a cluster time, or a token, whose cluster time counts. All events of that time are read:
            a transaction, and from MongoDB 8.0 on an insertMany, has many events of one time.

    Raises OptionError if `to` is not a position or lies in the future by the clock of this machine,
    or if the job cannot be set there.
    """
    last = _last_whole(folder)
    if last is None:
        raise OptionError(f"the job in {folder.address} has no batch: start it first")
    found = argument(position, to, "--to")
    wanted = AtTime(found.cluster_time) if isinstance(found, Token) else found
    gap, remark = _gap(folder, last.end, wanted, to)
    take_over(folder)  # a start on another machine may still run
    return _leave_out(folder, last.number + 1, gap) + remark


def _gap(folder: JobFolder, before: Offset, position: AtTime, to: str) -> tuple[Offset, str]:
    """Return the end of a batch after `before` that leaves out the events before a position.

    The second result is a remark about signals for the user. Raises OptionError, in which `to` is
    the position.
    """
    if before.signals.initial is not None:
        raise OptionError(
            f"the job in {folder.address} has a snapshot in progress, which continues at every "
            "start: wait for its end"
        )
    reached = _reached(folder, before)
    for each in reached:
        if isinstance(each, FromNow) or not is_after(position, each):
            raise OptionError(
                f"--to {to} is before the job's position ({key_of(each)}): events would be in "
                "the tables twice. Start a job in another folder with startAtOperationTime"
            )
    if position.time.time > time.time() + _AHEAD_SECONDS:
        raise OptionError(
            f"--to {to} is in the future: the job would write nothing until then. Give the present "
            "or an earlier time, or set the clock of this machine"
        )
    kept, passed, remark = before.signals.without_batch(), max(reached, key=key_of), ""
    if kept.position is not None and is_after(position, kept.position):
        kept, remark = replace(kept, position=None), ", without the signals that were sent before"
    beside = {"heartbeat": before.heartbeat, "signals": kept}
    gap = before.moved(position, events=0, sought=passed, **beside)
    return gap, remark


def _leave_out(folder: JobFolder, number: int, gap: Offset) -> str:
    """Plan a batch that leaves out events; return where it ends."""
    _note_end(folder, number, gap.write())
    folder.plan_batch(number, gap.write())
    assert gap.time is not None
    return datetime.fromtimestamp(gap.time.time, UTC).isoformat()


def leave_out_lost(folder: JobFolder, uri: str) -> None:
    """Replace a batch in progress whose events the oplogs have lost, if the options allow that.

    Spark repeats a batch as it was planned, and would fail at every start. Raises SourceError.
    """
    last, planned = _last_whole(folder), folder.last_planned()
    if last is None or planned is None or planned.number == last.number:
        return
    before, end = last.end, planned.end
    batch = end.batch_after(before)
    if batch.events == 0:
        return
    options = parse_options(folder.record().source_options(uri))
    start = QueryStart(before.time, snapshot_in_progress=False)
    if not options.snapshot.policy_for(start).if_history_is_lost:
        return
    options = replace(options, scope=end.scope or options.scope)
    with closing(RouterClient(options)) as client:
        try:
            BatchPlanner(client, options).require_history(batch.first)
        except HistoryLostError:
            now = after(client.with_retries(client.present))
            where = _leave_out(folder, last.number + 1, _gap(folder, before, now, "now")[0])
            text = "the oplogs have lost events of the batch in progress: the job continues at"
            say(f"{text} {where}, and reads the collections again")


def _last_whole(folder: JobFolder) -> LoggedBatch | None:
    """Return the last batch that all tables have, and note in the checkpoint that they do.

    A batch writes its notifications last: with them it is whole, though Spark did not note that.
    """
    batches, query = folder.batches(), folder.query()
    notified = Batch.of(DeltaLog(folder.table(NOTIFIED)).state())
    if query is not None and notified is not None and notified.query == query:
        for batch in batches[-1:]:
            if batch.committed is None and batch.number == notified.number:
                folder.write_checkpoint(query, {batch.number: batch.offset}, batch.number)
    return folder.last_committed()


def _reached(folder: JobFolder, before: Offset) -> list[Position]:
    """Return where the job's events end: with its last batch, or with a later one in a table.

    A batch of a seek has no events, so another seek may take its place.
    """
    states = (DeltaLog(folder.table(name)).state() for name in (*APPENDED, CURRENT))
    ends = filter(None, map(end_of, states))
    return [before.position, *(each.sought or each.position for each in ends)]


def _note_end(folder: JobFolder, number: int, offset: Mapping[str, Any]) -> None:
    """Change the offset at the end of a batch in the tables that already have the batch."""
    for name in (*APPENDED, CURRENT):
        log = DeltaLog(folder.table(name))
        batch = Batch.of(log.state())
        if batch is not None and batch.number == number:
            log.amend(replace(batch, offset=offset))

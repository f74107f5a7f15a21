"""Sets a job to a later position, with a batch that leaves out the events before it.

The batch is planned in the checkpoint, as one of Spark's own. Its offset has the position before
the gap, so that the collections are read again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from spark_sink.console import say
from spark_sink.errors import HistoryLostError, OptionError
from spark_sink.events.positions import AtTime, FromNow, Position, Token, after, is_after, key_of
from spark_sink.jobs.checkpoint import LoggedBatch
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_tables import APPENDED, CURRENT, NOTIFICATIONS
from spark_sink.jobs.table_commits import take_over
from spark_sink.options.declared import argument
from spark_sink.options.parsers import position
from spark_sink.options.snapshot_options import QueryStart
from spark_sink.options.stream_options import parse_options
from spark_sink.source.offsets import Offset
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.delta_log import DeltaLog

# How far the clock of this machine may be behind that of the cluster.
_AHEAD_SECONDS = 60


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
    start = argument(position, to, "--to")
    wanted = AtTime(start.cluster_time) if isinstance(start, Token) else start
    gap, remark = _gap(folder, last.end, wanted, to)
    take_over(folder)  # a start on another machine may still run
    return _leave_out(folder, last.number + 1, gap) + remark


def _gap(folder: JobFolder, before: Offset, position: AtTime, to: str) -> tuple[Offset, str]:
    """Return the end of a batch after `before` that leaves out the events before a position.

    The second result is a remark about signals for the user. Raises OptionError, in which `to` is
    the position.
    """
    if before.is_in_snapshot:
        raise OptionError(
            f"the job in {folder.address} has a snapshot in progress, which continues at every "
            "start: wait for its end"
        )
    reached = _reached(folder, before)
    for point in reached:
        if isinstance(point, FromNow) or not is_after(position, point):
            raise OptionError(
                f"--to {to} is before the job's position ({key_of(point)}): events would be in "
                "the tables twice. Start a job in another folder with startAtOperationTime"
            )
    if position.time.time > time.time() + _AHEAD_SECONDS:
        raise OptionError(
            f"--to {to} is in the future: the job would write nothing until then. Give the present "
            "or an earlier time, or set the clock of this machine"
        )
    kept, passed, remark = before.snapshots.without_batch(), max(reached, key=key_of), ""
    if kept.signal_position is not None and is_after(position, kept.signal_position):
        kept, remark = (
            replace(kept, signal_position=None),
            ", without the signals that were sent before",
        )
    beside = {"heartbeat": before.heartbeat, "snapshots": kept}
    return before.moved(position, events=0, sought=passed, **beside), remark


def _leave_out(folder: JobFolder, number: int, gap: Offset) -> str:
    """Plan a batch that leaves out events; return where it ends.

    It replaces a batch that was planned but not committed.
    """
    query = folder.checkpoint.query()
    assert query is not None
    assert gap.time is not None
    _note_end(folder, number, gap.document)
    folder.checkpoint.write(query, {number: gap.document}, number - 1)
    return gap.time.as_datetime().isoformat()


def replace_lost_batch(folder: JobFolder, uri: str) -> None:
    """Replace a batch in progress whose events the oplogs have lost, if the options allow that.

    Spark repeats a batch as it was planned, and would fail at every start. Raises SourceError.
    """
    last, planned = _last_whole(folder), folder.checkpoint.last_planned()
    if last is None or planned is None or planned.number == last.number:
        return
    before, end = last.end, planned.end
    batch = end.events_after(before)
    if batch.events == 0:
        return
    options = parse_options(folder.record().source_options(uri))
    start = QueryStart(before.time, snapshot_in_progress=False)
    if not options.snapshot.policy_for(start).if_history_is_lost:
        return
    options = replace(options, scope=end.scope or options.scope)
    with closing(RouterClient(options)) as client:
        try:
            client.require_history(batch.read_from)
        except HistoryLostError:
            now = after(client.with_retries(client.present))
            where = _leave_out(folder, last.number + 1, _gap(folder, before, now, "now")[0])
            text = "the oplogs have lost events of the batch in progress: the job continues at"
            say(f"{text} {where}, and reads the collections again")


def _last_whole(folder: JobFolder) -> LoggedBatch | None:
    """Return the last batch that all tables have, and note in the checkpoint that they do.

    A batch writes its notifications last: with them it is whole, though Spark did not note that.
    """
    batches, query = folder.checkpoint.batches(), folder.checkpoint.query()
    notified = DeltaLog(folder.table(NOTIFICATIONS)).state().batch
    if query is not None and notified.query == query:
        for batch in batches[-1:]:
            if batch.committed is None and batch.number == notified.number:
                folder.checkpoint.write(query, {batch.number: batch.offset}, batch.number)
    return folder.checkpoint.last_committed()


def _reached(folder: JobFolder, before: Offset) -> list[Position]:
    """Return where the job's events end: with its last batch, or with a later one in a table.

    A batch of a seek has no events, so another seek may take its place.
    """
    states = (DeltaLog(folder.table(name)).state() for name in (*APPENDED, CURRENT))
    ends = filter(None, (state.batch.end for state in states))
    return [before.position, *(end.sought or end.position for end in ends)]


def _note_end(folder: JobFolder, number: int, offset: Mapping[str, Any]) -> None:
    """Change the offset at the end of a batch in the tables that already have the batch."""
    for name in (*APPENDED, CURRENT):
        log = DeltaLog(folder.table(name))
        batch = log.state().batch
        if batch.number == number:
            log.amend(replace(batch, offset=offset))

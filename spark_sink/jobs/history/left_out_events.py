"""Leaves out events of the stream, as `job seek` requests, or because the oplogs have lost them.

A batch without events ends behind them. A table gets it, so the next start repeats it for all
tables. Its offset has the position before the gap, so that the collections are read again. Where no
batch has begun, `BatchPlanner.plan` decides what follows a lost history.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace

from spark_sink.console import say
from spark_sink.errors import HistoryLostError, OptionError
from spark_sink.events.positions import AtTime, FromNow, Token, after, is_after, key_of
from spark_sink.jobs.history.newest_batch import newest_batch, restore_checkpoint
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_tables import APPENDED, CURRENT, NOTIFICATION_COLUMNS, NOTIFICATIONS
from spark_sink.jobs.table_commits import take_over
from spark_sink.options.declared import argument
from spark_sink.options.parsers import position
from spark_sink.options.snapshot_options import QueryStart
from spark_sink.options.stream_options import parse_options
from spark_sink.source.offsets import Offset
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.table_state import Batch

# How far the clock of this machine may be behind that of the cluster.
_AHEAD_SECONDS = 60


def seek(folder: JobFolder, to: str) -> str:
    """Leave out all events before a position, in the next batch; return where the job continues.

    It also leaves out the signals that were sent to a collection before the position.

    It replaces a batch that some table lacks, so a seek may be corrected until the job has been
    started.

    Args:
        to: a cluster time, or a token, whose cluster time counts. All events of that time are read:
            a transaction, and from MongoDB 8.0 on an insertMany, has many events of one time.

    Raises OptionError if `to` is not a position or lies in the future by the clock of this machine,
    or if the job cannot be set there.
    """
    batch = _next_batch(folder)
    if not batch.begin:
        raise OptionError(f"the job in {folder.address} has no batch: start it first")
    start = argument(position, to, "--to")
    wanted = AtTime(start.cluster_time) if isinstance(start, Token) else start
    gap, remark = _gap(folder, batch, wanted, to)
    epoch = take_over(folder)  # a start on another machine may still run
    if _next_batch(folder) != batch:
        raise OptionError(
            f"the job in {folder.address} has written a batch meanwhile: stop it, and seek again"
        )
    return _leave_out(folder, batch, gap, epoch) + remark


def _gap(folder: JobFolder, batch: Batch, position: AtTime, to: str) -> tuple[Offset, str]:
    """Return the end of a batch that leaves out the events before a position instead of its own.

    A batch of a seek has no events, so another seek may take its place. The second result is a
    remark about signals for the user. Raises OptionError, in which `to` is the position.
    """
    before, end = Offset.of(batch.begin, in_table=True), batch.end
    if before.is_in_snapshot:
        raise OptionError(
            f"the job in {folder.address} has a snapshot in progress, which continues at every "
            "start: wait for its end"
        )
    reached = [before.position, *([end.sought or end.position] if end is not None else ())]
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


def _leave_out(folder: JobFolder, batch: Batch, gap: Offset, epoch: int) -> str:
    """Let a batch leave out events; return where it ends.

    The first commit decides: `newest_batch` finds it first, and `complete_seek` makes the others.
    Raises StreamError if a later start than that of an epoch, unless it is 0, has a table.
    """
    assert gap.time is not None
    logs = {name: DeltaLog(folder.table(name), epoch=epoch) for name in (*APPENDED, CURRENT)}
    for log in logs.values():
        log.reload()
    newest = {name: log.state().batch.number for name, log in logs.items()}
    for name, log in logs.items():
        own = log.state().batch
        # What the batch has not written yet it will not write.
        written = {n: k for n, k in own.written.items() if k <= newest[n]}
        amended = replace(own, offset=gap.document, written=written)
        if own.number == batch.number and amended != own:
            log.amend(amended)
        elif name == NOTIFICATIONS and batch.number not in newest.values():
            noted = replace(batch, offset=gap.document, written=written)
            log.append([], NOTIFICATION_COLUMNS, noted)
    return gap.time.as_datetime().isoformat()


def complete_seek(folder: JobFolder, batch: Batch, epoch: int = 0) -> None:
    """Complete a seek that was interrupted, if a batch is that of one. Raises as `_leave_out`."""
    if (end := batch.end) is not None and end.sought is not None:
        _leave_out(folder, batch, end, epoch)


def replace_lost_batch(folder: JobFolder, uri: str, newest: tuple[Batch, bool], epoch: int) -> None:
    """Replace a batch that some table lacks, and whose events the oplogs have lost.

    The options must allow that. Spark repeats a batch as it was, and would fail at every start. A
    seek that was interrupted is completed. `newest` is the `newest_batch` of the job, and `epoch`
    that of the start. Raises SourceError.
    """
    planned, is_whole = newest
    if is_whole or not planned.begin:
        return
    before, end = (Offset.of(each, in_table=True) for each in (planned.begin, planned.offset))
    batch = end.events_after(before)
    complete_seek(folder, planned, epoch)
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
            where = _leave_out(folder, planned, _gap(folder, planned, now, "now")[0], epoch)
            text = "the oplogs have lost events of the batch in progress: the job continues at"
            say(f"{text} {where}, and reads the collections again")
            restore_checkpoint(folder)


def _next_batch(folder: JobFolder) -> Batch:
    """Return the batch that a seek changes: the first one that not all tables have, or a seek's.

    What follows a seek's batch was not read yet if it is the newest one.
    """
    last, is_whole = newest_batch(folder)
    if not is_whole or (last.end is not None and last.end.sought is not None):
        return last
    return Batch(last.query, last.number + 1, begin=last.offset)

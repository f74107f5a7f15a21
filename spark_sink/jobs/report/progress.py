"""What a job's batches have done, and the lines that a running job prints about them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.console import say
from spark_sink.errors import StreamError
from spark_sink.jobs.checkpoint import LoggedBatch
from spark_sink.jobs.task_writer import TaskReport
from spark_sink.source.offsets import Offset
from spark_sink.tables.executors import REPORT_PROGRESS

_EXECUTED = "addBatch"
"""The phase that Spark reports for batches that it has run, and not for idle triggers."""
STANDS = 60
"""Seconds after which a stream without events stands still: each shard reports every ten."""
_WORK_SECONDS = 10


@dataclass(frozen=True)
class BatchProgress:
    """A batch that has run: its number, output, seconds, and the cluster time at its end.

    `lag` is the age of `through` when the batch ended, in seconds; both are None while the batch's
    position has no time. `snapshot` is the progress of a snapshot that has not ended, and `share`
    the part of it that is done, from 0 to 1, by the chunks that are known.
    """

    number: int
    written: TaskReport
    seconds: float
    through: int | None = None
    lag: float | None = None
    snapshot: str = ""
    share: float = 1.0

    def __str__(self) -> str:
        events, seconds = self.written.events, self.seconds
        rate = events / seconds if seconds else 0.0
        text = f"batch {self.number}: {events:,} events in {seconds:.1f} s ({rate:,.0f}/s)"
        if self.written.files:
            text += f", {self.written.files} files"
        if self.through is not None and self.lag is not None:
            text += f", through {_moment(self.through)}, {self.lag:.0f} s behind"
        return f"{text}, {self.snapshot}" if self.snapshot else text


def batch_progress(progress: Mapping[str, Any], now: float) -> BatchProgress | None:
    """Return the batch of one of Spark's progress reports; None for a trigger without a batch.

    Its events are the rows that Spark has counted, which are reports of tasks in a job's query.

    Args:
        progress: an element of `StreamingQuery.recentProgress`.
        now: the time of the report, in seconds since 1970.
    """
    durations = progress.get("durationMs", {})
    if _EXECUTED not in durations:
        return None
    offset, through = _offset(progress), reached(progress)
    snapshot, share = "", 1.0
    if offset is not None and (plan := offset.snapshots.initial_plan) is not None:
        counts = plan.progress  # in which each collection counts the same
        share = (counts.collections_planned + counts.share) / max(1, counts.collections)
        snapshot = (
            f"snapshot: {counts.collections_planned} of {counts.collections} collections, "
            f"{counts.chunks_planned} chunks"
        )
    return BatchProgress(
        int(progress["batchId"]),
        TaskReport(events=progress.get("numInputRows", 0)),
        durations.get("triggerExecution", 0) / 1000,
        through,
        None if through is None else max(0.0, now - through),
        snapshot,
        share,
    )


def reached(progress: Mapping[str, Any]) -> int | None:
    """Return the cluster time up to which a query has all events, in seconds since 1970.

    It is the end of the last batch, or the time before which no event follows. None without a
    position. `progress` is one of Spark's reports, also of a trigger without a batch.
    """
    end, quiet = _offset(progress), _quiet_until(progress)
    ends = [] if end is None or end.time is None else [int(end.time.time)]
    return max([*ends, *([] if quiet is None else [quiet])], default=None)


def _quiet_until(progress: Mapping[str, Any]) -> int | None:
    """Return the time before which no event follows the last batch; None if one may follow."""
    latest = _offset(progress, "latestOffset")
    return None if latest is None or latest.quiet_until is None else int(latest.quiet_until.time)


def _offset(progress: Mapping[str, Any], name: str = "endOffset") -> Offset | None:
    """Return an offset, by default that at the end of a batch; None where the report has none."""
    end: Any = next((source.get(name) for source in progress.get("sources", ())), None)
    try:
        return Offset.of(json.loads(end) if isinstance(end, str) else end)
    except (StreamError, ValueError, AttributeError):
        return None


def _moment(time_: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_))


class ProgressReader(Protocol):
    """Receives the progress of a query."""

    def add(self, batch: BatchProgress) -> None:
        """Note a batch that has run."""

    def reach(self, through: int, *, waits: bool) -> None:
        """Note the cluster time up to which the query has all events (`reached`).

        `waits` is whether the stream stands still there, because it waits for a shard.
        """


class ProgressReport:
    """Prints a line for each batch of a job's query, and when its stream stands still.

    Args:
        listeners: receive each batch, and what the query has reached.
        clock: the present, in seconds since 1970.
        once: whether the query reads a snapshot alone.
    """

    def __init__(
        self,
        listeners: Sequence[ProgressReader] = (),
        clock: Callable[[], float] = time.time,
        *,
        once: bool = False,
    ) -> None:
        self._written: dict[int, TaskReport] = {}  # of batches that Spark has not reported yet
        self._once = once
        self._listeners = listeners
        self._clock = clock
        self._reported = -1
        self._waits = False
        self._through = 0
        self._last: str | None = None  # the time of Spark's last report
        self._since = clock()  # when that was seen; infinite once a long batch is printed

    def wrote(self, number: int, written: TaskReport) -> None:
        """Note what a batch has written, before Spark reports it. Another thread may call it."""
        self._written[number] = written

    def begin(self, last: LoggedBatch | None) -> None:
        """Print that the query has started, after the last committed batch, if any."""
        where = "begins" if last is None else f"continues after batch {last.number}"
        say(f"Spark has started: the job {where}")
        if last is not None and last.end.time is not None:
            self._reach(int(last.end.time.time), waits=False)

    def end(self, last: LoggedBatch | None) -> None:
        """Print that the query was stopped, or, of a snapshot alone, that it has read all."""
        if self._once and last is not None and not last.end.is_in_snapshot:
            say(f"the snapshot is complete with batch {last.number}")
            return
        where = "before the first batch" if last is None else f"after batch {last.number}"
        say(f"stopped {where}; the next start continues")

    def __call__(self, query: StreamingQuery) -> None:
        """Report the batches that ended since the last call, and what the query has reached."""
        progress: Mapping[str, Any] | None = None
        for progress in query.recentProgress:
            if int(progress["batchId"]) <= self._reported:
                continue
            batch = batch_progress(progress, self._clock())
            if batch is None:
                continue
            self._reported = batch.number
            batch = replace(batch, written=self._written.get(batch.number, TaskReport()))
            for number in [number for number in [*self._written] if number <= batch.number]:
                del self._written[number]  # batches without rows are not reported
            say(str(batch))
            for listener in self._listeners:
                listener.add(batch)
        self._report_long_batch(query, None if progress is None else str(progress["timestamp"]))
        if progress is None or (through := reached(progress)) is None:
            return
        quiet, begun = _quiet_until(progress), datetime.fromisoformat(progress["timestamp"])
        waits = quiet is not None and begun.timestamp() - quiet > STANDS
        if waits and not self._waits:
            say(
                f"the stream stands still at {_moment(through)}: a shard does not answer, or is "
                "behind (the router's status page names it). The job waits; nothing is lost"
            )
        elif self._waits and not waits:
            say("the stream continues")
        self._waits = waits
        self._reach(through, waits=waits)

    def _report_long_batch(self, query: StreamingQuery, last: str | None) -> None:
        """Print once that a batch runs for long; `last` is the time of the last report."""
        if last != self._last:
            self._last, self._since = last, self._clock()
        elif self._clock() - self._since > STANDS and query.status["isTriggerActive"]:
            say(
                f"the batch in progress runs for more than {STANDS} s: it reads much, or waits for "
                "a shard (the router's status page names it)"
            )
            self._since = math.inf

    def _reach(self, through: int, *, waits: bool) -> None:
        self._through = max(self._through, through)
        for listener in self._listeners:
            listener.reach(self._through, waits=waits)


@contextmanager
def printed_progress(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Print the progress of long work in the block: at most a line every ten seconds."""
    last = clock()

    def print_progress(what: str, done: int, total: int) -> None:
        nonlocal last
        if clock() - last >= _WORK_SECONDS:
            last = clock()
            say(f"{what}: {done:,} of {total:,}")

    before = REPORT_PROGRESS.set(print_progress)
    try:
        yield
    finally:
        REPORT_PROGRESS.reset(before)

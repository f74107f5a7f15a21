"""How far a job's query is, and the lines that a running job prints about it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

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
class QueryProgress:
    """What one of Spark's reports says of a query.

    Args:
        batch: the number of the batch that has run; None for a trigger without one.
        written: its output; by Spark's report alone, only the number of rows.
        seconds: which it took.
        through: the cluster time up to which the query has all events, in seconds since 1970; None
            while its position has no time.
        lag: the age of `through` at the time of the report, in seconds.
        waits: whether the stream stands still there, because it waits for a shard.
        snapshot: the progress of a snapshot that has not ended, as text.
        share: the part of it that is done, from 0 to 1, by the chunks that are known.
    """

    batch: int | None = None
    written: TaskReport = field(default_factory=TaskReport)
    seconds: float = 0.0
    through: int | None = None
    lag: float = 0.0
    waits: bool = False
    snapshot: str = ""
    share: float = 1.0

    def __str__(self) -> str:
        events, seconds = self.written.events, self.seconds
        rate = events / seconds if seconds else 0.0
        text = f"batch {self.batch}: {events:,} events in {seconds:.1f} s ({rate:,.0f}/s)"
        if self.written.files:
            text += f", {self.written.files} files"
        if self.through is not None:
            text += f", through {_moment(self.through)}, {self.lag:.0f} s behind"
        return f"{text}, {self.snapshot}" if self.snapshot else text


def query_progress(report: Mapping[str, Any], now: float) -> QueryProgress:
    """Return what one of Spark's reports says.

    The query has all events up to the end of its last batch, or the time before which no event
    follows.

    Args:
        report: an element of `StreamingQuery.recentProgress`.
        now: the time at which it was read, in seconds since 1970.
    """
    durations, end = report.get("durationMs", {}), _offset(report, "endOffset")
    latest = _offset(report, "latestOffset")
    quiet = None if latest is None or latest.quiet_until is None else latest.quiet_until.time
    times = [] if end is None or end.time is None else [end.time.time]
    through = max([*times, *([] if quiet is None else [quiet])], default=None)
    begun = datetime.fromisoformat(report["timestamp"]).timestamp()
    snapshot, share = "", 1.0
    if end is not None and (plan := end.snapshots.initial_plan) is not None:
        counts = plan.progress  # in which each collection counts the same
        share = (counts.collections_planned + counts.share) / max(1, counts.collections)
        snapshot = (
            f"snapshot: {counts.collections_planned} of {counts.collections} collections, "
            f"{counts.chunks_planned} chunks"
        )
    return QueryProgress(
        int(report["batchId"]) if _EXECUTED in durations else None,
        TaskReport(events=report.get("numInputRows", 0)),
        durations.get("triggerExecution", 0) / 1000,
        through,
        0.0 if through is None else max(0.0, now - through),
        quiet is not None and begun - quiet > STANDS,
        snapshot,
        share,
    )


def _offset(report: Mapping[str, Any], name: str) -> Offset | None:
    """Return an offset of the source; None where the report has none."""
    end: Any = next((source.get(name) for source in report.get("sources", ())), None)
    try:
        return Offset.of(json.loads(end) if isinstance(end, str) else end)
    except (StreamError, ValueError, AttributeError):
        return None


def _moment(time_: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_))


class ProgressReport:
    """Prints a line for each batch of a job's query, and when its stream stands still.

    Args:
        listeners: get the progress with each batch, and what the query has reached since.
        clock: the present, in seconds since 1970.
        once: whether the query reads a snapshot alone.
    """

    def __init__(
        self,
        listeners: Sequence[Callable[[QueryProgress], None]] = (),
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
            self._tell(QueryProgress(through=last.end.time.time))

    def end(self, last: LoggedBatch | None) -> None:
        """Print that the query was stopped, or, of a snapshot alone, that it has read all."""
        if self._once and last is not None and not last.end.is_in_snapshot:
            say(f"the snapshot is complete with batch {last.number}")
            return
        where = "before the first batch" if last is None else f"after batch {last.number}"
        say(f"stopped {where}; the next start continues")

    def __call__(self, query: StreamingQuery) -> None:
        """Report the batches that ended since the last call, and what the query has reached."""
        reports = query.recentProgress
        for report in reports:
            if int(report["batchId"]) <= self._reported:
                continue
            progress = query_progress(report, self._clock())
            if (batch := progress.batch) is None:
                continue
            self._reported = batch
            progress = replace(progress, written=self._written.get(batch, TaskReport()))
            for number in [number for number in [*self._written] if number <= batch]:
                del self._written[number]  # batches without rows are not reported
            say(str(progress))
            self._tell(progress)
        self._report_long_batch(query, str(reports[-1]["timestamp"]) if reports else None)
        latest = query_progress(reports[-1], self._clock()) if reports else QueryProgress()
        if latest.through is None:
            return
        if latest.waits and not self._waits:
            say(
                f"the stream stands still at {_moment(latest.through)}: a shard does not answer, "
                "or is behind (the router's status page names it). The job waits; nothing is lost"
            )
        elif self._waits and not latest.waits:
            say("the stream continues")
        self._waits = latest.waits
        self._tell(replace(latest, batch=None))

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

    def _tell(self, progress: QueryProgress) -> None:
        if progress.through is not None:
            self._through = max(self._through, progress.through)
            progress = replace(progress, through=self._through)
        for listener in self._listeners:
            listener(progress)


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

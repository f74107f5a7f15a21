"""What a running job tells: a line for each batch on the console, and metrics for Prometheus."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.errors import StreamError
from spark_sink.jobs.task_tables import Written
from spark_sink.snapshot.plan import SnapshotPlan
from spark_sink.source.offsets import Offset

_EXECUTED = "addBatch"
"""The phase that Spark reports of batches that it has run, and not of idle triggers."""
_OPERATIONS = {"c": "create", "u": "update", "d": "delete", "r": "snapshot"}
# Collections with metrics of their own.
_MOST_NAMESPACES = 200
_BAR = 20
"""The characters of a snapshot's bar."""
_BATCH_SECONDS = (0.1, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 900)


@dataclass(frozen=True)
class BatchProgress:
    """A batch that has run: its number, events, seconds, and the cluster time at its end.

    `events` includes the documents of a snapshot; `files` is the number of files with its rows.
    `lag` is the age of `through` when the batch ended, in seconds; both are None while the batch's
    position has no time. `snapshot` is the progress of a snapshot that has not ended, and `share`
    how much of it is done, from 0 to 1, by the chunks that are known.
    """

    number: int
    events: int
    seconds: float
    through: int | None
    lag: float | None
    snapshot: str = ""
    share: float = 1.0
    files: int = 0

    def __str__(self) -> str:
        rate = self.events / self.seconds if self.seconds else 0.0
        text = (
            f"batch {self.number}: {self.events:,} events in {self.seconds:.1f} s ({rate:,.0f}/s)"
        )
        if self.files:
            text += f", {self.files} files"
        if self.through is not None and self.lag is not None:
            moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.through))
            text += f", through {moment} UTC, {self.lag:.0f} s behind"
        return f"{text}, {self.snapshot}" if self.snapshot else text


def batch_progress(
    progress: Mapping[str, Any], now: float, written: Mapping[int, Written] | None = None
) -> BatchProgress | None:
    """Return the batch of one of Spark's progress reports; None for a trigger without a batch.

    Args:
        progress: an element of `StreamingQuery.recentProgress`.
        now: the time of the report, in seconds since 1970.
        written: what a job's batches have written; Spark counts the rows of other queries.
    """
    durations = progress.get("durationMs", {})
    if _EXECUTED not in durations:
        return None
    at = _offset(progress)
    through = None if at is None or at.time is None else int(at.time.time)
    snapshot, share = "", 1.0
    if at is not None and at.running is not None:
        found = at.running.progress
        share = _share(at.running)
        snapshot = (
            f"snapshot: {found.collections_planned} of {found.collections} collections, "
            f"{found.chunks_planned} chunks"
        )
    number = int(progress["batchId"])
    counted = Written(progress.get("numInputRows", 0), 0)
    if written is not None:
        counted = written.get(number, Written(0, 0))
    return BatchProgress(
        number,
        counted.events,
        durations.get("triggerExecution", 0) / 1000,
        through,
        None if through is None else max(0.0, now - through),
        snapshot,
        share,
        counted.files,
    )


def _share(plan: SnapshotPlan) -> float:
    """Return how much of a snapshot is planned; each collection counts the same."""
    done = plan.progress
    return (done.collections_planned + done.share) / max(1, done.collections)


def _offset(progress: Mapping[str, Any]) -> Offset | None:
    """Return the offset at the end of a batch; None where the report has none."""
    end: Any = next((each.get("endOffset") for each in progress.get("sources", ())), None)
    try:
        return Offset.read(json.loads(end) if isinstance(end, str) else end)
    except (StreamError, ValueError, AttributeError):
        return None


class JobMetrics:
    """A job's metrics, which `serve` offers to Prometheus on a port of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made = self.registry
        self._batches = Counter("mergerouter_job_batches", "Batches committed.", registry=made)
        self._events = Counter(
            "mergerouter_job_events", "Events and documents written.", registry=made
        )
        self._seconds = Histogram(
            "mergerouter_job_batch_seconds",
            "Time of a batch.",
            buckets=_BATCH_SECONDS,
            registry=made,
        )
        self._through = Gauge(
            "mergerouter_job_through_timestamp_seconds",
            "Cluster time up to which the tables have all events.",
            registry=made,
        )
        self._changes = Counter(
            "mergerouter_job_changes",
            "Rows in the tables, by collection and operation.",
            ("namespace", "operation"),
            registry=made,
        )
        self._commits = Histogram(
            "mergerouter_job_commit_seconds",
            "Time in which the driver merged and committed a batch's part of a table.",
            ("table",),
            buckets=_BATCH_SECONDS,
            registry=made,
        )
        self._named: set[str] = set()
        self._snapshot = Gauge(
            "mergerouter_job_snapshot_ratio",
            "Part of the snapshot that is done, 1 where none is in progress.",
            registry=made,
        )
        self._verified = Gauge(
            "mergerouter_job_verified_through_timestamp_seconds",
            "Cluster time through which the current table is verified.",
            registry=made,
        )
        self._compared = Counter(
            "mergerouter_job_verified_rows", "Rows and keys compared.", registry=made
        )
        self._differences = Counter(
            "mergerouter_job_differences", "Keys that differ from the collections.", registry=made
        )

    def serve(self, port: int, host: str = "127.0.0.1") -> None:
        """Offer the metrics over HTTP. Raises OSError if the port is in use."""
        start_http_server(port, host, self.registry)

    def add(self, batch: BatchProgress) -> None:
        """Count a batch."""
        self._batches.inc()
        self._events.inc(batch.events)
        self._seconds.observe(batch.seconds)
        self._snapshot.set(batch.share)
        if batch.through is not None:
            self._through.set(batch.through)

    def add_round(self, through: int, rows: int, differences: int) -> None:
        """Count a round of verification, through a cluster time in seconds since 1970."""
        self._verified.set(through)
        self._compared.inc(rows)
        self._differences.inc(differences)

    def committed(self, table: str, seconds: float) -> None:
        """Count the commit of a batch to one of the job's tables."""
        self._commits.labels(table).observe(seconds)

    def count(self, rows: Iterable[tuple[str, str, int]]) -> None:
        """Count the rows of a batch, by namespace and `op`; further collections are "other"."""
        for namespace, op, number in rows:
            if len(self._named) < _MOST_NAMESPACES:
                self._named.add(namespace)
            name = namespace if namespace in self._named else "other"
            self._changes.labels(name, _OPERATIONS.get(op, op)).inc(number)


class ProgressReport:
    """Tells each batch of a query once.

    Args:
        listeners: called with each batch.
        stream: where the lines are printed; on a terminal one line with a bar shows a snapshot.
        clock: the present, in seconds since 1970.
        written: what a job's batches have written.
    """

    def __init__(
        self,
        listeners: Sequence[Callable[[BatchProgress], None]] = (),
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.time,
        written: Mapping[int, Written] | None = None,
    ) -> None:
        self._written = written
        self._listeners = listeners
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._told = -1
        self._has_bar = False

    def __call__(self, query: StreamingQuery) -> None:
        """Tell the batches that have ended since the last call."""
        for progress in query.recentProgress:
            batch = batch_progress(progress, self._clock(), self._written)
            if batch is None or batch.number <= self._told:
                continue
            self._told = batch.number
            self._tell(batch)
            for listener in self._listeners:
                listener(batch)

    def _tell(self, batch: BatchProgress) -> None:
        before, self._has_bar = self._has_bar, bool(batch.snapshot) and self._stream.isatty()
        if self._has_bar:
            full = round(batch.share * _BAR)
            text = f"[{'#' * full}{'-' * (_BAR - full)}] {batch}"
            print(f"\r\x1b[K{text[: get_terminal_size().columns - 1]}", end="", file=self._stream)
        else:
            print(f"\n{batch}" if before else batch, file=self._stream)
        self._stream.flush()


class ProgressListener(StreamingQueryListener):
    """Tells the batches of all queries of a session as metrics, for queries of one's own.

    Add it with `spark.streams.addListener(ProgressListener(metrics))`.
    """

    def __init__(self, metrics: JobMetrics, clock: Callable[[], float] = time.time) -> None:
        self._metrics = metrics
        self._clock = clock

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Count a batch."""
        batch = batch_progress(json.loads(event.progress.json), self._clock())
        if batch is not None:
            self._metrics.add(batch)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""

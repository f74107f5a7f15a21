"""A job's metrics for Prometheus, which the alerts in deploy/ use."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_sink.errors import OptionError
from spark_sink.jobs.report.progress import QueryProgress, query_progress

_OPERATIONS = {"c": "create", "u": "update", "d": "delete", "r": "snapshot"}
# The most collections with metrics of their own.
_MOST_NAMESPACES = 200
_BATCH_SECONDS = (0.1, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 900)


class JobMetrics:
    """A job's metrics, which `serve` offers to Prometheus."""

    def __init__(self) -> None:
        made = self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=made), partial(Gauge, registry=made)
        histogram = partial(Histogram, buckets=_BATCH_SECONDS, registry=made)
        started = gauge("mergerouter_job_start_time_seconds", "Time of the start since 1970.")
        started.set_to_current_time()
        self._batches = counter("mergerouter_job_batches", "Batches committed.")
        self._events = counter("mergerouter_job_events", "Events and documents written.")
        self._seconds = histogram("mergerouter_job_batch_seconds", "Time of a batch.")
        self._through = gauge(
            "mergerouter_job_through_timestamp_seconds",
            "Cluster time up to which the tables have all events; 0 before the first batch.",
        )
        self._changes = counter(
            "mergerouter_job_changes",
            "Rows in the tables, by collection and operation.",
            ("namespace", "operation"),
        )
        self._commits = histogram(
            "mergerouter_job_commit_seconds",
            "Time in which the driver merged and committed a batch's part of a table.",
            ("table",),
        )
        self._named: set[str] = set()
        self._snapshot = gauge(
            "mergerouter_job_snapshot_ratio",
            "Part of the snapshot that is done, 1 where none is in progress.",
        )
        self._snapshot.set(1)
        self._verified = gauge(
            "mergerouter_job_verified_through_timestamp_seconds",
            "Cluster time through which the current table is verified.",
        )
        self._compared = counter("mergerouter_job_verified_rows", "Rows and keys compared.")
        self._differences = gauge(
            "mergerouter_job_differences",
            "Keys that differed from the collections in the last round of verification.",
        )

    def serve(self, port: int) -> ExitStack:
        """Offer the metrics over HTTP on 127.0.0.1, until the result is closed, if it is.

        Raises OptionError if the port is in use.
        """
        try:
            server, thread = start_http_server(port, "127.0.0.1", self.registry)
        except OSError as error:
            raise OptionError(
                f"--metrics-port {port} cannot be opened: choose another port", error
            ) from None
        served = ExitStack()
        for end in (thread.join, server.server_close, server.shutdown):  # the last one first
            served.callback(end)
        return served

    def add(self, progress: QueryProgress) -> None:
        """Count a batch, if there is one, and note the cluster time that is reached.

        The rows of collections after the first 200 are those of "other".
        """
        if progress.through is not None:
            self._through.set(progress.through)
        if progress.batch is None:
            return
        self._batches.inc()
        self._events.inc(progress.written.events)
        self._seconds.observe(progress.seconds)
        self._snapshot.set(progress.share)
        for table, seconds in progress.written.seconds.items():
            self._commits.labels(table).observe(seconds)
        for namespace, op, number in progress.written.counts:
            if len(self._named) < _MOST_NAMESPACES:
                self._named.add(namespace)
            name = namespace if namespace in self._named else "other"
            self._changes.labels(name, _OPERATIONS.get(op, op)).inc(number)

    def add_round(self, through: int, rows: int, differences: int) -> None:
        """Count a round of verification, through a cluster time in seconds since 1970."""
        self._verified.set(through)
        self._compared.inc(rows)
        self._differences.set(differences)


class ProgressListener(StreamingQueryListener):
    """Counts the batches of all queries of a session as metrics, for queries that are not jobs.

    Add it with `spark.streams.addListener(ProgressListener(metrics))`.
    """

    def __init__(self, metrics: JobMetrics) -> None:
        self._metrics = metrics

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Count a batch."""
        self._metrics.add(query_progress(json.loads(event.progress.json), time.time()))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""

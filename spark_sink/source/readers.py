"""The readers of streams and of batches, by Spark's interfaces.

They translate between these interfaces and the planners and tasks, which do not depend on Spark
(docs/spark-rationale.md). Spark passes a micro-batch through these methods:

1. `latestOffset`, on the driver: `BatchPlanner.plan` decides where the batch ends. For that,
   `EventPlanner.next_batch` finds the end of its events, and `SnapshotScheduler.advance` what it
   reads of a snapshot. Spark writes the offset to the checkpoint.
2. `partitions`, on the driver: what lies between two offsets is divided among tasks, by
   `EventPlanner.tasks` and `tasks_of_queue`.
3. `read`, in each task: `rows_of_task`.
4. `commit`, on the driver, once the batch is written.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from threading import current_thread, main_thread
from typing import Any, cast

import pyarrow as pa
from pymongo.errors import PyMongoError
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from spark_sink.errors import OptionError, StreamError, without_traceback
from spark_sink.events.heartbeats import heartbeats
from spark_sink.events.positions import AtTime, EventRange, FromNow, after, is_after
from spark_sink.options.stream_options import StreamOptions
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.snapshot.plan import SnapshotPlan
from spark_sink.snapshot.selections import CollectionPatterns
from spark_sink.source.batch_planner import BatchPlanner, QueryOutput
from spark_sink.source.event_planner import EventPlanner
from spark_sink.source.offsets import Offset
from spark_sink.source.task_rows import (
    SnapshotTask,
    SourceEvent,
    Task,
    TaskPartition,
    chunk_read,
    rows_of_task,
)
from spark_sink.stream.router_client import RouterClient

# The most seconds from `start()` until Spark has launched the query's process and makes the reader
# there: a busy JVM needs two, and the imports as many; a machine with a load of 13 needs ten.
_LAUNCH_SECONDS = 30.0


class MergerouterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, reads them in tasks.

    Spark sends copies of it to the tasks: the connection is made at first use and never copied.
    """

    def __init__(
        self, options: StreamOptions, loaded_at: float, output: QueryOutput | None = None
    ) -> None:
        self.options = options
        """What the query was started with."""
        # The time of `start()` or before it: Spark makes the reader once a query is started.
        self._started_at = max(loaded_at, time.time() - _LAUNCH_SECONDS)
        self._output = QueryOutput() if output is None else output
        self._planner: BatchPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint begins.

        Spark asks again if it is restarted before its first batch is committed, so the answer must
        depend on the options only: the first, empty batch fixes "now".
        """
        return Offset(self.options.start, self.options.scope).document

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch: about maxEventsPerTrigger events."""
        return ReadMaxRows(self.options.max_events_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the present, before which later batches end. Raises StreamError."""
        with without_traceback():
            self.planner.event_planner.stop_at_present()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the micro-batch after `start` ends. Raises StreamError."""
        max_events = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with without_traceback():
            latest = self.planner.plan(Offset.of(start), max_events)
            return start if latest is None else latest.document

    def commit(self, end: dict[str, Any]) -> None:
        """Remove the files of signals that a committed batch has processed."""
        if self._planner is not None:
            with without_traceback():
                self._planner.signal_receiver.committed(Offset.of(end).snapshots)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the newest cluster time, for the lag; None before the first batch.

        Its `quiet_until` is the cluster time before which no event follows the planned batch; None
        if one is known.
        """
        if self._planner is None:
            return None
        try:
            return self._planner.newest().document
        except (PyMongoError, StreamError):
            return None  # metrics are optional

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what the tasks of a micro-batch read. Raises StreamError."""
        if start == end:
            return []
        with without_traceback():
            first, last = Offset.of(start), Offset.of(end)
            tasks: list[Task] = [*self.planner.event_planner.tasks(last.events_after(first))]
            tasks += self.added_tasks(first, last)
            return [TaskPartition(task, last.scope) for task in tasks]

    def added_tasks(self, before: Offset, end: Offset) -> list[Task]:
        """Return the tasks between two offsets that do not read the stream. Raises StreamError."""
        tasks: list[Task] = [*map(SourceEvent, heartbeats(before.heartbeat, end.heartbeat))]
        part = end.snapshots.batch
        if part.reading is not None or part.ending is not None:
            tasks += self.planner.snapshot_tasks(before, end)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the events that one task reads, as Arrow batches. Raises StreamError."""
        with without_traceback():
            yield from self.rows(cast("TaskPartition", partition))

    def rows(self, partition: TaskPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task, in the scope of its batch. Raises StreamError."""
        scope = partition.scope or self.options.scope
        return rows_of_task(partition.value, replace(self.options, scope=scope))

    def stop(self) -> None:
        """Kill the driver's cursor and close its connections."""
        if self._planner is not None:
            self._planner.close()
        self._planner = None

    @property
    def planner(self) -> BatchPlanner:
        """What plans the batches, connected at first use. Raises StreamError and OptionError."""
        if self._planner is None:
            _exit_on_sigterm()
            self._planner = BatchPlanner.connected(self.options, self._output, self._started_at)
        return self._planner


def _exit_on_sigterm() -> None:
    """Let SIGTERM, with which Spark ends the process of a planner, close the cursors there.

    Otherwise the router would keep them for ten minutes. A process that has another handler keeps
    that one, such as the driver of a job.
    """

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another one would interrupt the closing
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - Spark has closed the connection
        sys.exit()

    if current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, leave)


class MergerouterBatchReader(DataSourceReader):
    """Plans one batch on the driver, reads it in tasks. Raises OptionError without a mode."""

    def __init__(self, options: StreamOptions) -> None:
        if options.batch_mode is None:
            raise OptionError(
                "option 'mode' is required by spark.read: snapshot reads the documents of the "
                "collections, changes reads the events between two positions"
            )
        if options.batch_mode == "changes" and isinstance(options.start, FromNow):
            raise OptionError(
                "option 'mode': changes requires startAtOperationTime, startAfter or resumeAfter"
            )
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return what the tasks read. Raises StreamError."""
        with without_traceback(), closing(RouterClient(self._options)) as client:
            client.require_reachable()
            return [TaskPartition(task) for task in self._tasks(client)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task, as Arrow batches. Raises StreamError."""
        with without_traceback():
            task: Task | None = cast("TaskPartition", partition).value
            if task is not None:  # Spark passes None where there are no partitions
                yield from rows_of_task(task, self._options)

    def _tasks(self, client: RouterClient) -> Sequence[Task]:
        options = self._options
        if options.batch_mode == "snapshot":
            snapshot_time = client.with_retries(client.present)
            plan = SnapshotPlan(snapshot_time, end=None)  # all in one batch
            chosen = CollectionPatterns(options.snapshot.collections)
            planner = ChunkPlanner(client.mongo, options.scope, options.snapshot)
            return [
                SnapshotTask(tuple(chunk_read(each, snapshot_time, options) for each in chunks))
                for chunks in client.with_retries(lambda: planner.tasks(plan, chosen))
            ]
        present = after(client.with_retries(client.present))
        end = options.end or present
        if not is_after(end, options.start):
            return []
        if isinstance(end, AtTime) and is_after(end, present):
            raise OptionError("option 'endAtOperationTime': lies in the future; remove it")
        with closing(EventPlanner(client, options)) as planner_of_changes:
            return planner_of_changes.tasks(EventRange(options.start, end))

"""The batch reader: `spark.read` of a collection's documents, or of a range of the stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_sink.batches.batch_planner import BatchPlanner, PlannedBatch
from spark_sink.errors import OptionError, without_traceback
from spark_sink.events.positions import AtTime, FromNow, after, is_after
from spark_sink.options.stream_options import StreamOptions
from spark_sink.signals.state import SignalState, SnapshotRequest
from spark_sink.source.tasks import (
    Task,
    TaskPartition,
    read_task,
    snapshot_planner,
    snapshot_tasks,
)
from spark_sink.stream.router_client import RouterClient


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
                yield from read_task(task, self._options)

    def _tasks(self, client: RouterClient) -> Sequence[Task]:
        options = self._options
        if options.batch_mode == "snapshot":
            snapshot_time = client.present()
            planner = snapshot_planner(client, options)
            plan = replace(planner.begin(snapshot_time), end=None)  # all in one batch
            request = SnapshotRequest.of_mode(snapshot_time, plan)
            state = SignalState(requests=(request,), reading=snapshot_time)
            start = options.start
            return client.with_retries(
                lambda: snapshot_tasks(state, start, options, planner, client.present)
            )
        end = options.end or after(client.present())
        if not is_after(end, options.start):
            return []
        if isinstance(end, AtTime) and is_after(end, after(client.present())):
            raise OptionError("option 'endAtOperationTime': lies in the future; remove it")
        with closing(BatchPlanner(client, options)) as planner_of_changes:
            return planner_of_changes.tasks(PlannedBatch(options.start, end))

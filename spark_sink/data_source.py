"""`spark.readStream.format("mergerouter")`: a Python data source of Spark.

Spark's driver asks for the end of each micro-batch (`latestOffset`), writes it to the checkpoint,
and has tasks read what lies between two offsets (docs/design.md, section 12). The classes here only
translate between Spark's interface and the planner and the streams, which know nothing of Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pyarrow as pa
from pymongo.errors import PyMongoError
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_sink.batch_planner import BatchPlanner, Cluster, Limits, PlannedBatch
from spark_sink.errors import OptionError, told_briefly
from spark_sink.event_rows import EventRows
from spark_sink.options import StreamOptions, parse_options
from spark_sink.positions import AtTime
from spark_sink.query_start import cluster_time_at, query_started
from spark_sink.read_reports import ReportInbox, report
from spark_sink.read_task import ReadTask, TaskReader
from spark_sink.router_client import RouterClient
from spark_sink.scope import Offsets

FORMAT = "mergerouter"

# Seconds that a getMore may wait: short where a micro-batch waits for its end to be found.
_PLANNING_AWAIT = 0.1
_READING_AWAIT = 0.5


@dataclass
class TaskPartition(InputPartition):
    """What one task of Spark reads."""

    value: ReadTask


class MergerouterDataSource(DataSource):
    """The data source behind the format name. Options: spark_sink.options.StreamOptions."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._loaded = time.time()

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """The options' schema; they and the router are checked here, before a query starts.

        Raises OptionError and StreamError.
        """
        with told_briefly():
            options = parse_options(self.options)
            client = RouterClient(options)
            try:
                client.require_reachable()
            finally:
                client.close()
            return _rows(options).schema

    def streamReader(self, schema: StructType) -> MergerouterStreamReader:  # noqa: N802
        """The reader for one query. Raises OptionError."""
        with told_briefly():
            options = parse_options(self.options)
            if schema.fieldNames() != _rows(options).schema.fieldNames():
                raise OptionError(
                    "the schema is fixed: leave .schema(…) out and select columns instead"
                )
            return MergerouterStreamReader(options, self._loaded)


class MergerouterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, reads them in tasks.

    Spark sends copies of it to the tasks: the connection is made at first use and never copied.
    """

    def __init__(self, options: StreamOptions, loaded: float) -> None:
        self._options = options
        self._offsets = Offsets(options.scope)
        self._loaded = loaded
        self._client: RouterClient | None = None
        self._inbox: ReportInbox | None = None
        self._planner: BatchPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_inbox": None, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint begins.

        Spark asks again if it is restarted before its first batch is committed, so the answer must
        depend on the options only: "now" is pinned down by the first, empty batch.
        """
        return self._offsets.write(self._options.start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """About maxEventsPerTrigger events in a micro-batch at most."""
        return ReadMaxRows(self._options.max_events_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the present; batches planned from now on end before it. Raises StreamError."""
        with told_briefly():
            self._planning().stop_at_present()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the micro-batch after `start` ends. Raises StreamError."""
        if isinstance(limit, ReadMaxRows):
            max_events: int | None = limit.max_rows
        elif isinstance(limit, ReadAllAvailable):
            max_events = None
        else:
            raise TypeError(f"a read limit that this source never asked for: {limit}")
        with told_briefly():
            batch = self._planning().next_batch(self._offsets.read(start), max_events)
        if batch.end == batch.start:
            return start
        return self._offsets.write(batch.end, batch.quiet_until)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest cluster time, for the lag in Spark's metrics; None before the first batch."""
        if self._client is None:
            return None
        try:
            return self._offsets.write(AtTime(self._client.clocks().cluster_time))
        except PyMongoError:
            return None  # metrics can wait for the router

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What the tasks of a micro-batch read. Raises StreamError."""
        with told_briefly():
            batch = PlannedBatch(
                self._offsets.read(start),
                self._offsets.read(end),
                quiet_until=self._offsets.read_quiet(end),
            )
            return [TaskPartition(task) for task in self._planning().tasks(batch)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events that one task reads, as Arrow batches. Raises StreamError."""
        with told_briefly():
            yield from self._read(cast("TaskPartition", partition).value)

    def _read(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        client = RouterClient(self._options)
        watch = partial(client.watch_events, batch_size=0, max_await=_READING_AWAIT)
        reader = TaskReader(task, watch)
        try:
            yield from _rows(self._options).arrow_batches(reader.events())
        finally:
            client.close()
        if task.report_to is not None:
            report(reader.passage, task.batch, task.report_to)

    def stop(self) -> None:
        """Kill the driver's cursor and close its connections."""
        if self._planner is not None:
            self._planner.close()
        if self._inbox is not None:
            self._inbox.close()
        if self._client is not None:
            self._client.close()
        self._planner = self._inbox = self._client = None

    def _planning(self) -> BatchPlanner:
        if self._planner is None:
            options = self._options
            self._client = client = RouterClient(options, guarded=True)
            client.require_reachable()
            self._inbox = ReportInbox(client.address)
            cluster = Cluster(
                watch=partial(client.watch_tokens, max_await=_PLANNING_AWAIT),
                newest=lambda: client.clocks().cluster_time,
                present=client.present,
                beginning=lambda: _beginning(client, query_started(self._loaded)),
                shards=client.shards,
            )
            limits = Limits(
                max_bytes=options.max_bytes_per_trigger,
                events_per_task=options.events_per_partition,
                in_total_order=options.in_total_order,
                idle_advance=options.idle_advance_seconds,
            )
            self._planner = BatchPlanner(cluster, limits, self._inbox)
        return self._planner


def _rows(options: StreamOptions) -> EventRows:
    return EventRows(raw_documents=options.raw_documents, canonical=options.canonical_json)


def _beginning(client: RouterClient, started: float) -> AtTime:
    clocks = client.clocks()
    return AtTime(cluster_time_at(started, clocks.wall - time.time(), clocks.cluster_time))

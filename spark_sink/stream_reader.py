"""The stream reader: plans micro-batches on Spark's driver, and reads them in tasks.

It only translates between Spark's interface and the planners and readers, which know nothing of
Spark (docs/design.md#feed-and-spark).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from pymongo.errors import PyMongoError
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_sink.batch_planner import BatchPlanner
from spark_sink.errors import HistoryLostError, told_briefly
from spark_sink.heartbeats import heartbeats, latest_heartbeat
from spark_sink.options import StreamOptions
from spark_sink.partitions import (
    Task,
    TaskPartition,
    planner_for,
    read_task,
    signal_tasks,
    snapshot_planner,
    snapshot_tasks,
)
from spark_sink.planned_batch import PlannedBatch
from spark_sink.positions import AtTime
from spark_sink.read_reports import ReportInbox
from spark_sink.router_client import RouterClient
from spark_sink.scope import Offsets
from spark_sink.signals import notifications
from spark_sink.signals.desk import SignalDesk
from spark_sink.signals.state import SignalState
from spark_sink.snapshot.plan import SnapshotPlan
from spark_sink.snapshot.planner import SnapshotPlanner
from spark_sink.snapshot.starts import SnapshotStarts


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
        self._snapshots: SnapshotPlanner | None = None
        self._starts: SnapshotStarts | None = None
        self._desk: SignalDesk | None = None
        self._ends_at_present = False
        self._skips_snapshot = True  # until this start has begun a snapshot, or told of none

    def __getstate__(self) -> dict[str, Any]:
        unsent = dict.fromkeys(("_client", "_inbox", "_planner", "_snapshots", "_starts", "_desk"))
        return {**self.__dict__, **unsent}

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
        self._ends_at_present = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the micro-batch after `start` ends. Raises StreamError."""
        if isinstance(limit, ReadMaxRows):
            max_events: int | None = limit.max_rows
        elif isinstance(limit, ReadAllAvailable):
            max_events = None
        else:
            raise TypeError(f"a read limit that this source never asked for: {limit}")
        with told_briefly():
            return self._latest(start, max_events)

    def _latest(self, start: dict[str, Any], max_events: int | None) -> dict[str, Any]:
        position = self._offsets.read(start)
        plan = self._offsets.read_snapshot(start)
        signals = self._offsets.read_signals(start).between_batches()
        if self._starts is None:
            self._starts = SnapshotStarts(self._options.snapshot, position, plan)
        starts = self._starts
        planner = self._planning()
        if plan is not None and not plan.ended:
            return self._next_of_snapshot(plan, max_events, signals)
        if starts.is_due(position):
            return self._begin_snapshot(start, starts, signals)
        if not starts.policy.streams:
            return start
        desk = self._signal_desk()
        try:
            if desk is not None:
                signals = desk.receive(signals, position)
            if desk is not None and signals.holds_stream:
                planner.close()
                batch = PlannedBatch(position, position)
            else:
                batch = planner.next_batch(position, max_events)
        except HistoryLostError:
            if not starts.policy.if_history_is_lost:
                raise
            return self._begin_snapshot(start, starts, replace(signals, position=None))
        if desk is not None:
            signals = desk.advance(signals, batch.end, max_events)
        if batch.end == batch.start and not signals.has_news:
            return start
        signals = self._told_of_none(signals)
        interval = self._options.heartbeat_interval
        heartbeat = latest_heartbeat(self._offsets.read_heartbeat(start), batch.end, interval)
        return self._offsets.write(batch.end, batch.quiet_until, heartbeat, signals)

    def commit(self, end: dict[str, Any]) -> None:
        """Remove the files of signals that a committed batch has taken."""
        if self._desk is not None:
            with told_briefly():
                self._desk.committed(self._offsets.read_signals(end))

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
            return [TaskPartition(task) for task in self._tasks(start, end)]

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Task]:
        if start == end:
            return []
        plan = self._offsets.read_snapshot(end)
        if plan is not None:
            return snapshot_tasks(plan, self._options)
        batch = PlannedBatch(
            self._offsets.read(start),
            self._offsets.read(end),
            quiet_until=self._offsets.read_quiet(end),
        )
        read_heartbeat = self._offsets.read_heartbeat
        signals = self._offsets.read_signals(end)
        return [
            *self._planning().tasks(batch),
            *signal_tasks(signals, batch.start, self._options),
            *heartbeats(read_heartbeat(start), read_heartbeat(end)),
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events that one task reads, as Arrow batches. Raises StreamError."""
        with told_briefly():
            yield from read_task(cast("TaskPartition", partition).value, self._options)

    def stop(self) -> None:
        """Kill the driver's cursor and close its connections."""
        if self._planner is not None:
            self._planner.close()
        if self._desk is not None:
            self._desk.close()
        if self._inbox is not None:
            self._inbox.close()
        if self._client is not None:
            self._client.close()
        self._planner = self._inbox = self._client = self._snapshots = self._desk = None

    def _begin_snapshot(
        self, start: dict[str, Any], starts: SnapshotStarts, signals: SignalState
    ) -> dict[str, Any]:
        """The offset with which a snapshot begins; `start` until the delay before it is over."""
        if not starts.may_begin(waits=self._ends_at_present):
            return start
        self._planning().close()
        assert self._client is not None
        client, planner = self._client, self._snapshot()
        plan = client.patiently(lambda: planner.begin(client.mark()))
        self._skips_snapshot = False
        signals = signals.notified(notifications.started(plan, time.time()))
        return self._offsets.write_snapshot(plan, signals)

    def _told_of_none(self, signals: SignalState) -> SignalState:
        """The signals with a notification, in its first batch, of a start without a snapshot."""
        if not self._skips_snapshot:
            return signals
        self._skips_snapshot = False
        return signals.notified(notifications.skipped(time.time()))

    def _signal_desk(self) -> SignalDesk | None:
        """Takes signals; None where the options name no place for them."""
        if self._desk is None and self._options.signals.are_read:
            assert self._client is not None
            self._desk = SignalDesk(self._client, self._options)
        return self._desk

    def _next_of_snapshot(
        self, plan: SnapshotPlan, max_rows: int | None, signals: SignalState
    ) -> dict[str, Any]:
        assert self._client is not None
        planner = self._snapshot()
        following = self._client.patiently(lambda: planner.next_batch(plan, max_rows))
        self._skips_snapshot = False
        for each in notifications.advanced(following, time.time()):
            signals = signals.notified(each)
        return self._offsets.write_snapshot(following, signals)

    def _snapshot(self) -> SnapshotPlanner:
        if self._snapshots is None:
            assert self._client is not None
            self._snapshots = snapshot_planner(self._client, self._options)
        return self._snapshots

    def _planning(self) -> BatchPlanner:
        if self._planner is None:
            self._client = client = RouterClient(self._options, guarded=True)
            client.require_reachable()
            self._inbox = ReportInbox(client.address)
            self._planner = planner_for(client, self._options, self._inbox, loaded=self._loaded)
        return self._planner

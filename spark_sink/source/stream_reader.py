"""The stream reader: plans micro-batches on Spark's driver, and reads them in tasks.

It only translates between Spark's interface and the planners and readers, which do not depend on
Spark (docs/design.md#feed-and-spark).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
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

from spark_sink.batches.batch_planner import BatchPlanner
from spark_sink.batches.planned_batch import PlannedBatch
from spark_sink.batches.read_reports import ReportInbox
from spark_sink.errors import HistoryLostError, without_traceback
from spark_sink.events.heartbeats import heartbeats, latest_heartbeat
from spark_sink.events.positions import AtTime, FromNow, Position, Token, after
from spark_sink.options.stream_options import StreamOptions
from spark_sink.signals import notifications
from spark_sink.signals.processor import SignalProcessor
from spark_sink.signals.state import SignalState
from spark_sink.snapshot.decision import SnapshotDecision
from spark_sink.snapshot.plan import SnapshotPlan
from spark_sink.snapshot.planner import SnapshotPlanner
from spark_sink.source.offsets import Offsets
from spark_sink.source.tasks import (
    Task,
    TaskPartition,
    planner_for,
    read_task,
    signal_tasks,
    snapshot_planner,
    snapshot_tasks,
)
from spark_sink.stream.router_client import RouterClient


class MergerouterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, reads them in tasks.

    Spark sends copies of it to the tasks: the connection is made at first use and never copied.
    """

    changes_scope = False
    """Whether the options may have another scope than the checkpoint; `gained` is read then."""

    def __init__(self, options: StreamOptions, loaded: float) -> None:
        self.options = options
        """What the query was started with."""
        self._offsets = Offsets(options.scope)
        self._loaded = loaded
        self._client: RouterClient | None = None
        self._inbox: ReportInbox | None = None
        self._planner: BatchPlanner | None = None
        self._snapshots: SnapshotPlanner | None = None
        self._decision: SnapshotDecision | None = None
        self._signals: SignalProcessor | None = None
        self._ends_at_present = False
        self._skips_snapshot = True  # until a snapshot begins, or a notification says so

    def __getstate__(self) -> dict[str, Any]:
        connected = ("_client", "_inbox", "_planner", "_snapshots", "_decision", "_signals")
        return {**self.__dict__, **dict.fromkeys(connected)}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint begins.

        Spark asks again if it is restarted before its first batch is committed, so the answer must
        depend on the options only: the first, empty batch fixes "now".
        """
        return self._offsets.write(self.options.start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch: about maxEventsPerTrigger events."""
        return ReadMaxRows(self.options.max_events_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the present, before which later batches end. Raises StreamError."""
        with without_traceback():
            self._planning().stop_at_present()
        self._ends_at_present = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the micro-batch after `start` ends. Raises StreamError."""
        if isinstance(limit, ReadMaxRows):
            max_events: int | None = limit.max_rows
        elif isinstance(limit, ReadAllAvailable):
            max_events = None
        else:
            raise TypeError(f"an unknown read limit: {limit}")
        with without_traceback():
            return self._latest(start, max_events)

    def _latest(self, start: dict[str, Any], max_events: int | None) -> dict[str, Any]:
        written = self._offsets.of(start) if self.changes_scope else self._offsets
        self._offsets = written
        position = written.read(start)
        plan = written.read_snapshot(start)
        signals = self._offsets.read_signals(start).without_batch()
        if self._decision is None:
            self._decision = SnapshotDecision(self.options.snapshot, position, plan)
        decision = self._decision
        planner = self._planning()
        if plan is not None and not plan.ended:
            return self._next_of_snapshot(plan, max_events, signals)
        self._offsets = replace(written, scope=self.options.scope)
        if decision.is_due(position):
            return self._begin_snapshot(start, decision, signals)
        if not decision.policy.streams:
            return start
        processor = self._signal_processor()
        try:
            sought = written.read_sought(start)
            if self._offsets != written or sought is not None:
                return self._change_scope(start, written, position, signals)
            if processor is not None:
                signals = processor.require(signals, self.unread(start))
                signals = processor.receive(signals, position)
            if processor is not None and signals.blocks_stream:
                planner.close()
                batch = PlannedBatch(position, position)
            else:
                batch = planner.next_batch(position, max_events)
        except HistoryLostError:
            if not decision.policy.if_history_is_lost:
                raise
            return self._begin_snapshot(start, decision, replace(signals, position=None))
        if processor is not None:
            signals = processor.advance(signals, batch.end, max_events)
        if batch.end == batch.start and not signals.has_output:
            return start
        signals = self._notify_skipped(signals)
        interval = self.options.heartbeat_interval
        heartbeat = latest_heartbeat(self._offsets.read_heartbeat(start), batch.end, interval)
        return self._offsets.write(batch.end, batch.idle_until, heartbeat, signals)

    def unread(self, start: Mapping[str, Any]) -> Mapping[tuple[str, str], str]:
        """Return the collections, by database and name, that the sink lacks, and since which token.

        `start` is the offset at which its last batch ends.
        """
        return {}

    def _change_scope(
        self, start: dict[str, Any], written: Offsets, position: Position, signals: SignalState
    ) -> dict[str, Any]:
        """Return the offset of a batch without events, after which the scope is the options'.

        Before it, a batch of the old scope has the rest of a cluster time. After a gap, all
        collections are gained.
        """
        heartbeat = written.read_heartbeat(start)
        sought = written.read_sought(start)
        if isinstance(position, FromNow):
            return self._offsets.write(position)
        if isinstance(position, Token):
            end = after(position.cluster_time)
            self._planning().require_history(AtTime(position.cluster_time))
            return written.write(end, heartbeat=heartbeat, signals=signals)
        if sought is not None:
            signals = signals.notified(notifications.sought(sought, position, time.time()))
        gained: list[tuple[str, str]] = []
        if self.options.snapshot.reads_documents:
            assert self._client is not None
            found = self._client.with_retries(self._snapshot().places) | self.places()
            before = None if sought is not None else written.scope
            accepts = self.options.scope.accepts
            gained = sorted(
                each
                for each in found
                if accepts(*each) and (before is None or not before.accepts(*each))
            )
        return self._offsets.write_gain(position, gained, heartbeat, signals)

    def places(self) -> set[tuple[str, str]]:
        """Return the collections, by database and name, of which the sink has documents."""
        return set()

    def commit(self, end: dict[str, Any]) -> None:
        """Remove the files of signals that a committed batch has processed."""
        if self._signals is not None:
            with without_traceback():
                self._signals.committed(self._offsets.read_signals(end))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the newest cluster time, for the lag; None before the first batch."""
        if self._client is None:
            return None
        try:
            return self._offsets.write(AtTime(self._client.clocks().cluster_time))
        except PyMongoError:
            return None  # metrics are optional

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what the tasks of a micro-batch read. Raises StreamError."""
        with without_traceback():
            scope = self._offsets.of(end).scope
            return [TaskPartition(task, scope) for task in self._tasks(start, end)]

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Task]:
        offsets = self._offsets.of(end)
        if start == end or offsets.read_sought(end) is not None:
            return []
        plan = self._offsets.read_snapshot(end)
        if plan is not None:
            return snapshot_tasks(plan, self.options)
        batch = PlannedBatch(
            self._offsets.of(start).read(start),
            offsets.read(end),
            idle_until=self._offsets.read_idle_until(end),
        )
        read_heartbeat = self._offsets.read_heartbeat
        signals = self._offsets.read_signals(end)
        return [
            *self._planning().tasks(batch),
            *signal_tasks(signals, batch.start, self.options),
            *heartbeats(read_heartbeat(start), read_heartbeat(end)),
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the events that one task reads, as Arrow batches. Raises StreamError."""
        with without_traceback():
            yield from self.rows(cast("TaskPartition", partition))

    def rows(self, partition: TaskPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task, in the scope of its batch. Raises StreamError."""
        scope = partition.scope or self.options.scope
        return read_task(partition.value, replace(self.options, scope=scope))

    def stop(self) -> None:
        """Kill the driver's cursor and close its connections."""
        if self._planner is not None:
            self._planner.close()
        if self._signals is not None:
            self._signals.close()
        if self._inbox is not None:
            self._inbox.close()
        if self._client is not None:
            self._client.close()
        self._planner = self._inbox = self._client = self._snapshots = self._signals = None

    def _begin_snapshot(
        self, start: dict[str, Any], decision: SnapshotDecision, signals: SignalState
    ) -> dict[str, Any]:
        """Return the offset with which a snapshot begins; `start` until its delay is over."""
        if not decision.wait_for_delay(block=self._ends_at_present):
            return start
        self._planning().close()
        assert self._client is not None
        client, planner = self._client, self._snapshot()
        plan = client.with_retries(lambda: planner.begin(client.snapshot_time()))
        if not isinstance(self._offsets.of(start).read(start), FromNow):
            self._offsets = replace(self._offsets, since=plan.handover.time)
        self._skips_snapshot = False
        signals = signals.notified(notifications.started(plan, time.time()))
        return self._offsets.write_snapshot(plan, signals)

    def _notify_skipped(self, signals: SignalState) -> SignalState:
        """Return the signals with a notification, once, of a start without a snapshot."""
        if not self._skips_snapshot:
            return signals
        self._skips_snapshot = False
        return signals.notified(notifications.skipped(time.time()))

    def _signal_processor(self) -> SignalProcessor | None:
        """Return the processor of signals; None if the options name no channel."""
        if self._signals is None and self.options.signals.are_read:
            assert self._client is not None
            self._signals = SignalProcessor(self._client, self.options)
        return self._signals

    def _next_of_snapshot(
        self, plan: SnapshotPlan, max_rows: int | None, signals: SignalState
    ) -> dict[str, Any]:
        assert self._client is not None
        planner = self._snapshot()
        following = self._client.with_retries(lambda: planner.next_batch(plan, max_rows))
        self._skips_snapshot = False
        for each in notifications.advanced(following, time.time()):
            signals = signals.notified(each)
        return self._offsets.write_snapshot(following, signals)

    def _snapshot(self) -> SnapshotPlanner:
        if self._snapshots is None:
            assert self._client is not None
            self._snapshots = snapshot_planner(self._client, self.options)
        return self._snapshots

    def _planning(self) -> BatchPlanner:
        if self._planner is None:
            self._client = client = RouterClient(self.options, guarded=True)
            client.require_reachable()
            self._inbox = ReportInbox(client.address)
            self._planner = planner_for(client, self.options, self._inbox, loaded=self._loaded)
        return self._planner

"""The stream reader: plans micro-batches on Spark's driver, and reads them in tasks.

It only translates between Spark's interface and the planners and readers, which do not depend on
Spark (docs/spark-rationale.md).
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

from spark_sink.batches.batch_planner import BatchPlanner, PlannedBatch
from spark_sink.batches.event_rate import ReportInbox
from spark_sink.errors import HistoryLostError, without_traceback
from spark_sink.events.heartbeats import heartbeats, latest_heartbeat
from spark_sink.events.positions import AtTime, FromNow, Position, Token, after, time_of
from spark_sink.options.snapshot_options import QueryStart, SnapshotPolicy
from spark_sink.options.stream_options import StreamOptions
from spark_sink.signals.query_snapshots import REFUSAL, QuerySnapshots, SignalProcessor
from spark_sink.signals.state import SignalState
from spark_sink.snapshot.plan import LostDocument
from spark_sink.source.offsets import Offset
from spark_sink.source.tasks import (
    Task,
    TaskPartition,
    read_task,
    snapshot_planner,
    snapshot_tasks,
)
from spark_sink.stream.router_client import RouterClient

_OUTLIVED = (
    "history lost: the snapshot took longer than the shards' oplogs hold events. Make the oplogs "
    "larger, and start again with onHistoryLost=snapshot: that reads the collections anew. Or set "
    "a job to the present with job seek: it reads them beside the stream, however long that takes"
)


# Seconds that one call waits for the end of the delay: Spark stops a query between two calls.
_POLL_SECONDS = 0.5


class _Planners:
    """The connection of the process that plans batches, and what plans through it.

    Raises StreamError if the server cannot be reached, and OptionError.
    """

    def __init__(self, options: StreamOptions, loaded: float) -> None:
        self.client = client = RouterClient(options, guarded=True)
        try:
            client.require_reachable()
            self.inbox = ReportInbox(client.address)
            self.batches = BatchPlanner(client, options, self.inbox, loaded=loaded)
            self.collections = snapshot_planner(client, options)
            refusal = REFUSAL if options.lacks_snapshot_filters else None
            self.snapshots = QuerySnapshots(self.collections, options.snapshot.accepts, refusal)
            self.signals = SignalProcessor(client, options, self.snapshots)
        except BaseException:
            client.close()
            raise

    def advanced(self, state: SignalState, end: Position) -> SignalState:
        """Return the state with what a batch reads of a snapshot, whose events end at `end`."""
        if state.running is None:
            return state
        streamed = time_of(end)

        def advanced() -> SignalState:
            newest = self.client.clocks().cluster_time
            reached = newest if streamed is None else max(newest, streamed)
            return self.snapshots.advance(state, reached)

        return self.client.with_retries(advanced)

    def close(self) -> None:
        """Kill the cursors and close the connections."""
        self.batches.close()
        self.signals.close()
        self.inbox.close()
        self.client.close()


class MergerouterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, reads them in tasks.

    Spark sends copies of it to the tasks: the connection is made at first use and never copied.
    """

    changes_scope = False
    """Whether the options may have another scope than the checkpoint; `gained` is read then."""

    def __init__(self, options: StreamOptions, loaded: float) -> None:
        self.options = options
        """What the query was started with."""
        self._loaded = loaded
        self._connected: _Planners | None = None
        self._policy: SnapshotPolicy | None = None  # of this start
        self._is_due = False  # whether a snapshot is to begin, whatever the position
        self._earliest = 0.0  # the time before which no snapshot begins
        self._ends_at_present = False
        self._is_at_end = False  # later signals wait for the next start
        self._has_read_snapshot = False  # since this start
        self._has_reported = False  # whether this start has reported that it reads no snapshot

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connected": None, "_policy": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint begins.

        Spark asks again if it is restarted before its first batch is committed, so the answer must
        depend on the options only: the first, empty batch fixes "now".
        """
        return Offset(self.options.start, self.options.scope).write()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch: about maxEventsPerTrigger events."""
        return ReadMaxRows(self.options.max_events_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the present, before which later batches end. Raises StreamError."""
        with without_traceback():
            self._planners.batches.stop_at_present()
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
            before, scope = Offset.read(start), self.options.scope
            if not self.changes_scope:
                before.require_scope(scope)
            latest = self._latest(replace(before, scope=before.scope or scope), max_events)
            return start if latest is None else latest.write()

    def _latest(self, start: Offset, max_events: int | None) -> Offset | None:
        """Return the end of the batch after `start`; None while there is nothing."""
        signals, planning = self._kept(start.signals), self._planners
        position, is_in_snapshot = start.position, signals.initial is not None
        policy = self._policy
        if policy is None:
            asked = QueryStart(time_of(position), is_in_snapshot)
            self._policy = policy = self.options.snapshot.policy_for(asked)
            self._is_due = policy.at_every_start and not is_in_snapshot
            self._earliest = time.monotonic() + self.options.snapshot.delay
        if is_in_snapshot:
            self._has_read_snapshot = True
            return self._moved(start, PlannedBatch(position, position, 0), signals)
        begins = policy.at_first if isinstance(position, FromNow) else self._is_due
        if begins:
            return self._begin_snapshot(start, signals)
        if not policy.streams:
            return None
        try:
            signals = planning.snapshots.require(signals, *self.unread(start))
            if start.scope != self.options.scope or start.sought is not None:
                return self._change_scope(start, signals)
            if not self._is_at_end:
                signals = planning.signals.receive(signals, position)
            if signals.blocks_stream:
                planning.batches.close()
                batch = PlannedBatch(position, position, 0)
            else:
                advances = signals.asks_present
                batch = planning.batches.next_batch(position, max_events, advances=advances)
                is_empty = batch.end == batch.start and not planning.signals.has_more
                self._is_at_end = self._ends_at_present and is_empty
        except HistoryLostError:
            ended = start.signals.ended
            if ended is not None and ended.initial and self._has_read_snapshot:
                raise HistoryLostError(_OUTLIVED) from None
            if not policy.if_history_is_lost:
                raise
            return self._begin_snapshot(start, replace(signals, position=None))
        return self._moved(start, batch, signals)

    def _moved(self, start: Offset, batch: PlannedBatch, signals: SignalState) -> Offset | None:
        """Return the end of a batch, with what it reads of a snapshot; None if it is empty."""
        signals = self._planners.advanced(signals, batch.end)
        if batch.end == batch.start and not signals.has_output:
            return None
        if not (self._has_read_snapshot or self._has_reported):
            self._has_reported = True
            signals = self._planners.snapshots.skipped(signals)
        heartbeat = latest_heartbeat(start.heartbeat, batch.end, self.options.heartbeat_interval)
        return start.moved(
            batch.end,
            events=batch.events,
            quiet_until=batch.quiet_until,
            heartbeat=heartbeat,
            signals=signals,
        )

    def _kept(self, signals: SignalState) -> SignalState:
        """Return the state without the batch's part, and without a position that is not used."""
        if self.options.signal_collection is None:  # one that is added later is read from then on
            signals = replace(signals, position=None)
        return signals.without_batch()

    def unread(self, start: Offset) -> tuple[Mapping[tuple[str, str], str], Sequence[LostDocument]]:
        """Return the collections, by database and name, that the sink lacks, each with a token.

        The sink lacks documents from that token on. Also return documents of other collections
        that it lacks. `start` is where its last batch ends.
        """
        return {}, ()

    def _change_scope(self, start: Offset, signals: SignalState) -> Offset:
        """Return the end of a batch without events, after which the scope is the options'.

        A batch of the old scope first reads the cluster time to its end. After a gap, the sink
        lacks all collections.
        """
        position, scope = start.position, self.options.scope
        if isinstance(position, FromNow):
            return Offset(position, scope, start.since)
        kept: dict[str, Any] = {"heartbeat": start.heartbeat}
        if isinstance(position, Token):
            self._planners.batches.require_history(AtTime(position.cluster_time))
            return start.moved(after(position.cluster_time), signals=signals, **kept)
        if start.sought is not None:
            signals = self._planners.snapshots.left_out(signals, start.sought, position)
        gained: list[tuple[str, str]] = []
        if self.options.snapshot.policy.reads_documents:
            planning, wanted = self._planners, self.options.snapshot.accepts
            names = planning.client.with_retries(lambda: planning.collections.names(wanted))
            found = {*names, *self.namespaces()}
            before = None if start.sought is not None else start.scope
            gained = sorted(
                each
                for each in found
                if scope.accepts(*each) and (before is None or not before.accepts(*each))
            )
        return Offset(position, scope, position.time, signals=signals, gained=tuple(gained), **kept)

    def namespaces(self) -> set[tuple[str, str]]:
        """Return the collections, by database and name, of which the sink has documents."""
        return set()

    def commit(self, end: dict[str, Any]) -> None:
        """Remove the files of signals that a committed batch has processed."""
        if self._connected is not None:
            with without_traceback():
                self._connected.signals.committed(Offset.read(end).signals)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the newest cluster time, for the lag; None before the first batch.

        Its `quiet_until` is the time before which no event follows the batch, if none is known.
        """
        if self._connected is None:
            return None
        quiet = self._connected.batches.quiet_until
        try:
            newest = AtTime(self._connected.client.clocks().cluster_time)
            return Offset(newest, self.options.scope, quiet_until=quiet).write()
        except PyMongoError:
            return None  # metrics are optional

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what the tasks of a micro-batch read. Raises StreamError."""
        with without_traceback():
            scope = Offset.read(end).scope
            return [TaskPartition(task, scope) for task in self._tasks(start, end)]

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Task]:
        before, offset = Offset.read(start), Offset.read(end)
        if start == end:
            return []
        batches = self._planners.batches
        return [*batches.tasks(offset.batch_after(before)), *self.added_tasks(before, offset)]

    def added_tasks(self, before: Offset, offset: Offset) -> list[Task]:
        """Return the tasks between two offsets that do not read the stream. Raises StreamError."""
        tasks: list[Task] = [*heartbeats(before.heartbeat, offset.heartbeat)]
        if offset.signals.reading is not None or offset.signals.ended is not None:
            planning, position, options = self._planners, before.position, self.options
            planner, present = planning.collections, planning.client.present
            tasks += planning.client.with_retries(
                lambda: snapshot_tasks(offset.signals, position, options, planner, present)
            )
        return tasks

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
        if self._connected is not None:
            self._connected.close()
        self._connected = None

    def _begin_snapshot(self, start: Offset, signals: SignalState) -> Offset | None:
        """Return the offset with which a snapshot begins; None until its delay is over."""
        remaining = self._earliest - time.monotonic()
        if remaining > 0:
            most = remaining if self._ends_at_present else _POLL_SECONDS
            time.sleep(min(remaining, most))
            if remaining > most:
                return None
        self._is_due = False
        planning = self._planners
        planning.batches.close()
        signals = planning.client.with_retries(
            lambda: planning.snapshots.begin(signals, planning.client.snapshot_time())
        )
        plan = signals.initial
        assert plan is not None
        since = start.since if isinstance(start.position, FromNow) else plan.handover.time
        self._has_read_snapshot = True
        return Offset(plan.handover, self.options.scope, since, events=0, signals=signals)

    @property
    def _planners(self) -> _Planners:
        if self._connected is None:
            self._connected = _Planners(self.options, self._loaded)
        return self._connected

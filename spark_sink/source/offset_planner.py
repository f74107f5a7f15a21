"""Decides what the next micro-batch is: events, a part of a snapshot, or a change of the scope.

It runs on the driver, in the process that plans batches, and knows nothing of Spark. The batch
planner finds where a batch of events ends; a snapshot and signals advance beside it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from spark_sink.batches.event_planner import EventPlanner, EventRange
from spark_sink.batches.event_rate import ReportInbox
from spark_sink.errors import HistoryLostError
from spark_sink.events.heartbeats import latest_heartbeat
from spark_sink.events.positions import AtTime, FromNow, Position, Token, after, time_of
from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import QueryStart, SnapshotPolicy
from spark_sink.options.stream_options import StreamOptions
from spark_sink.signals.channels import SignalReceiver
from spark_sink.signals.requests import SnapshotRequest
from spark_sink.signals.snapshot_scheduler import REFUSAL, SnapshotScheduler
from spark_sink.signals.state import SnapshotQueue
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.snapshot.unread import CollectionTokens, LostDocument, ScopeGain
from spark_sink.source.offsets import Offset
from spark_sink.source.tasks import Task, chunk_planner, snapshot_tasks
from spark_sink.stream.router_client import RouterClient

_OUTLIVED = (
    "history lost: the snapshot took longer than the shards' oplogs hold events. Make the oplogs "
    "larger, and start again with onHistoryLost=snapshot: that reads the collections anew. Or set "
    "a job to the present with job seek: it reads them beside the stream, however long that takes"
)
# Seconds that one call waits for the end of the delay: Spark stops a query between two calls.
_POLL_SECONDS = 0.5


class QueryConnection:
    """A query's connection on the driver, and what plans its batches through it.

    Raises StreamError if the server cannot be reached, and OptionError.
    """

    def __init__(self, options: StreamOptions, loaded: float) -> None:
        with ExitStack() as opened:
            client = RouterClient(options, guarded=True)
            self.client = opened.enter_context(closing(client))
            client.require_reachable()
            self.inbox = opened.enter_context(closing(ReportInbox(client.address)))
            planner = EventPlanner(client, options, self.inbox, loaded=loaded)
            self.event_planner = opened.enter_context(closing(planner))
            self.chunk_planner = chunk_planner(client, options)
            refusal = REFUSAL if options.lacks_snapshot_filters else None
            self.scheduler = SnapshotScheduler(
                self.chunk_planner, options.snapshot.collections, refusal
            )
            receiver = SignalReceiver(client, options, self.scheduler)
            self.signal_receiver = opened.enter_context(closing(receiver))
            self._opened = opened.pop_all()

    def advanced(self, state: SnapshotQueue, end: Position) -> SnapshotQueue:
        """Return the state with what a batch reads of a snapshot, whose events end at `end`.

        While more signals wait, it reads only of the initial snapshot: one of them may stop chunks
        that a repeated batch has left out already.
        """
        running = state.running
        if running is None or (self.signal_receiver.has_more and running.kind != "initial"):
            return state

        def advanced() -> SnapshotQueue:
            reached = filter(None, (self.client.clocks().cluster_time, time_of(end)))
            return self.scheduler.advance(state, max(reached))

        return self.client.with_retries(advanced)

    def close(self) -> None:
        """Kill the cursors and close the connections, each also if another one fails."""
        self._opened.close()


class Output:
    """What the rows are written to. That of a query is not known: nothing is read for it."""

    follows_scope = False
    """Whether the options may have another scope than the checkpoint; what it gains is read."""

    def unread(self, start: Offset) -> tuple[CollectionTokens, Sequence[LostDocument]]:
        """Return the collections that the output lacks, each with a token.

        The output lacks documents from that token on. Also return documents of other collections
        that it lacks. `start` is where its last batch ends.
        """
        return {}, ()

    def namespaces(self) -> set[tuple[str, str]]:
        """Return the collections, by database and name, of which the output has documents."""
        return set()


class _InitialSnapshot(Enum):
    """The initial snapshot, in one start of the query."""

    DUE = "it begins with the next batch, whatever the position"
    NONE = "it does not begin, unless there is no position or no history"
    SKIPPED = "as NONE, and a notification says so"
    READ = "it has begun, or goes on"


class OffsetPlanner:
    """Plans the offsets of one start of a query. All methods may raise StreamError.

    Args:
        options: what the query was started with.
        connection: plans the parts of a batch; `close` closes it.
        output: what the rows are written to.
    """

    def __init__(self, options: StreamOptions, connection: QueryConnection, output: Output) -> None:
        self._connection = connection
        self._options = options
        self._output = output
        self._policy: SnapshotPolicy | None = None
        self._snapshot = _InitialSnapshot.NONE
        self._earliest = 0.0  # the time before which no snapshot begins
        self._is_at_end = False  # later signals wait for the next start

    def stop_at_present(self) -> None:
        """Let later batches end before the present."""
        self._connection.event_planner.stop_at_present()

    def committed(self, end: Offset) -> None:
        """Remove the files of signals that a committed batch has processed."""
        self._connection.signal_receiver.committed(end.snapshots)

    def close(self) -> None:
        """Kill the cursors and close the connections."""
        self._connection.close()

    def plan(self, start: Offset, max_events: int | None) -> Offset | None:
        """Return the end of the batch after `start`; None while there is nothing.

        The batch has about `max_events` events at most; None is no limit.
        """
        if not self._output.follows_scope:
            start.require_scope(self._options.scope)
        start = replace(start, scope=start.scope or self._options.scope)
        signals, position = start.snapshots.without_batch(), start.position
        is_in_snapshot = signals.initial_plan is not None
        policy = self._policy or self._begun(QueryStart(time_of(position), is_in_snapshot))
        if is_in_snapshot:
            self._snapshot = _InitialSnapshot.READ
        else:
            lacking = self._output.unread(start)
            signals = self._connection.scheduler.require(signals, *lacking)
            is_due = self._snapshot is _InitialSnapshot.DUE
            if policy.at_first if isinstance(position, FromNow) else is_due:
                return self._begin_snapshot(start, signals)
            if not policy.streams:
                return None
        try:
            if start.scope != self._options.scope or start.sought is not None:
                return self._change_scope(start, signals)
            if not (is_in_snapshot or self._is_at_end):
                signals = self._connection.signal_receiver.receive(signals, position)
            batch = self._next_batch(position, signals, max_events)
        except HistoryLostError:
            ended = start.snapshots.ending
            is_read = self._snapshot is _InitialSnapshot.READ
            if is_read and ended is not None and ended.kind == "initial":
                raise HistoryLostError(_OUTLIVED) from None
            if not policy.if_history_is_lost:
                raise
            return self._begin_snapshot(start, replace(signals, position=None))
        return self._moved(start, batch, signals)

    def _next_batch(
        self, position: Position, signals: SnapshotQueue, max_events: int | None
    ) -> EventRange:
        """Return the events of the batch after a position: none beside a blocking snapshot."""
        connection = self._connection
        if signals.blocks_stream:
            connection.event_planner.close()
            return EventRange(position, position, 0)
        advances = signals.asks_present
        batch = connection.event_planner.next_batch(position, max_events, advances=advances)
        is_empty = batch.end == batch.start and not connection.signal_receiver.has_more
        self._is_at_end = connection.event_planner.ends_at_present and is_empty
        return batch

    def _begun(self, start: QueryStart) -> SnapshotPolicy:
        """Return the policy of this start of the query."""
        self._policy = policy = self._options.snapshot.policy_for(start)
        self._snapshot = _InitialSnapshot.DUE if policy.at_every_start else _InitialSnapshot.NONE
        self._earliest = time.monotonic() + self._options.snapshot.delay
        return policy

    def event_tasks(self, before: Offset, end: Offset) -> Sequence[Task]:
        """Return the tasks that read the events of the batch between two offsets."""
        return self._connection.event_planner.tasks(end.events_after(before))

    def snapshot_tasks(self, before: Offset, end: Offset) -> Sequence[Task]:
        """Return the tasks of this batch that read a snapshot, or give its end."""
        client, planner = self._connection.client, self._connection.chunk_planner
        if end.scope not in (None, self._options.scope):  # a repeated batch keeps its scope
            planner = chunk_planner(client, replace(self._options, scope=end.scope))
        state = end.snapshots
        if state.reading is not None and self._policy is None:  # an earlier start planned it
            state = self._without_stopped(end, planner)
        planned = partial(snapshot_tasks, state, before.position, self._options)
        return client.with_retries(lambda: planned(planner, client.present))

    def _without_stopped(self, offset: Offset, planner: ChunkPlanner) -> SnapshotQueue:
        """Return the state of a repeated batch, without the chunks that a waiting signal stops.

        Spark repeats a batch that has failed before it plans the next one, which processes the
        signal. A snapshot with a filter that fails for a document can be stopped so.
        """
        client, signals = self._connection.client, offset.snapshots
        receiver = SignalReceiver(client, self._options, SnapshotScheduler(planner))
        with closing(receiver):
            later = receiver.receive(signals, offset.position)
            while receiver.has_more:
                later = receiver.receive(later, offset.position)
        kept = [
            request
            for request in later.requests
            if signals.running and request.id == signals.running.id
        ]
        return signals.with_request(kept[0]) if kept else replace(signals, reading=None)

    def newest(self) -> Offset:
        """Return an offset at the newest cluster time.

        Its `quiet_until` is the time before which no event follows the batch, if none is known.
        Raises PyMongoError.
        """
        newest = AtTime(self._connection.client.clocks().cluster_time)
        return Offset(
            newest, self._options.scope, quiet_until=self._connection.event_planner.quiet_until
        )

    def _moved(self, start: Offset, batch: EventRange, signals: SnapshotQueue) -> Offset | None:
        """Return the end of a batch, with what it reads of a snapshot; None if it is empty."""
        signals = self._connection.advanced(signals, batch.end)
        processed = signals.handled != start.snapshots.handled
        if batch.end == batch.start and not (signals.has_output or processed):
            return None
        if self._snapshot is _InitialSnapshot.NONE:
            self._snapshot = _InitialSnapshot.SKIPPED
            signals = self._connection.scheduler.skipped(signals)
        heartbeat = latest_heartbeat(start.heartbeat, batch.end, self._options.heartbeat_interval)
        return start.moved(
            batch.end,
            events=batch.events,
            quiet_until=batch.quiet_until,
            heartbeat=heartbeat,
            snapshots=signals,
        )

    def _change_scope(self, start: Offset, signals: SnapshotQueue) -> Offset:
        """Return the end of a batch without events, after which the scope is the options'.

        A batch of the old scope first reads the cluster time to its end. After a gap, the output
        lacks all collections.
        """
        position, scope = start.position, self._options.scope
        if isinstance(position, FromNow):
            return Offset(position, scope, start.since)
        kept: dict[str, Any] = {"heartbeat": start.heartbeat}
        if isinstance(position, Token):
            self._connection.event_planner.require_history(AtTime(position.cluster_time))
            return start.moved(after(position.cluster_time), snapshots=signals, **kept)
        if start.sought is not None:
            signals = self._connection.scheduler.left_out(signals, start.sought, position)
        if self._options.snapshot.policy.reads_documents:
            before = None if start.sought is not None else start.scope
            signals = self._with_gained(signals, position.time, before)
        return Offset(position, scope, position.time, snapshots=signals, **kept)

    def _with_gained(
        self, signals: SnapshotQueue, time: Timestamp, before: Scope | None
    ) -> SnapshotQueue:
        """Return the state with a request for the collections that the scope gains, if any."""
        connection, wanted = self._connection, self._options.snapshot.accepts
        name = f"again-{time.time}-{time.inc}-{secrets.token_hex(4)}"  # a scope may gain twice then
        of_all = ScopeGain(name, high_water_mark(time), self._options.scope, before)
        names = {*connection.client.with_retries(lambda: connection.chunk_planner.names(wanted))}
        others = {name for name in self._output.namespaces() - names if of_all.accepts(*name)}
        if not others and not any(of_all.accepts(*name) for name in names):
            return signals
        patterns = self._options.snapshot.collections
        gained = replace(of_all, patterns=patterns, names=tuple(sorted(others)))
        return signals.with_request(SnapshotRequest(name, "incremental", gained))

    def _begin_snapshot(self, start: Offset, signals: SnapshotQueue) -> Offset | None:
        """Return the offset with which a snapshot begins; None until its delay is over."""
        remaining = self._earliest - time.monotonic()
        if remaining > 0:
            most = remaining if self._connection.event_planner.ends_at_present else _POLL_SECONDS
            time.sleep(min(remaining, most))
            if remaining > most:
                return None
        self._snapshot = _InitialSnapshot.READ
        connection = self._connection
        connection.event_planner.close()
        signals = connection.client.with_retries(
            lambda: connection.scheduler.begin(signals, connection.client.present())
        )
        plan = signals.initial_plan
        assert plan is not None
        since = start.since if isinstance(start.position, FromNow) else plan.handover.time
        return Offset(plan.handover, self._options.scope, since, events=0, snapshots=signals)

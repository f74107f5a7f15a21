"""Decides what the next micro-batch is: events, a part of a snapshot, or a change of the scope.

It runs on the driver, in the process that plans batches, and knows nothing of Spark. EventPlanner
finds where a batch of events ends; a snapshot and signals advance beside it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial

from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from spark_sink.errors import HistoryLostError
from spark_sink.events.heartbeats import latest_heartbeat
from spark_sink.events.positions import AtTime, EventRange, FromNow, Position, Token, after, time_of
from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import QueryStart, SnapshotPolicy
from spark_sink.options.stream_options import StreamOptions
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.snapshot.queue import SnapshotQueue, SnapshotRequest
from spark_sink.snapshot.scheduler import REFUSAL, SnapshotScheduler
from spark_sink.snapshot.selections import CollectionPatterns, ScopeGain
from spark_sink.snapshot.signal_channels import SignalReceiver
from spark_sink.snapshot.unread import CollectionTokens, LostDocument
from spark_sink.source.event_planner import EventPlanner
from spark_sink.source.offsets import Offset
from spark_sink.source.snapshot_tasks import tasks_of_queue
from spark_sink.source.task_reports import ReportInbox
from spark_sink.source.task_rows import Task
from spark_sink.stream.router_client import RouterClient

_OUTLIVED = (
    "history lost: the snapshot took longer than the shards' oplogs hold events. Make the oplogs "
    "larger, and start again with onHistoryLost=snapshot: that reads the collections anew. Or set "
    "a job to the present with job seek: it reads them beside the stream, however long that takes"
)
# Seconds that one call waits for the end of the delay: Spark stops a query between two calls.
_POLL_SECONDS = 0.5


class QueryOutput:
    """What the rows are written to. Of a query it is unknown, and nothing is read for it."""

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


class _Phase(Enum):
    """How far one start of the query is with the initial snapshot."""

    DUE = auto()
    """It begins with the next batch."""
    NOT_DUE = auto()
    """The mode does not request it at each start, and it has not begun."""
    SKIPPED = auto()
    """As NOT_DUE, and a notification says so."""
    BEGUN = auto()
    """This start has begun it, or has continued it."""


@dataclass(eq=False)
class BatchPlanner:
    """Plans the offsets of one start of a query. All methods may raise StreamError.

    Args:
        options: what the query was started with.
        output: what the rows are written to.
        client: the router's.
        event_planner: finds where the events of a batch end.
        chunk_planner: divides the collections of a snapshot.
        scheduler: decides which snapshot is read, and how far.
        signal_receiver: passes signals to the scheduler.
        resources: what `close` closes.
    """

    options: StreamOptions
    output: QueryOutput
    client: RouterClient
    event_planner: EventPlanner
    chunk_planner: ChunkPlanner
    scheduler: SnapshotScheduler
    signal_receiver: SignalReceiver
    resources: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self._policy: SnapshotPolicy | None = None  # chosen by the first batch
        self._phase = _Phase.NOT_DUE
        self._earliest = 0.0  # the time before which no snapshot begins
        self._is_at_end = False  # later signals wait for the next start
        self._first: Offset | None = None  # where the first batch starts outside of a snapshot

    @classmethod
    def connected(
        cls, options: StreamOptions, output: QueryOutput, started_at: float
    ) -> BatchPlanner:
        """Return the planner of a query that has started then, in seconds since 1970.

        Raises StreamError if the server cannot be reached, and OptionError.
        """
        with ExitStack() as opened:
            client = opened.enter_context(closing(RouterClient(options)))
            client.require_reachable()
            inbox = opened.enter_context(closing(ReportInbox(client.address)))
            planner = EventPlanner(client, options, inbox, started_at=started_at)
            events = opened.enter_context(closing(planner))
            chunks = ChunkPlanner(client.mongo, options.scope, options.snapshot)
            refusal = REFUSAL if options.lacks_snapshot_filters else None
            scheduler = SnapshotScheduler(chunks, options.snapshot.collections, refusal)
            receiver = SignalReceiver(client, options, scheduler)
            signals = opened.enter_context(closing(receiver))
            parts = client, events, chunks, scheduler, signals
            return cls(options, output, *parts, opened.pop_all())

    def plan(self, start: Offset, max_events: int | None) -> Offset | None:
        """Return the end of the batch after `start`; None while there is nothing.

        The batch has about `max_events` events at most; None is no limit. It begins an initial
        snapshot if one is due: at a query's beginning, or in the phase DUE. Else it changes the
        scope to that of the options, or ends a seek of a job; or else it has events, and chunks of
        a snapshot. If the oplogs have lost these events, a snapshot begins instead, or it is an
        error.
        """
        if not self.output.follows_scope:
            start.require_scope(self.options.scope)
        start = replace(start, scope=start.scope or self.options.scope)
        policy = self._policy or self._start_policy(QueryStart(start.time, start.is_in_snapshot))
        queue = self._with_required(start)
        if not start.is_in_snapshot:
            is_first = isinstance(start.position, FromNow)
            is_due = policy.at_first if is_first else self._phase is _Phase.DUE
            if is_due:
                return self._begin_snapshot(start, queue)
            if not policy.streams:
                return None
        try:
            if start.scope != self.options.scope or start.sought is not None:
                return self._change_scope(start, queue)
            if not (start.is_in_snapshot or self._is_at_end):
                queue = self.signal_receiver.receive(queue, start.position)
            events = self._next_events(start.position, queue, max_events)
        except HistoryLostError:
            just_read = start.snapshots.batch.ending
            if self._phase is _Phase.BEGUN and just_read and just_read.kind == "initial":
                raise HistoryLostError(_OUTLIVED) from None
            if not policy.if_history_is_lost:
                raise
            return self._begin_snapshot(start, replace(queue, signal_position=None))
        return self._moved(start, events, queue)

    def _start_policy(self, start: QueryStart) -> SnapshotPolicy:
        """Choose the policy of this start of the query, and return it."""
        self._policy = policy = self.options.snapshot.policy_for(start)
        self._phase = _Phase.DUE if policy.at_every_start else _Phase.NOT_DUE
        self._earliest = time.monotonic() + self.options.snapshot.delay
        return policy

    def _with_required(self, start: Offset) -> SnapshotQueue:
        """Return the queue after a batch, with a request for what the output lacks.

        An initial snapshot in progress reads that, too.
        """
        queue = start.snapshots.without_batch()
        if start.is_in_snapshot:
            return queue
        self._first = self._first or start
        if start == self._first:
            queue = queue.restarted()
        return queue.requiring(*self.output.unread(start))

    def _begin_snapshot(self, start: Offset, queue: SnapshotQueue) -> Offset | None:
        """Return the offset with which a snapshot begins; None until its delay is over."""
        remaining = self._earliest - time.monotonic()
        if remaining > 0:
            most = remaining if self.event_planner.ends_at_present else _POLL_SECONDS
            time.sleep(min(remaining, most))
            if remaining > most:
                return None
        self._phase = _Phase.BEGUN
        self.event_planner.close()
        queue = self.client.with_retries(lambda: self.scheduler.begin(queue, self.client.present()))
        plan = queue.initial_plan
        assert plan is not None
        since = start.since if isinstance(start.position, FromNow) else plan.handover.time
        return Offset(plan.handover, self.options.scope, since, events=0, snapshots=queue)

    def _change_scope(self, start: Offset, queue: SnapshotQueue) -> Offset:
        """Return the end of a batch without events, after which the scope is the options'.

        A batch of the old scope first reads the cluster time to its end. After a gap, the output
        lacks all collections.
        """
        position, scope = start.position, self.options.scope
        if isinstance(position, FromNow):
            return Offset(position, scope, start.since)
        if isinstance(position, Token):
            self.client.require_history(AtTime(position.cluster_time))
            end = after(position.cluster_time)
            return start.moved(end, heartbeat=start.heartbeat, snapshots=queue)
        if start.sought is not None:
            queue = self.scheduler.notified_left_out(queue, start.sought, position)
        if self.options.snapshot.policy.reads_documents:
            before = None if start.sought is not None else start.scope
            queue = self._with_gained(queue, position.time, before)
        moved = start.moved(position, heartbeat=start.heartbeat, snapshots=queue)
        return replace(moved, scope=scope, since=position.time)

    def _with_gained(
        self, queue: SnapshotQueue, at: Timestamp, before: Scope | None
    ) -> SnapshotQueue:
        """Return the queue with a request for the collections that the scope gains, if any."""
        client, planner = self.client, self.chunk_planner
        patterns = self.options.snapshot.collections
        name = f"again-{at.time}-{at.inc}-{secrets.token_hex(4)}"  # a scope may gain twice then
        of_all = ScopeGain(name, high_water_mark(at), self.options.scope, before)
        names = {*client.with_retries(lambda: planner.names(CollectionPatterns(patterns)))}
        others = {name for name in self.output.namespaces() - names if of_all.accepts(*name)}
        if not others and not any(of_all.accepts(*name) for name in names):
            return queue
        gained = replace(of_all, patterns=patterns, names=tuple(sorted(others)))
        return queue.with_request(SnapshotRequest(name, "incremental", gained))

    def _next_events(
        self, position: Position, queue: SnapshotQueue, max_events: int | None
    ) -> EventRange:
        """Return the events of the batch after a position: none beside a blocking snapshot."""
        planner, receiver = self.event_planner, self.signal_receiver
        if queue.running is not None and queue.running.blocks_stream:
            planner.close()
            return EventRange(position, position, 0)
        events = planner.next_batch(position, max_events, advances=queue.batch.has_output)
        is_empty = events.end == events.start and not receiver.has_more
        self._is_at_end = planner.ends_at_present and is_empty
        return events

    def _moved(self, start: Offset, events: EventRange, queue: SnapshotQueue) -> Offset | None:
        """Return the end of a batch, with what it reads of a snapshot; None if it is empty."""
        queue = self._advanced(queue, events.end)
        has_processed = queue.handled != start.snapshots.handled
        if events.end == events.start and not (queue.batch.has_output or has_processed):
            return None
        if start.is_in_snapshot:
            self._phase = _Phase.BEGUN
        elif self._phase is _Phase.NOT_DUE:
            self._phase = _Phase.SKIPPED
            queue = self.scheduler.skipped(queue)
        heartbeat = latest_heartbeat(start.heartbeat, events.end, self.options.heartbeat_interval)
        return start.moved(
            events.end,
            events=events.events,
            quiet_until=events.quiet_until,
            heartbeat=heartbeat,
            snapshots=queue,
        )

    def _advanced(self, queue: SnapshotQueue, end: Position) -> SnapshotQueue:
        """Return the queue with what a batch reads of a snapshot, whose events end at `end`.

        While more signals wait, it reads only of the initial snapshot: one of them may stop chunks
        that a repeated batch has left out already.
        """
        running, has_more = queue.running, self.signal_receiver.has_more
        if running is None or (has_more and running.kind != "initial"):
            return queue

        def advanced() -> SnapshotQueue:
            reached = filter(None, (self.client.clocks().cluster_time, time_of(end)))
            return self.scheduler.advance(queue, max(reached))

        return self.client.with_retries(advanced)

    def snapshot_tasks(self, before: Offset, end: Offset) -> Sequence[Task]:
        """Return the tasks of this batch that read a snapshot, or give its end."""
        client, planner = self.client, self.chunk_planner
        if end.scope not in (None, self.options.scope):  # a repeated batch keeps its scope
            planner = ChunkPlanner(client.mongo, end.scope, self.options.snapshot)
        queue = end.snapshots
        if queue.batch.reading is not None and self._policy is None:  # an earlier start planned it
            queue = self._without_stopped(end, planner)
        planned = partial(tasks_of_queue, queue, before.position, self.options)
        return client.with_retries(lambda: planned(planner, client.present))

    def _without_stopped(self, offset: Offset, planner: ChunkPlanner) -> SnapshotQueue:
        """Return the queue of a repeated batch, without the chunks that a waiting signal stops.

        Spark repeats a batch that has failed before it plans the next one, which processes the
        signal. A snapshot with a filter that fails for a document can be stopped so.
        """
        queue = offset.snapshots
        receiver = SignalReceiver(self.client, self.options, SnapshotScheduler(planner))
        with closing(receiver):
            later = receiver.receive(queue, offset.position)
            while receiver.has_more:
                later = receiver.receive(later, offset.position)
        running = queue.running
        rest = [each for each in later.requests if running and each.id == running.id]
        return queue.with_request(rest[0]) if rest else queue.adding(reading=None)

    def newest(self) -> Offset:
        """Return an offset at the newest cluster time.

        Its `quiet_until` is the event planner's `quiet_after`.
        Raises PyMongoError and StreamError.
        """
        newest = AtTime(self.client.clocks().cluster_time)
        return Offset(newest, self.options.scope, quiet_until=self.event_planner.quiet_after)

    def close(self) -> None:
        """Kill the cursors and close the connections, each also if another one fails."""
        self.resources.close()

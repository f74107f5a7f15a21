"""Decides, on Spark's driver, where the next micro-batch ends, and how its tasks share it.

A batch ends at a cluster time that all shards have passed, so that a tick's events, such as those
of a transaction on one shard, stay together. The planner watches a stream of tokens, the scout, and
reads at most a sample of each batch on it:

- A stream that pauses within the sample ends the batch where it pauses.
- A stream that does not pause has more events than the sample. The pace (spark_sink.pace) says at
  what time about `max_events` have come; a scout is opened there, and the batch ends at its first
  event, which the merge has let through because all shards have passed it. The next batch begins
  with what this scout has seen, without a sample of its own. Where no event follows, and the
  scout's high water mark shows that all shards have passed that time, the batch ends there.

So planning costs about the same for batches of all sizes. What a batch holds is settled by its two
ends alone, not by what the planner saw, so a batch that is read again after a crash has the same
content (docs/design.md#feed-and-spark).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from spark_sink.errors import StreamError
from spark_sink.event_stream import STALLED_AFTER, EventStream
from spark_sink.fragments import fragment_of
from spark_sink.pace import Pace
from spark_sink.patience import DEFAULT_PATIENCE, Patience
from spark_sink.planned_batch import Cluster, Limits, PlannedBatch
from spark_sink.positions import AtTime, FromNow, Position, Token, is_after, key_of, time_of
from spark_sink.read_reports import ReportInbox
from spark_sink.read_task import ReadTask, merged_tasks, shard_tasks

# Seconds that a call waits for a first event, and that it gathers events that keep coming.
FIRST_EVENT_WAIT = 0.5
GATHER_TIME = 0.25
# Events that a call reads at most to tell how many there are.
SAMPLE = 500
# A batch of no more events is read by one task from the merged stream, which costs less than
# starting a task and opening a stream for each shard.
_FEW = 5000
# Seconds in which an event must follow a supposed end, and how often an end is supposed. Where
# none is found so many events are counted at most.
_END_WAIT = 0.1
_MOST_ENDS = 2
_MOST_COUNTED = 20_000
# Events that are looked at behind such an end, which shows a change of pace in time.
_END_SAMPLE = 100
# Stretches of time that a batch is cut into at most.
_MOST_STRETCHES = 64
_STALLED = (
    f"the stream has not come to the present in {STALLED_AFTER:.0f} s: see which shard cannot be "
    "reached, and restart the query"
)


class BatchPlanner:
    """Plans micro-batches one after the other.

    cluster: the router; limits: sizes; inbox: where tasks report, None for none; patience: how long
    failures of its streams are tried again.
    """

    def __init__(
        self,
        cluster: Cluster,
        limits: Limits | None = None,
        inbox: ReportInbox | None = None,
        *,
        patience: Patience = DEFAULT_PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._limits = limits or Limits()
        self._inbox = inbox
        self._patience = patience
        self._clock = clock
        self._pace = Pace()
        self._scout: EventStream | None = None
        self._ahead: deque[Token] = deque()  # what the scout has read beyond the planned batch
        self._until: Timestamp | None = None
        self._plan: PlannedBatch | None = None
        self._batch = 0  # the number of the latest one,
        self._tasks = 0  # and of its tasks
        self._paused = False
        self._within_event = False  # the scout has read some fragments of an event, not yet all

    def stop_at_present(self) -> None:
        """From now on plan nothing that is written after this call. Raises StreamError."""
        self._until = self._cluster.present()

    def next_batch(self, start: Position, max_events: int | None) -> PlannedBatch:
        """The batch after `start`; one that ends at `start` when there is none.

        max_events: about the most events of the batch; None for all that are there now.
        Raises StreamError.
        """
        if self._inbox is not None:
            passages = self._inbox.read(self._batch)
            if len(passages) == self._tasks:  # a part of them would show too slow a pace
                end = None if self._plan is None else time_of(self._plan.end)
                self._pace.has_read(passages, end)
        self._batch += 1
        self._tasks = 0
        if isinstance(start, FromNow):
            self._plan = PlannedBatch(start, self._cluster.beginning(), 0)
        else:
            self._plan = self._planned(start, max_events)
        return self._plan

    def tasks(self, batch: PlannedBatch) -> list[ReadTask]:
        """What the tasks of a batch read. Raises StreamError if its end does not follow its start.

        batch: as planned, or only its ends, of a batch that was planned before a restart.
        """
        start, end = batch.start, batch.end
        if start == end or isinstance(start, FromNow) or batch.events == 0:
            return []
        if not is_after(end, start):
            raise StreamError(
                f"a batch cannot end at {end} when it starts after {start}: the checkpoint is "
                "damaged. Start with a new checkpointLocation"
            )
        if self._plan is not None and (self._plan.start, self._plan.end) == (start, end):
            batch = self._plan
        if batch.quiet_until is not None and is_after(AtTime(batch.quiet_until), start):
            start = AtTime(batch.quiet_until)
        shards = None
        few = batch.events is not None and batch.events <= _FEW
        if not self._limits.in_total_order and not few:
            shards = self._cluster.shards()
        bounds = self._bounds(start, end, batch.events, 1 if shards is None else len(shards))
        if shards is None:
            tasks = merged_tasks(start, end, bounds)
        else:
            tasks = shard_tasks(start, end, bounds, shards)
        self._tasks = len(tasks)
        address = None if self._inbox is None else self._inbox.address
        return [replace(task, batch=self._batch, report_to=address) for task in tasks]

    def close(self) -> None:
        """Kill the cursor."""
        if self._scout is not None:
            self._scout.close()
        self._scout = self._plan = None
        self._within_event = False
        self._ahead.clear()

    def _planned(self, start: Position, max_events: int | None) -> PlannedBatch:
        until = self._until
        if until is None and max_events is None:
            until = self._cluster.present()
        stop = None if until is None else _tick_after(until)
        if stop is not None and not is_after(stop, start):
            return PlannedBatch(start, start, 0)
        quiet = self._quiet_until(start)
        most = self._pace.most_events(max_events, self._limits.max_bytes)
        if self._stands_far(start) and (most is None or most > SAMPLE):
            far = self._far_end(most, stop)
            if far is not None:
                return PlannedBatch(start, far, most)
        scout = self._scout_after(start)
        self._gather(scout, most, stop)
        if self._ahead and stop is not None and self._ahead[0].data > key_of(stop):
            return PlannedBatch(start, start, 0)
        if not self._ahead:
            return PlannedBatch(start, self._quiet_end(start, scout.position), 0, quiet)
        end, events = self._end(scout, most, stop)
        return PlannedBatch(start, end, events, quiet)

    def _gather(self, scout: EventStream, most: int | None, stop: AtTime | None) -> None:
        """Read ahead: until the stream pauses, for long enough, or a sample, or beyond `stop`."""
        wanted = SAMPLE if most is None else min(SAMPLE, most)
        asked_at = self._clock()
        gather_until = asked_at + GATHER_TIME
        self._paused = False
        while len(self._ahead) <= wanted:
            event = self._next(scout)
            now = self._clock()
            if event is not None:
                self._ahead.append(Token(dict(event["_id"])))
                if stop is not None and self._ahead[-1].data > key_of(stop):
                    return
                if len(self._ahead) == 1:
                    gather_until = now + GATHER_TIME
                if now >= gather_until and stop is None and self._spans_ticks():
                    return
                continue
            if stop is None or self._ahead:
                self._paused = bool(self._ahead)
                if self._paused or now - asked_at >= FIRST_EVENT_WAIT:
                    return
            elif scout.position is not None and scout.position.data > key_of(stop):
                return
            if scout.has_stalled(asked_at, now):
                raise StreamError(_STALLED)

    def _next(self, scout: EventStream) -> RawBSONDocument | None:
        """The next event; None where the stream pauses, which is never within a large event."""
        event = scout.next()
        asked_at = self._clock()
        while event is None and self._within_event:
            if scout.has_stalled(asked_at, self._clock()):
                raise StreamError(_STALLED)
            event = scout.next()
        if event is not None:
            number, of = fragment_of(event) or (0, 0)
            self._within_event = number < of
        return event

    def _end(
        self, scout: EventStream, most: int | None, stop: AtTime | None
    ) -> tuple[Position, int | None]:
        """Where the batch that begins with the events ahead ends, and how many it has if known."""
        ahead = self._ahead
        if not self._paused and len(ahead) > SAMPLE and (most is None or most > SAMPLE):
            far = self._far_end(most, stop)
            if far is not None:
                return far, most
            self._count_on(scout, most, stop)
        if stop is not None and ahead[-1].data > key_of(stop):
            return stop, self._take(key_of(stop))
        if self._paused:
            reached, end = scout.position, ahead[-1]
            if reached is None or reached.cluster_time <= end.cluster_time:
                return end, self._take(end.data)
            beyond = AtTime(reached.cluster_time)
            return beyond, self._take(key_of(beyond))
        return self._near_end(scout, most)

    def _count_on(self, scout: EventStream, most: int | None, stop: AtTime | None) -> None:
        """Read on from the sample: until the stream pauses, or far enough."""
        wanted = _MOST_COUNTED if most is None else min(_MOST_COUNTED, most)
        while len(self._ahead) <= wanted:
            event = self._next(scout)
            if event is None:
                self._paused = True
                return
            self._ahead.append(Token(dict(event["_id"])))
            if stop is not None and self._ahead[-1].data > key_of(stop):
                return

    def _near_end(self, scout: EventStream, most: int | None) -> tuple[Position, int]:
        """The last tick's beginning among the events ahead, at most `most` events on."""
        ahead = self._ahead
        last = ahead[-1] if most is None else ahead[min(most, len(ahead) - 1)]
        while not self._spans_ticks():  # one tick with many events goes into one batch
            event = self._next(scout)
            if event is None:
                last = ahead[-1]
                return last, self._take(last.data)
            last = Token(dict(event["_id"]))
            ahead.append(last)
        if last.cluster_time == ahead[0].cluster_time:
            last = next(each for each in ahead if each.cluster_time > last.cluster_time)
        end = AtTime(last.cluster_time)
        return end, self._take(key_of(end))

    def _far_end(self, most: int | None, stop: AtTime | None) -> Position | None:
        """An end far beyond the events ahead; None if there is none."""
        ahead = self._ahead
        first, last = ahead[0].cluster_time, ahead[-1].cluster_time
        self._pace.has_seen([token.cluster_time for token in ahead])
        supposed = self._cluster.newest() if stop is None else stop.time
        if most is not None and self._pace.is_known:
            supposed = min(supposed, self._pace.end_of(first, most))
        for _ in range(_MOST_ENDS):
            if supposed <= last:
                return None
            end = self._try_end(AtTime(supposed), stop)
            if end is not None:
                return end
            supposed = next(iter(self._pace.between(last, supposed, 2)), last)
        return None

    def _try_end(self, supposed: AtTime, stop: AtTime | None) -> Position | None:
        """The first tick at or after `supposed` with an event; a few from there on are ahead then.

        `supposed` itself where no event follows and all shards have passed it: the stream has
        paused, and what lies before is the rest of a backlog. None where that is not known in time.
        The scout is closed: the router would read ahead for it while the tasks read.
        """
        scout = self._stream(supposed)
        asked_at = self._clock()
        sample: list[Token] = []
        while len(sample) < _END_SAMPLE:
            event = scout.next()
            if event is not None:
                sample.append(Token(dict(event["_id"])))
            elif sample or self._clock() - asked_at >= _END_WAIT:
                break
        reached = scout.position
        scout.close()
        if sample:
            end = AtTime(sample[0].cluster_time)
        elif reached is not None and reached.cluster_time > supposed.time:
            end = supposed
        else:
            return None
        if self._scout is not None:
            self._scout.close()
        self._scout = None
        self._within_event = False
        self._ahead = deque(sample)
        return end if stop is None or is_after(stop, end) else stop

    def _stands_far(self, start: Position) -> bool:
        """Whether the latest batch ended far beyond its sample, with more events to come."""
        far = self._scout is None and bool(self._ahead) and self._pace.is_known
        return far and self._plan is not None and self._plan.end == start

    def _take(self, through: str) -> int:
        """Drop the events up to that key from those ahead; return how many they are."""
        taken = 0
        while self._ahead and self._ahead[0].data <= through:
            self._ahead.popleft()
            taken += 1
        return taken

    def _spans_ticks(self) -> bool:
        return self._ahead[0].data[:18] != self._ahead[-1].data[:18]

    def _bounds(
        self, start: Position, end: Position, events: int | None, shards: int
    ) -> list[Timestamp]:
        """Where the stretch is cut, so that tasks read about as many events as they should."""
        per_task = self._limits.events_per_task
        begin, until = time_of(start), time_of(end)
        if not per_task or events is None or begin is None or until is None:
            return []
        parts = min(_MOST_STRETCHES, -(-events // (per_task * shards)))
        return self._pace.between(begin, until, parts)

    def _quiet_until(self, start: Position) -> Timestamp | None:
        """The time before which the scout has seen no event after `start`, if it was quiet."""
        plan = self._plan
        if plan is None or self._scout is None or plan.events != 0 or plan.end != start:
            return None
        reached = self._ahead[0] if self._ahead else self._scout.position
        return None if reached is None else reached.cluster_time

    def _quiet_end(self, start: Position, reached: Token | None) -> Position:
        """The same offset again, or, when that has become old, what the stream has reached."""
        since = time_of(start)
        if reached is None or since is None or not is_after(reached, start):
            return start
        behind = reached.cluster_time.time - since.time
        return AtTime(reached.cluster_time) if behind >= self._limits.idle_advance else start

    def _scout_after(self, start: Position) -> EventStream:
        if self._scout is None or self._plan is None or self._plan.end != start:
            self.close()
            self._scout = self._stream(start)
        return self._scout

    def _stream(self, start: Position) -> EventStream:
        watch = self._cluster.watch
        return EventStream(watch, start, patience=self._patience, clock=self._clock)


def _tick_after(time: Timestamp) -> AtTime:
    return AtTime(Timestamp(time.time, time.inc + 1))

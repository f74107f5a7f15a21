"""Plans, on Spark's driver, where the events of a micro-batch end, and how tasks divide them.

A batch ends at a cluster time that all shards have passed. The two ends alone decide what a batch
contains, so a batch that is read again after a crash has the same content
(docs/spark-rationale.md).

The planner reads ahead, on a cursor that returns tokens only, and never more than a sample of a
batch. So planning costs about the same for batches of all sizes:

1. The first events are read, unless they are known. If the stream becomes idle within this sample,
   the batch ends there.
2. Otherwise the event rate gives an estimated end for `max_events`. The planner opens a cursor
   there, and the batch ends at the first event that it returns: the merge returns an event only
   after all shards have passed it. If no event follows and the high water mark is beyond the
   estimated end, the batch ends there.
3. If there is no such end, the events are counted.

Between two batches, one of these is known of the events after the planned one:

- Fresh: nothing. It is so at first, and when a batch does not begin where the planned one ends.
- Sampled: what was read beyond the planned end. The cursor reads on.
- Jumped: the sample from the probe of the estimated end. Its cursor is closed until it is read
  again: the router would read ahead for it while tasks read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from bson.timestamp import Timestamp

from shard_client.bson.resume_token import cluster_time_of, next_tick
from spark_sink.errors import StreamError
from spark_sink.events.positions import (
    AtTime,
    EventRange,
    FromNow,
    Position,
    Token,
    after,
    is_after,
    time_of,
)
from spark_sink.options.stream_options import StreamOptions
from spark_sink.source.event_rate import EventRate
from spark_sink.source.event_tasks import EventsTask, divided
from spark_sink.source.lookahead import IDLE_AFTER, SAMPLE_SIZE, Lookahead, between_transactions
from spark_sink.source.task_reports import ReportInbox
from spark_sink.stream.event_stream import EventStream, read_runs
from spark_sink.stream.router_client import RouterClient

# Seconds in which an event must follow an estimated end.
_END_TIMEOUT = 0.1
# The number of estimates. If all fail, the events are counted.
_END_ATTEMPTS = 2
# The most events of the whole batch that are counted to find its end.
_MAX_COUNTED = 20_000
# Events after an estimated end that are enough to estimate the next one.
_END_SAMPLE = 100
# The most ranges of a batch.
_MAX_RANGES = 64


class EventPlanner:
    """Plans the events of batches, one after the other. Closes streams that an exception ends.

    A query without a start option begins at `started_at`, in seconds since 1970; None is now. All
    requests may raise StreamError or PyMongoError.
    """

    def __init__(
        self,
        client: RouterClient,
        options: StreamOptions,
        inbox: ReportInbox | None = None,
        *,
        started_at: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._options = options
        self._inbox = inbox
        self._started_at = started_at
        self._clock = clock
        self._event_rate = EventRate()
        self._plan: EventRange | None = None
        self._ahead: Lookahead | None = None  # of the events after `_plan`
        self._stop: AtTime | None = None

    def stop_at_present(self) -> None:
        """From now on, plan only events from before this call. Raises StreamError."""
        self._stop = after(self._client.with_retries(self._client.present))

    @property
    def ends_at_present(self) -> bool:
        """Whether events that come later are left out (`stop_at_present`)."""
        return self._stop is not None

    def next_batch(
        self, start: Position, max_events: int | None, *, advances: bool = False
    ) -> EventRange:
        """Return the batch after `start`, which is empty if there are no events.

        The batch has about `max_events` events at most; None is no limit. With `advances` an empty
        batch ends where the stream is, without waiting for `idle_advance`. Raises StreamError.
        """
        if self._inbox is not None:
            end = None if self._plan is None else time_of(self._plan.end)
            self._event_rate.learn_from_tasks(self._inbox.read(), end)
        if isinstance(start, FromNow):
            self._plan = EventRange(start, self._client.with_retries(self._beginning), 0)
        else:
            least = 0 if advances else self._options.idle_advance
            self._plan = self._with_whole_transactions(self._planned(start, max_events, least))
        return self._plan

    def tasks(self, batch: EventRange) -> list[EventsTask]:
        """Return the tasks that read a batch, which may have been planned before a restart.

        Raises StreamError if the end of the batch does not follow its start.
        """
        start, end = batch.start, batch.end
        if start == end or isinstance(start, FromNow) or batch.events == 0:
            return []
        if not is_after(end, start):
            raise StreamError(
                f"a batch cannot end at {end} if it starts after {start}: the checkpoint is "
                "damaged. Start with a new checkpointLocation"
            )
        start = batch.read_from
        shards = None
        if not self._options.in_total_order and not batch.is_small:
            shards = self._client.with_retries(self._client.shards)
        bounds = self._bounds(start, end, batch.events, 1 if shards is None else len(shards))
        tasks = divided(start, end, bounds, shards)
        address = None if self._inbox is None else self._inbox.address(len(tasks))
        return [replace(task, report_to=address) for task in tasks]

    @property
    def quiet_after(self) -> Timestamp | None:
        """The cluster time before which no event follows the planned batch.

        None if an event after the batch is known, or if no position of the stream is.
        """
        return None if self._ahead is None else self._ahead.quiet_after

    def close(self) -> None:
        """Kill the cursor, and forget the planned batch."""
        ahead, self._ahead, self._plan = self._ahead, None, None
        if ahead is not None:
            ahead.close()

    def _beginning(self) -> AtTime:
        """Return the first cluster time that an event after the start of the query can have."""
        clocks, now = self._client.clocks(), time.time()
        age = 0.0 if self._started_at is None else now - self._started_at
        # By the servers' clock; without writes since, all later events follow the newest one.
        return AtTime(min(Timestamp(int(clocks.wall - age), 0), next_tick(clocks.cluster_time)))

    def _with_whole_transactions(self, plan: EventRange) -> EventRange:
        """Return the batch; its end moves to the end of a transaction if transactions are kept."""
        ahead = self._ahead
        last_is_outside = ahead is not None and ahead.is_idle and not ahead.is_in_transaction
        if not self._options.keeps_transactions or plan.events == 0 or last_is_outside:
            return plan
        with closing(self._stream(plan.end)) as stream:
            end, passed = between_transactions(stream, plan.end, self._clock)
        if not passed:
            return plan
        self.close()
        return replace(plan, end=end, events=None if plan.events is None else plan.events + passed)

    def _planned(self, start: Position, max_events: int | None, least: float) -> EventRange:
        """Return the batch after `start`, which may end within a transaction.

        An empty one moves on if the stream is `least` seconds of cluster time ahead.
        """
        stop = self._stop
        if stop is None and max_events is None:
            stop = after(self._client.with_retries(self._client.present))
        if stop is not None and not is_after(stop, start):
            return EventRange(start, start, 0)
        if self._plan is None or self._plan.end != start:
            self.close()
        ahead, quiet_until = self._ahead, None
        if ahead is None:
            self._ahead = ahead = Lookahead(self._stream(start), self._clock)
        else:
            quiet_until = ahead.tokens[0].cluster_time if ahead.tokens else ahead.quiet_after
        most = self._event_rate.event_limit(max_events, self._options.max_bytes_per_trigger)
        return EventRange(start, *self._end(ahead, start, most, stop, least), quiet_until)

    def _end(
        self,
        ahead: Lookahead,
        start: Position,
        most: int | None,
        stop: AtTime | None,
        least: float,
    ) -> tuple[Position, int | None]:
        """Return where the batch that begins with a lookahead ends.

        Also return about how many events it has; None if that is not known.
        """
        has_sample = len(ahead.tokens) >= _END_SAMPLE and self._event_rate.is_known
        if has_sample and (end := self._estimated_end(ahead, most, stop)) is not None:
            return end, most
        wanted = SAMPLE_SIZE if most is None else min(SAMPLE_SIZE, most + 1)
        if stop is None:
            ahead.read_sample(wanted)
        else:  # what precedes a stop has happened: it needs no time to arrive
            ahead.read_up_to(wanted, stop)
        if not ahead.tokens:
            return self._idle_end(start, ahead.position, least), 0
        if stop is not None and is_after(ahead.tokens[0], stop):
            return start, 0
        if len(ahead.tokens) >= SAMPLE_SIZE and not ahead.is_idle:
            if (end := self._estimated_end(ahead, most, stop)) is not None:
                return end, most
            counted = _MAX_COUNTED if most is None else min(_MAX_COUNTED, most)
            ahead.read_up_to(counted + 1, stop)
        return ahead.cut(most, stop)

    def _estimated_end(
        self, ahead: Lookahead, most: int | None, stop: AtTime | None
    ) -> Position | None:
        """Return an end far beyond what was read, or None if a sample can have `most` events."""
        if most is not None and most <= SAMPLE_SIZE:
            return None
        times = [token.cluster_time for token in ahead.tokens]
        first, last = times[0], times[-1]
        self._event_rate.learn_from_sample(times)
        clocks = self._client.clocks
        candidate = self._client.with_retries(clocks).cluster_time if stop is None else stop.time
        if most is not None and self._event_rate.is_known:
            candidate = min(candidate, self._event_rate.estimated_end(first, most))
        for _ in range(_END_ATTEMPTS):
            if candidate <= last:
                return None
            end = self._probe_end(AtTime(candidate), stop)
            if end is not None:
                return end
            candidate = next(iter(self._event_rate.split_points(last, candidate, 2)), last)
        return None

    def _probe_end(self, candidate: AtTime, stop: AtTime | None) -> Position | None:
        """Return the time of the first event at or after `candidate`, where a new sample begins.

        Return `candidate` itself if no event follows and all shards have passed it, and None if
        neither is known in time.
        """
        ahead = Lookahead(self._stream(candidate), self._clock)
        with closing(ahead):
            ahead.read_sample(_END_SAMPLE, _END_TIMEOUT)
        ahead.is_idle = False  # the cursor is closed, and what follows the batch was read later
        if ahead.tokens:
            end = AtTime(ahead.tokens[0].cluster_time)
        elif ahead.position is not None and ahead.position.cluster_time > candidate.time:
            end = candidate
        else:
            return None
        self.close()
        self._ahead = ahead
        return end if stop is None or is_after(stop, end) else stop

    def _bounds(
        self, start: Position, end: Position, events: int | None, shards: int
    ) -> list[Timestamp]:
        """Return where the batch is divided, so that each task reads `events_per_partition`."""
        most = self._options.events_per_partition * shards
        begin, until = time_of(start), time_of(end)
        if not most or begin is None or until is None:
            return []
        if events is None:
            tokens = {*self._divided_by_counting(AtTime(begin), end, most)}
            return sorted(token for token in tokens if begin < token)
        return self._event_rate.split_points(begin, until, min(_MAX_RANGES, -(-events // most)))

    def _divided_by_counting(self, start: AtTime, end: Position, most: int) -> list[Timestamp]:
        """Return where a batch of an unknown size is divided, after `most` events each.

        It reads the tokens of all of them. `most` doubles where there would be over _MAX_RANGES.
        The stream begins at a time, because a batch of an earlier scope may begin after an event
        that the scope of the options does not have.
        """
        bounds: list[Timestamp] = []
        count = 0
        with closing(self._stream(start)) as stream:
            for run in read_runs(stream, end):
                for key in run.keys:
                    if count == most:
                        bounds.append(cluster_time_of(key))
                        count = 0
                        if len(bounds) == _MAX_RANGES:
                            bounds, most = bounds[1::2], most * 2
                    count += 1
        return bounds

    def _idle_end(self, start: Position, reached: Token | None, least: float) -> Position:
        """Return `start`, or the stream's position if `start` is `least` seconds older."""
        since = time_of(start)
        if reached is None or since is None or not is_after(reached, start):
            return start
        behind = reached.cluster_time.time - since.time
        return AtTime(reached.cluster_time) if behind >= least else start

    def _stream(self, start: Position) -> EventStream:
        return self._client.tokens(start, max_await=IDLE_AFTER, clock=self._clock)

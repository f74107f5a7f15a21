"""Plans, on Spark's driver, where the events of a micro-batch end, and how tasks divide them.

A batch ends at a cluster time that all shards have passed, so that the events of one cluster time,
such as those of a transaction on one shard, stay together. The planner reads ahead, on a cursor
that returns tokens only, and never more than a sample of a batch:

- If the stream becomes idle within the sample, the batch ends there.
- Otherwise the event rate gives an estimated end for `max_events`. The planner opens a cursor
  there, and the batch ends at the first event that it returns: the merge returns an event only
  after all shards have passed it. The events read there are the sample of the next batch. If no
  event follows and the high water mark is beyond the estimated end, the batch ends there.

So planning costs about the same for batches of all sizes. The two ends alone decide what a batch
contains, so a batch that is read again after a crash has the same content
(docs/spark-rationale.md).

The shards of a transaction write it to their oplogs at slightly different cluster times, so that
the end of a batch may lie between its events (docs/protocol.md#events). On request, a batch ends
after all of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import TIME_DIGITS, cluster_time_of
from spark_sink.batches.event_rate import EventRate, ReportInbox
from spark_sink.batches.event_tasks import EventsTask, merged_tasks, shard_tasks
from spark_sink.batches.query_start import cluster_time_at, query_started
from spark_sink.errors import StreamError
from spark_sink.events.header import fragment_of
from spark_sink.events.positions import (
    AtTime,
    FromNow,
    Position,
    Token,
    after,
    is_after,
    key_of,
    time_of,
)
from spark_sink.options.stream_options import StreamOptions
from spark_sink.stream.event_stream import EventStream, read_runs
from spark_sink.stream.router_client import RouterClient

FIRST_EVENT_TIMEOUT = 0.5
"""Seconds that a call waits for a first event."""
SAMPLE_SECONDS = 0.02
"""Seconds for which a stream that is not idle is sampled: its events wait as long for a commit."""
# Seconds after which a stream without a further event is idle.
_AWAIT = 0.02
SAMPLE_SIZE = 500
"""The most events of a sample."""
# Seconds in which an event must follow an estimated end.
_END_TIMEOUT = 0.1
# The number of estimates. If all fail, the events are counted.
_END_ATTEMPTS = 2
# The most events that are counted.
_MAX_COUNTED = 20_000
# Events after an estimated end that are enough to estimate the next one.
_END_SAMPLE = 100
# The most ranges of a batch.
_MAX_RANGES = 64
# Seconds, of cluster time or on the clock, after which no more of a transaction is awaited.
_QUIET = 1
# Up to so many events, the merged stream costs less than a task and a stream for each shard.
_SMALL_EVENTS = 5000


@dataclass(frozen=True)
class EventRange:
    """The events of a batch, after a position up to another one.

    Args:
        events: about how many they are, if known.
        quiet_until: a cluster time before which there are none.
    """

    start: Position
    end: Position
    events: int | None = None
    quiet_until: Timestamp | None = None

    @property
    def read_from(self) -> Position:
        """Where reading begins: the start, or a later position before which there is no event."""
        idle = None if self.quiet_until is None else AtTime(self.quiet_until)
        return self.start if idle is None or not is_after(idle, self.start) else idle

    @property
    def is_small(self) -> bool:
        """Whether they are read from the merged stream at once."""
        return self.events is not None and self.events <= _SMALL_EVENTS


@dataclass
class _Sample:
    """The first `tokens` after the planned batch, which `cursor` has returned.

    After a batch that ends far beyond its own sample the cursor is closed until it is read again:
    the router would read ahead for it while tasks read.
    """

    cursor: EventStream
    tokens: deque[Token] = field(default_factory=deque)
    is_idle: bool = False  # the stream had no further event
    within_event: bool = False  # the cursor is between fragments of an event
    in_transaction: bool = False  # the latest event that the cursor returned

    def drop_through(self, through: str) -> int:
        """Drop the events up to a key, and return how many they are."""
        dropped = 0
        while self.tokens and self.tokens[0].data <= through:
            self.tokens.popleft()
            dropped += 1
        return dropped

    def passes(self, stop: AtTime | None) -> bool:
        """Whether the last event comes after a stop."""
        return stop is not None and bool(self.tokens) and self.tokens[-1].data > key_of(stop)

    @property
    def spans_several_times(self) -> bool:
        return self.tokens[0].data[:TIME_DIGITS] != self.tokens[-1].data[:TIME_DIGITS]


class EventPlanner:
    """Plans the events of batches, one after the other. Closes streams that an exception ends.

    `loaded` is the time of a query's `load()`, if there is one. All requests may raise StreamError
    or PyMongoError.
    """

    def __init__(
        self,
        client: RouterClient,
        options: StreamOptions,
        inbox: ReportInbox | None = None,
        *,
        loaded: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._options = options
        self._inbox = inbox
        self._loaded = loaded
        self._clock = clock
        self._event_rate = EventRate()
        self._sample: _Sample | None = None
        self._stop: AtTime | None = None
        self._plan: EventRange | None = None
        self._batch = 0  # the number of the latest batch
        self._tasks = 0  # how many tasks it has

    def stop_at_present(self) -> None:
        """Plan only events from before this call from now on. Raises StreamError."""
        self._stop = after(self._client.with_retries(self._client.present))

    @property
    def ends_at_present(self) -> bool:
        """Whether events that come later are left out (`stop_at_present`)."""
        return self._stop is not None

    def require_history(self, start: Position) -> None:
        """Raise HistoryLostError if the oplogs no longer contain a position, or StreamError.

        A shard reports that when it begins to read, after the cursor was opened.
        """
        since, begun_at = time_of(start), self._clock()
        with closing(self._stream(start)) as stream:
            while not stream.next_run().keys:
                reached = stream.position
                if since is None or (reached is not None and reached.cluster_time > since):
                    return
                stream.require_progress(begun_at)

    def next_batch(
        self, start: Position, max_events: int | None, *, advances: bool = False
    ) -> EventRange:
        """Return the batch after `start`, which is empty if there are no events.

        The batch has about `max_events` events at most; None is no limit. With `advances` an empty
        batch ends where the stream is, without waiting for `idle_advance`. Raises StreamError.
        """
        if self._inbox is not None:
            reports = self._inbox.read(self._batch)
            if len(reports) == self._tasks:  # some of them would show too low a rate
                end = None if self._plan is None else time_of(self._plan.end)
                self._event_rate.learn_from_tasks(reports, end)
        self._batch += 1
        self._tasks = 0
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
        tasks = merged_tasks(start, end, bounds)
        if shards is not None:
            tasks = shard_tasks(tasks, shards)
        self._tasks = len(tasks)
        address = None if self._inbox is None else self._inbox.address(self._batch)
        return [replace(task, report_to=address) for task in tasks]

    @property
    def quiet_until(self) -> Timestamp | None:
        """The cluster time before which no event follows the planned batch.

        None if an event after the batch is known, or if no position of the stream is.
        """
        sample = self._sample
        if sample is None or sample.tokens or sample.within_event:
            return None
        reached = sample.cursor.position
        return None if reached is None else reached.cluster_time

    def close(self) -> None:
        """Kill the cursor, and forget the planned batch."""
        sample, self._sample, self._plan = self._sample, None, None
        if sample is not None:
            sample.cursor.close()

    def _beginning(self) -> AtTime:
        """Return where a query without a start option begins."""
        clocks = self._client.clocks()
        started = time.time() if self._loaded is None else query_started(self._loaded)
        return AtTime(cluster_time_at(started, clocks.wall - time.time(), clocks.cluster_time))

    def _with_whole_transactions(self, plan: EventRange) -> EventRange:
        """Return the batch; its end moves to the end of a transaction if transactions are kept."""
        sample = self._sample
        last_is_outside = sample is not None and sample.is_idle and not sample.in_transaction
        if not self._options.keeps_transactions or plan.events == 0 or last_is_outside:
            return plan
        with closing(self._stream(plan.end)) as stream:
            end, passed = _between_transactions(stream, plan.end, self._clock)
        if not passed:
            return plan
        self.close()
        return replace(plan, end=end, events=None if plan.events is None else plan.events + passed)

    def _planned(self, start: Position, max_events: int | None, least: float) -> EventRange:
        stop = self._stop
        if stop is None and max_events is None:
            stop = after(self._client.with_retries(self._client.present))
        if stop is not None and not is_after(stop, start):
            return EventRange(start, start, 0)
        if self._plan is None or self._plan.end != start:
            self.close()
        sample, quiet_until = self._sample, None
        if sample is None:
            self._sample = sample = _Sample(self._stream(start))
        else:
            quiet_until = sample.tokens[0].cluster_time if sample.tokens else self.quiet_until
        most = self._event_rate.event_limit(max_events, self._options.max_bytes_per_trigger)
        if len(sample.tokens) >= _END_SAMPLE and self._event_rate.is_known:
            far = self._estimated_end(sample.tokens, most, stop)
            if far is not None:
                return EventRange(start, far, most, quiet_until)
        self._read_sample(sample, most, stop)
        if not sample.tokens:
            end = self._idle_end(start, sample.cursor.position, least)
            return EventRange(start, end, 0, quiet_until)
        if stop is not None and sample.tokens[0].data > key_of(stop):
            return EventRange(start, start, 0)
        end, events = self._end(sample, most, stop)
        return EventRange(start, end, events, quiet_until)

    def _read_sample(self, sample: _Sample, most: int | None, stop: AtTime | None) -> None:
        """Read until the stream is idle, the time is over, the sample is full, or beyond `stop`."""
        wanted = SAMPLE_SIZE if most is None else min(SAMPLE_SIZE, most + 1)
        begun_at = self._clock()
        sample_until = begun_at + SAMPLE_SECONDS
        sample.is_idle = False
        tokens, cursor = sample.tokens, sample.cursor
        while len(tokens) < wanted:
            is_first = not tokens
            if stop is None:
                cursor.max_await = FIRST_EVENT_TIMEOUT if is_first else _AWAIT
            sampled = self._read(sample)
            now = self._clock()
            if sampled:
                if sample.passes(stop):
                    return
                if is_first:
                    sample_until = now + SAMPLE_SECONDS
                if now >= sample_until and stop is None and sample.spans_several_times:
                    return
                continue
            waits_for_first = not tokens and now - begun_at < FIRST_EVENT_TIMEOUT
            if cursor.has_passed(stop) if stop is not None else not waits_for_first:
                sample.is_idle = bool(tokens)
                return
            cursor.require_progress(begun_at)

    def _read(self, sample: _Sample) -> bool:
        """Read a reply; False if the stream is idle, but never within a split event."""
        run, begun_at = sample.cursor.next_run(), self._clock()
        while not run.keys and sample.within_event:
            sample.cursor.require_progress(begun_at)
            run = sample.cursor.next_run()
        if not run.keys:
            return False
        number, count = fragment_of(run.events[-1]) or (0, 0)
        sample.within_event = number < count
        sample.in_transaction = _transaction_of(run.events[-1]) is not None
        sample.tokens.extend(map(Token.of, run.events))
        return True

    def _end(
        self, sample: _Sample, most: int | None, stop: AtTime | None
    ) -> tuple[Position, int | None]:
        """Return the end of the batch that begins with the sample, and its size if known."""
        tokens, cursor = sample.tokens, sample.cursor
        if len(tokens) >= SAMPLE_SIZE and not sample.is_idle:
            far = self._estimated_end(tokens, most, stop)
            if far is not None:
                return far, most
            wanted = _MAX_COUNTED if most is None else min(_MAX_COUNTED, most)
            begun_at = self._clock()
            while len(tokens) <= wanted and not (sample.is_idle or sample.passes(stop)):
                if not self._read(sample):
                    sample.is_idle = stop is None or cursor.has_passed(stop)
                    cursor.require_progress(begun_at)
        last = tokens[-1] if most is None else tokens[min(most, len(tokens) - 1)]
        if stop is not None and last.data > key_of(stop):
            return stop, sample.drop_through(key_of(stop))
        if sample.is_idle:
            reached, end = cursor.position, tokens[-1]
            if reached is None or reached.cluster_time <= end.cluster_time:
                return end, sample.drop_through(end.data)
            beyond = AtTime(reached.cluster_time)
            return beyond, sample.drop_through(key_of(beyond))
        while not sample.spans_several_times:  # all events of one cluster time are one batch
            if not self._read(sample):
                return tokens[-1], sample.drop_through(tokens[-1].data)
            last = tokens[-1]
        if last.cluster_time == tokens[0].cluster_time:
            last = next(token for token in tokens if token.cluster_time > last.cluster_time)
        between = AtTime(last.cluster_time)
        return between, sample.drop_through(key_of(between))

    def _estimated_end(
        self, sample: Sequence[Token], most: int | None, stop: AtTime | None
    ) -> Position | None:
        """Return an end far beyond the sample, or None if a sample can have `most` events."""
        if most is not None and most <= SAMPLE_SIZE:
            return None
        times = [token.cluster_time for token in sample]
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
        until = self._clock() + _END_TIMEOUT
        sample = _Sample(self._stream(candidate))
        tokens = sample.tokens
        with closing(sample.cursor):
            while len(tokens) < _END_SAMPLE and self._clock() < until:
                is_first = not tokens
                if self._read(sample):
                    until = self._clock() + SAMPLE_SECONDS if is_first else until
                elif tokens:
                    break
        reached = sample.cursor.position
        if tokens:
            end = AtTime(tokens[0].cluster_time)
        elif reached is not None and reached.cluster_time > candidate.time:
            end = candidate
        else:
            return None
        self.close()
        self._sample = sample
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
            tokens = {*self._counted(AtTime(begin), end, most)}
            return sorted(token for token in tokens if begin < token)
        return self._event_rate.split_points(begin, until, min(_MAX_RANGES, -(-events // most)))

    def _counted(self, start: AtTime, end: Position, most: int) -> list[Timestamp]:
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
        watch = partial(self._client.watch_tokens, max_await=_AWAIT)
        return EventStream(watch, start, retry_policy=self._options.retry_policy, clock=self._clock)


def _transaction_of(event: bytes) -> tuple[bytes, int] | None:
    """Return the identity of an event's transaction; None outside of transactions."""
    document = RawBSONDocument(event)
    session, number = document.get("lsid"), document.get("txnNumber")
    return None if session is None or number is None else (bytes(session.raw), int(number))


def _between_transactions(
    stream: EventStream, end: Position, clock: Callable[[], float]
) -> tuple[Position, int]:
    """Return the first end from `end` on that cuts no transaction, and the events up to it.

    A transaction counts as complete if no further event of it arrives for a second.

    Args:
        stream: the events after `end`, of which the first one or few are read.
        end: of a batch whose last event may belong to a transaction.
        clock: seconds.

    Raises StreamError.
    """
    begun_at = clock()
    boundary, passed, current = end, 0, None
    while True:
        events = stream.next_run().events
        for event in events:
            token, transaction = Token.of(event), _transaction_of(event)
            if transaction is None and fragment_of(event):  # only the first fragment names it
                transaction = current
            if not passed and transaction is None:
                return end, 0
            is_other = passed and (transaction is None or transaction != current)
            if is_other and token.cluster_time != time_of(boundary):  # no cluster time is divided
                return AtTime(token.cluster_time), passed
            boundary, current, begun_at = token, transaction, clock()
            passed += 1
        since, reached = time_of(boundary), stream.position
        is_past = since and reached and reached.cluster_time.time - since.time > _QUIET
        if not events and (is_past or clock() - begun_at >= _QUIET):
            return boundary, passed

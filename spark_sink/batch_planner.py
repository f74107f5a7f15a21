"""Decides, on Spark's driver, where the next micro-batch ends.

The end must be a token, so the planner reads ahead on a stream of its own that carries tokens only
and keeps one of them. What a batch holds is settled by its two ends alone, not by what the planner
saw, so a batch that is read again after a crash has the same content (docs/design.md, section 12).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from spark_sink.errors import StreamError
from spark_sink.event_stream import STALLED_AFTER, EventStream, sort_key
from spark_sink.positions import AtTime, FromNow, Position, Token, is_after, time_of
from spark_sink.router_client import WatchedStream

# Seconds that a call waits for a first event, and that it gathers events that keep coming.
FIRST_EVENT_WAIT = 0.5
GATHER_TIME = 0.25


@dataclass(frozen=True)
class TokenRange:
    """The events after `start` up to and including `end`; `events` of them, if that is known."""

    start: Position
    end: Token
    events: int | None = None


@dataclass(frozen=True)
class _Plan:
    start: Position
    end: Position
    ranges: tuple[TokenRange, ...]


class BatchPlanner:
    """Plans micro-batches one after the other, reading ahead on one stream of tokens.

    watch: opens a stream of tokens after a position; cluster_time: the newest that the cluster has;
    beginning: where a query without a start option begins;
    events_per_range: most events of a range, 0 for ranges that are whole batches;
    idle_advance: seconds of cluster time that the offset of a quiet stream may stay behind.
    """

    def __init__(
        self,
        watch: Callable[[Position], WatchedStream],
        cluster_time: Callable[[], Timestamp],
        beginning: Callable[[], AtTime],
        *,
        events_per_range: int = 0,
        idle_advance: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._cluster_time = cluster_time
        self._beginning = beginning
        self._events_per_range = events_per_range
        self._idle_advance = idle_advance
        self._clock = clock
        self._stream: EventStream | None = None
        self._pending: RawBSONDocument | None = None
        self._target: Timestamp | None = None
        self._plan: _Plan | None = None

    def stop_at_present(self) -> None:
        """From now on plan nothing that is written after this call. Raises StreamError."""
        self._target = self._present()

    def next_end(self, start: Position, max_events: int | None) -> Position:
        """Where the batch that begins after `start` ends; `start` itself when there is none.

        max_events: the most events of the batch; None for all that are there now.
        Raises StreamError.
        """
        if isinstance(start, FromNow):
            self._plan = _Plan(start, self._beginning(), ())
            return self._plan.end
        until = self._target
        if until is None and max_events is None:
            until = self._present()
        stream = self._stream_after(start)
        ranges = self._gather(stream, start, max_events, until)
        end = ranges[-1].end if ranges else self._quiet_end(start, stream.position)
        self._plan = _Plan(start, end, ranges)
        return end

    def ranges(self, start: Position, end: Position) -> tuple[TokenRange, ...]:
        """What the tasks of a batch read, in the order of the stream.

        A batch planned before a restart is one range: where it was cut is not remembered, and does
        not matter to its content. Raises StreamError if `end` does not follow `start`.
        """
        if start == end or isinstance(start, FromNow):
            return ()
        if self._plan is not None and (self._plan.start, self._plan.end) == (start, end):
            return self._plan.ranges
        if not isinstance(end, Token) or not is_after(end, start):
            raise StreamError(f"a batch cannot end at {end} when it starts after {start}")
        return (TokenRange(start, end),)

    def close(self) -> None:
        """Kill the cursor."""
        if self._stream is not None:
            self._stream.close()
        self._stream = self._pending = self._plan = None

    def _gather(
        self, stream: EventStream, start: Position, max_events: int | None, until: Timestamp | None
    ) -> tuple[TokenRange, ...]:
        """Read ahead: until `max_events`, `until`, or the stream pauses, or long enough."""
        batch = _Batch(start, self._events_per_range)
        asked_at = gather_until = self._clock()
        # Cluster times are compared as the tokens that begin with them are.
        limit = None if until is None else f"82{until.time:08X}{until.inc:08X}~"
        while max_events is None or batch.events < max_events:
            event = self._pending or stream.next()
            self._pending = None
            if event is None:
                if batch.events and max_events is not None:
                    break
                if self._has_paused(stream.position, limit, asked_at):
                    break
            elif limit is not None and sort_key(event) > limit:
                self._pending = event
                break
            else:
                now = self._clock()
                if not batch.events:
                    gather_until = now + GATHER_TIME
                batch.add(event)
                if limit is None and now >= gather_until:
                    break
        return batch.ranges()

    def _has_paused(self, reached: Token | None, limit: str | None, asked_at: float) -> bool:
        """Whether waiting on is in vain: for a while, or for good once `limit` is behind."""
        waited = self._clock() - asked_at
        if limit is None:
            return waited >= FIRST_EVENT_WAIT
        if reached is not None and reached.data > limit:
            return True
        if waited > STALLED_AFTER:
            raise StreamError(
                f"the stream has not come to the present in {STALLED_AFTER:.0f} s: "
                "a shard may be unreachable"
            )
        return False

    def _quiet_end(self, start: Position, reached: Token | None) -> Position:
        """The same offset again, or, when that has become old, what the stream has reached."""
        since = time_of(start)
        if reached is None or since is None or not is_after(reached, start):
            return start
        behind = reached.cluster_time.time - since.time
        return reached if behind >= self._idle_advance else start

    def _stream_after(self, start: Position) -> EventStream:
        if self._stream is None or self._plan is None or self._plan.end != start:
            self.close()
            self._stream = EventStream(self._watch, start, clock=self._clock)
        return self._stream

    def _present(self) -> Timestamp:
        """A cluster time that no finished write lies behind."""
        stream = EventStream(self._watch, FromNow(), clock=self._clock)
        try:
            stream.next()  # after this the router has heard from every shard
            reached = stream.position
        finally:
            stream.close()
        seen = self._cluster_time()
        return seen if reached is None else max(seen, reached.cluster_time)


class _Batch:
    """The ranges of a batch while its events are counted."""

    def __init__(self, start: Position, events_per_range: int) -> None:
        self.events = 0
        self._start = start
        self._size = events_per_range
        self._done: list[TokenRange] = []
        self._open = 0
        self._last: RawBSONDocument | None = None

    def add(self, event: RawBSONDocument) -> None:
        """Count an event, the latest in the order of the stream."""
        if self._size and self._open == self._size:
            self._close()
        self.events += 1
        self._open += 1
        self._last = event

    def ranges(self) -> tuple[TokenRange, ...]:
        """The ranges, the last one ending with the event added last."""
        if self._open:
            self._close()
        return tuple(self._done)

    def _close(self) -> None:
        assert self._last is not None
        end = Token(dict(self._last["_id"]))
        self._done.append(TokenRange(self._start, end, self._open))
        self._start, self._open = end, 0

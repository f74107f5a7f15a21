"""A change stream that goes on: through lost connections, restarts of the router, invalidations.

pymongo's ChangeStream resumes once by itself and ends with an invalidate. This one keeps trying
for a bounded time, and after an invalidate it goes on with what follows (docs/protocol.md#events),
since a streaming query outlives the collection that it watches.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError

from spark_sink.errors import StreamError, refused_stream
from spark_sink.event_runs import Run, first_invalidate, run_of, sort_key, without_repeats
from spark_sink.patience import DEFAULT_PATIENCE, Patience, Retries, gave_up, may_pass
from spark_sink.positions import Position, Token, is_invalidate, key_of
from spark_sink.watched_stream import WatchedStream

_Result = TypeVar("_Result")

# Seconds without any progress after which reading a range that must exist gives up.
STALLED_AFTER = 120.0


class EventStream:
    """The events after a position, in order, over as many cursors as it takes.

    Two things are left out, so that every reading of a range gives the same events
    (docs/protocol.md#events). Invalidates: they end cursors, not this stream, and whether a
    second shard's is delivered depends on when the cursor was opened. And an event with the same
    token as the one before it, as several shards report the renaming of a collection: who resumes
    after one of them skips the other.

    watch: opens a stream after a position; start: the first position; after: events whose tokens
    sort at or below it are left out, too; patience: how long failures without any progress in
    between are tried again; clock, sleep: for tests.
    """

    def __init__(
        self,
        watch: Callable[[Position], WatchedStream],
        start: Position,
        *,
        after: str = "",
        patience: Patience = DEFAULT_PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._watch = watch
        self._start = start
        self._patience = patience
        self._retries = Retries(patience, clock=clock, sleep=sleep)
        self._clock = clock
        self._stream: WatchedStream | None = None
        self._reached: Token | None = start if isinstance(start, Token) else None
        self._last_key = max(after, start.data if isinstance(start, Token) else "")
        self._failing = False
        self._recovered_at = -math.inf

    @property
    def position(self) -> Token | None:
        """Everything at or below it has been returned; None before the server has named a point.

        It moves with every event, and without events too (docs/protocol.md#cursor-replies).
        """
        token = None if self._stream is None else self._stream.resume_token
        return self._reached if token is None else Token(dict(token))

    def open(self) -> None:
        """Open the cursor now, so that `position` is known. Raises StreamError."""
        while self._stream is None:
            self._attempt(self._reopen)

    def next(self) -> RawBSONDocument | None:
        """The next event, or None when the server had none within its waiting time.

        Raises StreamError when the stream cannot go on.
        """
        while True:
            event = self._answer(_next_of)
            if event is None:
                return None
            key = sort_key(event)
            if is_invalidate(key):  # what follows it comes on another cursor
                self.close()
                self._reached = Token(dict(event["_id"]))
            elif key > self._last_key:
                self._last_key = key
                return event

    def next_run(self) -> Run:
        """The next events, as many as one reply brings; none when the server had none in its time.

        Raises StreamError when the stream cannot go on.
        """
        while True:
            events = self._answer(_reply_of) or []
            run = run_of(events)
            ended = first_invalidate(run)
            if ended is not None:  # what follows it comes on another cursor
                run = run.until(ended)
                self.close()
                self._reached = Token(dict(events[ended]["_id"]))
            run = without_repeats(run, self._last_key)
            if run.keys:
                self._last_key = run.keys[-1]
            if run.keys or not events:
                return run

    def has_stalled(self, since: float, now: float) -> bool:
        """Whether the stream has not moved for too long. since: when it last moved, by the clock.

        The time begins anew when requests that failed go well again: `patience` bounds how long
        they may fail.
        """
        return now - max(since, self._recovered_at) > STALLED_AFTER

    def close(self) -> None:
        """Kill the cursor, if there is one. The stream can go on from where it was."""
        self._reached = self.position
        stream, self._stream = self._stream, None
        if stream is not None:
            _close(stream)

    def _reopen(self) -> None:
        self._stream = self._watch(self._reached or self._start)

    def _answer(self, ask: Callable[[WatchedStream], _Result | None]) -> _Result | None:
        """What a request to the open cursor returns; None when the server had no event."""
        while True:
            stream = self._stream
            if stream is None:
                self._attempt(self._reopen)
                continue
            went_well, result = self._attempt(partial(ask, stream))
            if not went_well:
                continue
            if result is None and not stream.alive:
                self.close()
                self._back_off(StreamError("the server closes the stream again and again"))
                continue
            self._went_well()
            return result

    def _attempt(self, call: Callable[[], _Result | None]) -> tuple[bool, _Result | None]:
        """Whether the call went well, and its result; sleeps after a failure that may pass."""
        try:
            return True, call()
        except PyMongoError as error:
            self.close()
            if not may_pass(error):
                raise refused_stream(error) from None
            self._back_off(error)
            return False, None

    def _went_well(self) -> None:
        if self._failing:
            self._failing = False
            self._retries.reset()
            self._recovered_at = self._clock()

    def _back_off(self, error: Exception) -> None:
        self._failing = True
        if not self._retries.go_on(error):
            raise gave_up(self._patience, error) from error


def read_runs(
    stream: EventStream, end: Position, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Run]:
    """All events of the stream up to and including `end`, a reply's at a time.

    Raises StreamError when the stream stands still before its end.
    """
    limit = key_of(end)
    seen: Token | None = None
    moved_at = clock()
    while True:
        run = stream.next_run()
        if run.keys:
            if run.keys[-1] >= limit:
                yield run.until(bisect_right(run.keys, limit))
                return
            yield run
        position = stream.position
        if position is not None and position.data >= limit:
            return  # often the last events come with it, and no further request has to wait
        if run.keys or position != seen:
            seen, moved_at = position, clock()
        elif stream.has_stalled(moved_at, clock()):
            raise StreamError(
                f"the stream has not moved for {STALLED_AFTER:.0f} s and is still before the end "
                "of its range: see which shard cannot be reached, and restart the query"
            )


def read_range(
    stream: EventStream, end: Position, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[RawBSONDocument]:
    """The same events as `read_runs`, one by one."""
    for run in read_runs(stream, end, clock=clock):
        yield from run.documents()


def _next_of(stream: WatchedStream) -> RawBSONDocument | None:
    return stream.try_next()


def _reply_of(stream: WatchedStream) -> list[RawBSONDocument] | None:
    events: list[RawBSONDocument] = []
    stream.try_reply(events)
    return events or None


def _close(stream: WatchedStream) -> None:
    try:
        stream.close()
    except PyMongoError:
        return  # the cursor died with its router

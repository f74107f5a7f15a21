"""A change stream that survives lost connections, restarts of the router, and invalidates.

pymongo's ChangeStream resumes once by itself and ends with an invalidate. This one retries for a
bounded time, and after an invalidate it continues with what follows (docs/protocol.md#events),
because a streaming query outlives the collection that it watches.
"""

from __future__ import annotations

import contextlib
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from pymongo.errors import PyMongoError

from spark_sink.errors import StreamError, stream_refused
from spark_sink.events.positions import Position, Token, key_of, time_of
from spark_sink.events.runs import Run, first_invalidate, run_of, without_repeats
from spark_sink.options.stream_options import DEFAULT_RETRY_POLICY, RetryPolicy
from spark_sink.stream.raw_replies import StreamCursor
from spark_sink.stream.retries import Retries, is_transient

# Seconds without progress after which planning, or the read of a range, fails.
_STALLED_AFTER = 120.0


class EventStream:
    """The events after a position, in order, over as many cursors as needed.

    Two kinds of events are left out, so that every read of a range gives the same events
    (docs/protocol.md#events). Invalidates end cursors, not this stream, and whether a second
    shard's invalidate arrives depends on when the cursor was opened. Of events with one token, such
    as several shards' reports of one rename, only the first is returned: a stream that resumes
    after it skips the others.

    Args:
        watch: opens a stream after a position.
        after: events whose tokens sort at or below it are left out, too.
        retry_policy: for failures without progress in between.
    """

    def __init__(
        self,
        watch: Callable[[Position], StreamCursor],
        start: Position,
        *,
        after: str = "",
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._watch = watch
        self._start = start
        self._retries = Retries(retry_policy, clock=clock, sleep=sleep)
        self.clock = clock
        self.max_await: float | None = None
        """Seconds that a server waits for a first event; None: as long as before."""
        self._stream: StreamCursor | None = None
        self._reached: Token | None = start if isinstance(start, Token) else None
        self._last_key = max(after, start.data if isinstance(start, Token) else "")
        self._moved_at = -math.inf

    @property
    def position(self) -> Token | None:
        """All events at or below it were returned; None before the server has named a position.

        It advances with every event, and without events too (docs/protocol.md#cursor-replies).
        """
        token = self._token
        return self._reached if token is None else Token(dict(token))

    @property
    def _token(self) -> Any:
        return None if self._stream is None else self._stream.resume_token

    def next_run(self) -> Run:
        """Return the events of the next reply; none if the server had none within its await time.

        Raises StreamError when the stream cannot continue.
        """
        while True:
            events = self._reply()
            run = run_of(events)
            ended = first_invalidate(run)
            if ended is not None:  # later events need a new cursor
                run = run.until(ended)
                self.close()
                self._reached = Token.of(events[ended])
            run = without_repeats(run, self._last_key)
            if run.keys:
                self._last_key = run.keys[-1]
            if run.keys or not events:
                return run

    def has_passed(self, end: Position) -> bool:
        """Return whether all events up to and including `end` were returned."""
        position = self.position
        return position is not None and position.data >= key_of(end)

    def require_history(self) -> None:
        """Raise HistoryLostError if the oplogs no longer contain the start, or StreamError.

        A shard reports that when it begins to read, after the cursor was opened.
        """
        since, begun_at = time_of(self._start), self.clock()
        while not self.next_run().keys:
            reached = self.position
            if since is None or (reached is not None and reached.cluster_time > since):
                return
            self.require_progress(begun_at)

    def require_progress(self, since: float) -> None:
        """Raise StreamError if the stream has not advanced for too long, `since` a time.

        The time begins again with each advance, and with the first success after failures, which
        `retry_policy` bounds.
        """
        if self.clock() - max(since, self._moved_at) > _STALLED_AFTER:
            raise StreamError(
                f"the stream has not advanced for {_STALLED_AFTER:.0f} s: check which shard is "
                "unreachable, and restart the query"
            )

    def close(self) -> None:
        """Kill the cursor, if there is one. The stream can continue from its position."""
        self._reached = self.position
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(PyMongoError):  # the router is gone, and the cursor with it
                stream.close()

    def _reply(self) -> list[bytes]:
        """Return the events of the next reply; none if the server had none."""
        before = self._token
        while True:
            events, alive = self._retries.run(self._asked)
            if events or alive:
                if self._retries.reset() or events or self._token != before:
                    self._moved_at = self.clock()
                return events
            self.close()
            self._retries.wait(StreamError("the server closes the stream repeatedly"))

    def _asked(self) -> tuple[list[bytes], bool]:
        """Return the events of one reply, and whether the server may still return events."""
        try:
            if self._stream is None:
                self._stream = self._watch(self._reached or self._start)
            return self._stream.try_reply(self.max_await), self._stream.alive
        except PyMongoError as error:
            self.close()
            if is_transient(error):
                raise
            raise stream_refused(error) from None


def read_runs(stream: EventStream, end: Position) -> Iterator[Run]:
    """Return all events of the stream up to and including `end`, one server reply at a time.

    Raises StreamError when the stream stalls before its end.
    """
    limit = key_of(end)
    begun_at = stream.clock()
    while True:
        run = stream.next_run()
        if run.keys:
            if run.keys[-1] >= limit:
                yield run.until(bisect_right(run.keys, limit))
                return
            yield run
        if stream.has_passed(end):
            return  # without a further request
        stream.require_progress(begun_at)

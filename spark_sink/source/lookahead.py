"""The events after a planned batch, as far as the planner has read ahead, by their tokens alone.

A batch ends at a cluster time, so that the events of one cluster time stay together, such as those
of a transaction on one shard. The shards of a transaction write it at slightly different cluster
times: on request, `between_transactions` finds an end after all of them
(docs/protocol.md#events).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import TIME_DIGITS
from spark_sink.events.header import fragment_of
from spark_sink.events.positions import AtTime, Position, Token, key_of, time_of
from spark_sink.stream.event_stream import EventStream

FIRST_EVENT_TIMEOUT = 0.5
"""Seconds that a call waits for a first event."""
SAMPLE_SECONDS = 0.02
"""Seconds for which a stream that is not idle is sampled: its events wait as long for a commit."""
SAMPLE_SIZE = 500
"""The most events of a sample."""
IDLE_AFTER = 0.02
"""Seconds after which a stream without a further event is idle."""
# Seconds, of cluster time or on the clock, after which no more of a transaction is awaited.
_QUIET = 1


class Lookahead:
    """The first `tokens` after the planned batch, which a cursor has returned.

    Requests may raise StreamError.

    Args:
        cursor: the events, with their tokens and the fields of transactions.
        clock: seconds.
    """

    def __init__(self, cursor: EventStream, clock: Callable[[], float]) -> None:
        self._cursor = cursor
        self._clock = clock
        self.tokens: deque[Token] = deque()
        self.is_idle = False
        """Whether the stream had no further event at the last request."""
        self.is_in_transaction = False
        """Whether the last event belongs to a transaction."""
        self._is_within_event = False  # the cursor is between fragments of an event

    @property
    def position(self) -> Token | None:
        """How far the stream was read; None before the server has named a position."""
        return self._cursor.position

    @property
    def quiet_after(self) -> Timestamp | None:
        """The cluster time before which no event follows the batch.

        None if an event after the batch is known, or if no position of the stream is.
        """
        if self.tokens or self._is_within_event or self.position is None:
            return None
        return self.position.cluster_time

    def close(self) -> None:
        """Kill the cursor; a later read opens another one."""
        self._cursor.close()

    def read_sample(self, wanted: int, patience: float = FIRST_EVENT_TIMEOUT) -> None:
        """Read until the stream is idle, the time is over, or there are `wanted` events.

        Wait for the first event for `patience` seconds, and then sample for SAMPLE_SECONDS.
        """
        tokens, cursor, begun_at = self.tokens, self._cursor, self._clock()
        until = begun_at + SAMPLE_SECONDS
        self.is_idle = False
        while len(tokens) < wanted and not self.is_idle:
            is_first = not tokens
            cursor.max_await = patience if is_first else IDLE_AFTER
            has_read, now = self._read(), self._clock()
            if is_first:
                until = now + SAMPLE_SECONDS
            if has_read and now >= until and self._spans_several_times:
                return
            if not has_read:
                if not tokens and now - begun_at >= patience:
                    return
                self.is_idle = bool(tokens)
                cursor.require_progress(begun_at)

    def read_up_to(self, wanted: int, stop: AtTime | None) -> None:
        """Read until there are `wanted` events, the stream is idle, or beyond `stop`."""
        begun_at, self.is_idle = self._clock(), False
        while len(self.tokens) < wanted and not (self.is_idle or self._passes(stop)):
            if not self._read():
                self.is_idle = stop is None or self._cursor.has_passed(stop)
                self._cursor.require_progress(begun_at)

    def cut(self, most: int | None, stop: AtTime | None) -> tuple[Position, int]:
        """Drop the events of a batch of about `most`; return its end and their number.

        Where the stream is idle, it ends at the stream's position.
        """
        tokens = self.tokens
        last = tokens[-1] if most is None else tokens[min(most, len(tokens) - 1)]
        if stop is not None and last.data > key_of(stop):
            return stop, self._drop_through(key_of(stop))
        if self.is_idle:
            reached, end = self.position, tokens[-1]
            if reached is None or reached.cluster_time <= end.cluster_time:
                return end, self._drop_through(end.data)
            beyond = AtTime(reached.cluster_time)
            return beyond, self._drop_through(key_of(beyond))
        while not self._spans_several_times:  # all events of one cluster time are one batch
            if not self._read():
                return tokens[-1], self._drop_through(tokens[-1].data)
            last = tokens[-1]
        if last.cluster_time == tokens[0].cluster_time:
            last = next(token for token in tokens if token.cluster_time > last.cluster_time)
        between = AtTime(last.cluster_time)
        return between, self._drop_through(key_of(between))

    def _read(self) -> bool:
        """Read a reply; False if the stream is idle, but never within a split event."""
        run, begun_at = self._cursor.next_run(), self._clock()
        while not run.keys and self._is_within_event:
            self._cursor.require_progress(begun_at)
            run = self._cursor.next_run()
        if not run.keys:
            return False
        number, count = fragment_of(run.events[-1]) or (0, 0)
        self._is_within_event = number < count
        heads = (e for e in reversed(run.events) if (fragment_of(e) or (1, 1))[0] == 1)
        if (head := next(heads, None)) is not None:  # only an event's first fragment names it
            self.is_in_transaction = _transaction_of(head) is not None
        self.tokens.extend(map(Token.of, run.events))
        return True

    def _drop_through(self, through: str) -> int:
        """Drop the events up to a key, and return how many they are."""
        dropped = 0
        while self.tokens and self.tokens[0].data <= through:
            self.tokens.popleft()
            dropped += 1
        return dropped

    def _passes(self, stop: AtTime | None) -> bool:
        """Whether the last event comes after a stop."""
        return stop is not None and bool(self.tokens) and self.tokens[-1].data > key_of(stop)

    @property
    def _spans_several_times(self) -> bool:
        return self.tokens[0].data[:TIME_DIGITS] != self.tokens[-1].data[:TIME_DIGITS]


def between_transactions(
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


def _transaction_of(event: bytes) -> tuple[bytes, int] | None:
    """Return the identity of an event's transaction; None outside of transactions."""
    document = RawBSONDocument(event)
    session, number = document.get("lsid"), document.get("txnNumber")
    return None if session is None or number is None else (bytes(session.raw), int(number))

"""Ends of micro-batches that do not cut a transaction.

The shards of a transaction write it to their oplogs at slightly different cluster times, so that
the end of a batch may lie between its events (docs/protocol.md#events).
"""

from __future__ import annotations

from collections.abc import Callable

from bson.raw_bson import RawBSONDocument

from spark_sink.events.positions import AtTime, Position, Token, time_of
from spark_sink.stream.event_stream import EventStream

# Seconds after which no more of a transaction is awaited: of cluster time, or on the clock.
_QUIET = 1


def transaction_of(event: RawBSONDocument) -> tuple[bytes, int] | None:
    """Return the identity of an event's transaction; None outside of transactions."""
    session, number = event.get("lsid"), event.get("txnNumber")
    return None if session is None or number is None else (bytes(session.raw), int(number))


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
    found, passed, current = end, 0, None
    while True:
        event = stream.next()
        if event is None:
            since, reached = time_of(found), stream.position
            moved = (
                0 if since is None or reached is None else reached.cluster_time.time - since.time
            )
            if moved > _QUIET or clock() - begun_at >= _QUIET:
                return found, passed
            continue
        token, transaction = Token(dict(event["_id"])), transaction_of(event)
        if transaction is None and "splitEvent" in event:  # only the first fragment names it
            transaction = current
        if not passed and transaction is None:
            return end, 0
        is_other = passed and (transaction is None or transaction != current)
        if is_other and token.cluster_time != time_of(found):  # no cluster time is divided
            return AtTime(token.cluster_time), passed
        found, current, begun_at = token, transaction, clock()
        passed += 1

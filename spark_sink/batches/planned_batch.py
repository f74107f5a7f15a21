"""What the planner needs and returns: requests to the cluster, and a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bson.timestamp import Timestamp

from spark_sink.events.positions import AtTime, Position
from spark_sink.stream.event_stream import StreamCursor
from spark_sink.stream.router_client import Shard


@dataclass(frozen=True)
class ClusterAccess:
    """The planner's requests to the cluster. All may raise StreamError or PyMongoError.

    Args:
        watch: opens a stream of tokens after a position.
        newest: about the newest cluster time.
        present: a cluster time at or after all finished writes.
        beginning: where a query without a start option begins.
        shards: all shards; None if they cannot be listed.
    """

    watch: Callable[[Position], StreamCursor]
    newest: Callable[[], Timestamp]
    present: Callable[[], Timestamp]
    beginning: Callable[[], AtTime]
    shards: Callable[[], list[Shard] | None]


@dataclass(frozen=True)
class PlannedBatch:
    """A batch: its ends, its number of events if known, a time before which it has none."""

    start: Position
    end: Position
    events: int | None = None
    idle_until: Timestamp | None = None

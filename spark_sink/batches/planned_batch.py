"""What the planner needs and returns: requests to the cluster, and a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bson.timestamp import Timestamp

from spark_sink.events.positions import AtTime, Position, is_after
from spark_sink.stream.event_stream import StreamCursor
from spark_sink.stream.router_client import Shard

# A batch of no more events is read from the merged stream at once, which costs less than starting a
# task and opening a stream for each shard.
_SMALL_EVENTS = 5000


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
    """A batch: start, end, number of events if known, a time before which it has no event."""

    start: Position
    end: Position
    events: int | None = None
    idle_until: Timestamp | None = None

    @property
    def first(self) -> Position:
        """Where reading begins: the start, or a later position before which there is no event."""
        idle = None if self.idle_until is None else AtTime(self.idle_until)
        return self.start if idle is None or not is_after(idle, self.start) else idle

    @property
    def is_small(self) -> bool:
        """Whether the batch is read from the merged stream at once."""
        return self.events is not None and self.events <= _SMALL_EVENTS

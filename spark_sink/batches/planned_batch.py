"""What the planner needs and returns: the limits of batches, requests to the cluster, a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bson.timestamp import Timestamp

from spark_sink.events.positions import AtTime, Position
from spark_sink.stream.event_stream import StreamCursor
from spark_sink.stream.router_client import Shard


@dataclass(frozen=True)
class BatchLimits:
    """How a batch is limited and divided; None and 0 are no limit.

    Args:
        max_bytes: of a batch.
        events_per_task: how many a task should read.
        in_total_order: tasks read ranges of the merged stream, never single shards.
        keeps_transactions: a batch ends between transactions; the planner opens a further cursor.
        idle_advance: seconds of cluster time that the offset of an idle stream may stay behind.
    """

    max_bytes: int | None = None
    events_per_task: int = 0
    in_total_order: bool = False
    keeps_transactions: bool = False
    idle_advance: float = 21_600.0


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

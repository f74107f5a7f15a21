"""What planning needs and yields: limits of batches, requests to the cluster, a planned batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bson.timestamp import Timestamp

from spark_sink.positions import AtTime, Position
from spark_sink.router_client import Shard
from spark_sink.watched_stream import WatchedStream


@dataclass(frozen=True)
class Limits:
    """How a batch is sized and shared; None and 0 are no limit.

    max_bytes: of a batch, beside the events that Spark asks for; events_per_task: how many a task
    should read; in_total_order: tasks read the merged stream in stretches, never shards' parts;
    idle_advance: seconds of cluster time that the offset of a quiet stream may stay behind.
    """

    max_bytes: int | None = None
    events_per_task: int = 0
    in_total_order: bool = False
    idle_advance: float = 21_600.0


@dataclass(frozen=True)
class Cluster:
    """What the planner asks of the cluster. All may raise StreamError or PyMongoError.

    watch: opens a stream of tokens after a position; newest: about the newest cluster time;
    present: a cluster time that no finished write lies behind; beginning: where a query without a
    start option begins; shards: all of them, None where they cannot be listed.
    """

    watch: Callable[[Position], WatchedStream]
    newest: Callable[[], Timestamp]
    present: Callable[[], Timestamp]
    beginning: Callable[[], AtTime]
    shards: Callable[[], list[Shard] | None]


@dataclass(frozen=True)
class PlannedBatch:
    """A batch as it was planned: its ends, how many events it may have, what it need not read.

    events: None for a batch of unknown size; quiet_until: no event lies before it.
    """

    start: Position
    end: Position
    events: int | None = None
    quiet_until: Timestamp | None = None

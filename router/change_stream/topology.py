"""Topology changes in the change stream on ``config.shards`` (docs/design.md#topology)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import bson
from bson.timestamp import Timestamp

from router.change_stream.resume_token import cluster_time_of

_DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class ShardAdded:
    """Shard ``shard`` at ``host`` ("rs/h1:p,h2:p") belongs to the cluster from ``at`` on.

    ``inserted``: its document did not exist before, so any earlier shard of that name has left.
    """

    shard: str
    host: str
    at: Timestamp
    inserted: bool = True


@dataclass(frozen=True, slots=True)
class ShardRemoved:
    """Shard ``shard`` no longer belongs to the cluster from ``at`` on."""

    shard: str
    at: Timestamp


@dataclass(frozen=True, slots=True)
class ShardDraining:
    """Whether shard ``shard`` is about to leave; on 6.0 the last event that a stream has for it."""

    shard: str
    draining: bool


TopologyChange = ShardAdded | ShardRemoved | ShardDraining


def topology_changes(events: Iterable[tuple[bytes, bytes]]) -> list[TopologyChange]:
    """Return the topology changes in the config server's events, given as (sort key, BSON).

    Replacements count as additions, because the shard may have moved to another host. In-place
    updates (states, members that join or leave) do not affect a stream, since members and primaries
    are monitored elsewhere. The exception is draining, because the later removal may not produce an
    event: on 6.0 it is a plain applyOps command, which no change stream unwinds
    (docs/protocol.md#sharded-cluster).
    """
    changes: list[TopologyChange] = []
    for key, raw in events:
        event: dict[str, Any] = bson.decode(raw)
        at = cluster_time_of(key)
        match event["operationType"]:
            case "insert" | "replace" as how:
                document = event["fullDocument"]
                inserted = how == "insert"
                changes.append(ShardAdded(document["_id"], document["host"], at, inserted))
            case "update":
                update = event.get("updateDescription", {})
                if _DRAINING in update.get("updatedFields", {}):
                    draining = bool(update["updatedFields"][_DRAINING])
                    changes.append(ShardDraining(event["documentKey"]["_id"], draining))
                elif _DRAINING in update.get("removedFields", ()):
                    changes.append(ShardDraining(event["documentKey"]["_id"], draining=False))
            case "delete":
                changes.append(ShardRemoved(event["documentKey"]["_id"], at))
    return changes


def one_tick_after(time: Timestamp) -> Timestamp:
    """Return the smallest cluster time after ``time``."""
    if time.inc == 0xFFFFFFFF:
        return Timestamp(time.time + 1, 0)
    return Timestamp(time.time, time.inc + 1)

"""What the change stream on ``config.shards`` says (docs/design.md, section 8)."""

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

    ``inserted``: its document was not there before, so a shard of that name has left by then.
    """

    shard: str
    host: str
    at: Timestamp
    inserted: bool = True


@dataclass(frozen=True, slots=True)
class ShardRemoved:
    """Shard ``shard`` belongs to the cluster no more from ``at`` on."""

    shard: str
    at: Timestamp


@dataclass(frozen=True, slots=True)
class ShardDraining:
    """Whether shard ``shard`` is about to leave; on 6.0 the last that a stream tells of it."""

    shard: str
    draining: bool


TopologyChange = ShardAdded | ShardRemoved | ShardDraining


def topology_changes(events: Iterable[tuple[bytes, bytes]]) -> list[TopologyChange]:
    """Read the config server's events, given as (sort key, BSON).

    Replacements count as additions: the shard may be at another host now. Updates in place
    (states, members that come and go) change nothing for a stream: members and primaries are
    followed elsewhere. Draining alone counts, since the removal that it leads to need not show: a
    6.0 makes it with a plain applyOps command, which no change stream unwinds (docs/protocol.md,
    section 6).
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

"""The cluster's shard list, as the config server has it."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bson.timestamp import Timestamp

from shard_client.cluster_clock import ClusterClock
from shard_client.errors import CommandError, ErrorCode
from shard_client.replica_set.replica_set import parse_hosts
from shard_client.wire.connection import Connection

CONFIG: Final = "config"
"""The target that is the config server (docs/protocol.md#sharded-cluster)."""

_MOST_SHARDS = 100_000


class ShardList(NamedTuple):
    """Host strings by shard id, and the config server's times ``before`` and after the read.

    A change stream that starts at ``before`` misses no change of the list. All changes that the
    list reflects, including removals of shards, happened at ``by`` or earlier. ``before`` is None
    for a list that never changes.
    """

    hosts: Mapping[str, str]
    before: Timestamp | None
    by: Timestamp
    draining: frozenset[str] = frozenset()
    """Ids of the shards that are being removed."""


async def read_shard_list(config: Connection, clock: ClusterClock, timeout: float) -> ShardList:
    """Read the shard list over a connection that has just exchanged a hello.

    The reply, for which ``timeout`` seconds are waited, advances ``clock``. Raises CommandError,
    NetworkError.
    """
    before = _time_of(config.hello)
    command: dict[str, Any] = {
        "find": "shards",
        "batchSize": _MOST_SHARDS,
        "singleBatch": True,
        "readConcern": {"level": "majority", "afterClusterTime": before},
    }
    if clock.document is not None:
        command["$clusterTime"] = clock.document
    reply = await config.command("config", command, timeout=timeout)
    clock.advance(reply.get("$clusterTime"))
    by = _time_of(reply)
    try:
        listed = reply["cursor"]["firstBatch"]
        hosts = {shard["_id"]: shard["host"] for shard in listed}
        for host in hosts.values():
            parse_hosts(host)
        draining = frozenset(shard["_id"] for shard in listed if shard.get("draining"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CommandError(
            ErrorCode.FailedToParse, f"config.shards cannot be read: {error!r}"
        ) from error
    return ShardList(hosts, before, by, draining)


def _time_of(reply: Mapping[str, Any]) -> Timestamp:
    """Return the operation time of a member's reply; raise CommandError if it has none."""
    time = reply.get("operationTime")
    if not isinstance(time, Timestamp):
        raise CommandError(ErrorCode.IllegalOperation, "the config server reports no cluster time")
    return time

"""Opening a merged stream: which shards, from what time (docs/design.md, section 7)."""

import asyncio
from collections.abc import Mapping, Set
from typing import NamedTuple

from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.change_stream.merged_stream import MergedStream
from router.change_stream.remotes import Part
from router.change_stream.request import StreamRequest
from router.change_stream.resume_token import first_key
from router.cursors.limits import StreamLimits
from router.cursors.memory import Memory
from router.cursors.nudge import Nudger
from router.cursors.upstream import Upstream
from shard_client.cluster_clock import next_tick
from shard_client.connection import Connection
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.read_preference import ReadPreference


class Placed(NamedTuple):
    """Remotes that are to be opened, over these connections as far as they are open already."""

    upstream: Upstream
    start_at: Timestamp
    connections: dict[str, Connection]


async def place_upstream(
    request: StreamRequest,
    cluster: Cluster,
    nudger: Nudger,
    limits: StreamLimits,
    memory: Memory,
    parts: Set[Part] = frozenset(),
) -> Placed:
    """Find out which shards ``request`` reads and where it starts.

    ``parts`` are shards to be read also if they have left. Raises CommandError, labelled as mongos
    would, after ``open_timeout`` at the latest; 70
    ShardNotFound when the cluster has no shards.
    """
    deadline = asyncio.get_running_loop().time() + limits.open_timeout
    listed = await cluster.shards(limits.open_timeout)
    shards = listed.hosts
    if not shards and request.passthrough_to_shard is None:
        raise CommandError(ErrorCode.ShardNotFound, "No shards found")
    connections: dict[str, Connection] = {}
    try:
        start_at = request.start_time
        if start_at is None:
            # Each hello tells its shard's time: what was written before now is left out.
            start_at = await present_time(request, shards, cluster, deadline, connections)
        # Those whose leaving is not known left by the time the list was read, not long before.
        known = (each for each in parts if each.until is not None or each.shard not in shards)
        left_by = first_key(next_tick(listed.by))
        removed = sorted(each._replace(until=each.until or left_by) for each in known)
        stream = MergedStream(
            request, shards, start_at=start_at, topology_from=listed.before, removed=removed
        )
        upstream = Upstream(stream, request, cluster, nudger, limits, memory)
    except BaseException:
        abort_all(connections)
        raise
    return Placed(upstream, start_at, connections)


async def present_time(
    request: StreamRequest,
    shards: Mapping[str, str],
    cluster: Cluster,
    deadline: float,
    connections: dict[str, Connection],
) -> Timestamp:
    """Return a time after all that the request's shards have written, over new ``connections``.

    Raises CommandError, labelled as mongos would, at the loop's time ``deadline`` at the latest.
    """
    only = request.passthrough_to_shard
    asked = {shard: host for shard, host in shards.items() if only in (None, shard)}
    left = max(0.0, deadline - asyncio.get_running_loop().time())
    await connect_all(cluster, asked, ReadPreference.of(request.read_preference), left, connections)
    return next_tick(cluster.clock.time or Timestamp(0, 0))


def abort_all(connections: Mapping[str, Connection]) -> None:
    """Close connections that nobody has taken over."""
    for connection in connections.values():
        connection.abort()


async def connect_all(
    cluster: Cluster,
    shards: Mapping[str, str],
    preference: ReadPreference,
    timeout: float,
    connections: dict[str, Connection],
) -> None:
    """Connect to all shards at once, into ``connections``, within ``timeout`` seconds.

    ``shards`` maps ids to host strings: one may have been removed since the list was read.
    """

    async def connect(shard: str, host: str) -> None:
        dialer = cluster.dialer(shard, host, preference=preference)
        connections[shard] = await dialer.connect(timeout)

    try:
        async with asyncio.TaskGroup() as group:
            for shard, host in shards.items():
                group.create_task(connect(shard, host), name=f"connect {shard}")
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        if isinstance(first, CommandError):
            raise first.with_change_stream_label() from first
        raise

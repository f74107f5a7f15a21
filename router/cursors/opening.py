"""Opening a merged stream: which shards, from what time (docs/design.md, section 7)."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.change_stream.merged_stream import MergedStream
from router.change_stream.request import AfterToken, AtTime, StreamRequest
from router.cursors.limits import StreamLimits
from router.cursors.nudge import Nudger
from router.cursors.upstream import Upstream, read_mode
from shard_client.cluster_clock import next_tick
from shard_client.connection import Connection
from shard_client.errors import CommandError


class Closing(Protocol):
    """What takes time to close."""

    async def close(self) -> None:
        """Close, within bounded time."""
        ...


async def open_upstream(
    request: StreamRequest,
    cluster: Cluster,
    nudger: Nudger,
    limits: StreamLimits,
    discard: Callable[[Closing], None],
) -> Upstream:
    """Return the opened remotes of ``request``.

    What was half open when opening failed or was cancelled goes to ``discard``. Raises
    CommandError, labelled as mongos would, after ``open_timeout`` at the latest.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.open_timeout
    shards, read_at = await cluster.shards(limits.open_timeout)
    connections: dict[str, Connection] = {}
    try:
        if isinstance(request.start, AtTime):
            start_at = request.start.time
        elif isinstance(request.start, AfterToken):
            start_at = request.start.token.cluster_time
        else:
            # Each hello tells its shard's time: what was written before now is left out.
            only = request.passthrough_to_shard
            asked = [shard for shard in shards if only in (None, shard)]
            left = max(0.0, deadline - loop.time())
            await connect_all(cluster, asked, read_mode(request), left, connections)
            start_at = next_tick(cluster.clock.time or Timestamp(0, 0))
        stream = MergedStream(
            request,
            shards,
            start_at=start_at,
            topology_from=read_at,
            token_version=cluster.token_version,
        )
        upstream = Upstream(stream, request, cluster, nudger, limits)
    except BaseException:
        for connection in connections.values():
            connection.abort()
        raise
    try:
        await upstream.open(connections, max(0.0, deadline - loop.time()))
    except BaseException:
        discard(upstream)
        raise
    return upstream


async def connect_all(
    cluster: Cluster,
    shards: Iterable[str],
    mode: str,
    timeout: float,
    connections: dict[str, Connection],
) -> None:
    """Connect to all shards at once, into ``connections``, within ``timeout`` seconds."""

    async def connect(shard: str) -> None:
        dialer = cluster.dialer(shard, mode=mode)
        connections[shard] = await dialer.connect(timeout)

    try:
        async with asyncio.TaskGroup() as group:
            for shard in shards:
                group.create_task(connect(shard), name=f"connect {shard}")
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        if isinstance(first, CommandError):
            raise first.with_change_stream_label() from first
        raise

"""Preparing a merged stream: choosing its shards and start time
(docs/design.md#opening-and-resuming)."""

import asyncio
from collections.abc import Mapping, Set
from typing import NamedTuple, Protocol

from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster, ShardList
from router.change_stream.merged_stream import MergedStream
from router.change_stream.remotes import ShardSpan
from router.change_stream.request import StreamRequest
from router.change_stream.resume_token import first_key
from router.memory import Memory
from router.stream_settings import StreamSettings
from router.streams.nudge_sender import NudgeSender
from router.streams.runner import StreamRunner
from shard_client.cluster_clock import next_tick
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.replica_set.read_preference import ReadPreference
from shard_client.wire.connection import Connection


class PreparedStream(NamedTuple):
    """A stream runner that has not been opened yet, and the time at which its shards start."""

    runner: StreamRunner
    start_at: Timestamp


class Now(NamedTuple):
    """A time after all writes that the shards had made, and the shard list read just before it."""

    time: Timestamp
    listed: ShardList


class Clock(Protocol):
    """A source of the current cluster time."""

    async def now(self, request: StreamRequest) -> Now:
        """Return a time after all writes that the request's shards made before this call.

        Writes made after the return have that time or a later one. Raises CommandError, labelled as
        mongos labels it.
        """
        ...


async def prepare_stream(
    request: StreamRequest,
    cluster: Cluster,
    clock: Clock,
    nudge_sender: NudgeSender,
    limits: StreamSettings,
    memory: Memory,
    spans: Set[ShardSpan] = frozenset(),
) -> PreparedStream:
    """Determine the shards that ``request`` reads and its start time.

    ``spans`` are shard spans to read even if the shards have left. Raises CommandError, labelled as
    mongos labels it, after ``open_timeout`` at the latest; 70 ShardNotFound if the cluster has no
    shards.
    """
    if request.passthrough_to_shard is not None:
        limits = limits.for_one_shard()
    start_at = request.start_time
    if start_at is None:
        start_at, listed = await clock.now(request)
    else:
        listed = await cluster.shards(limits.open_timeout)
    shards = listed.hosts
    if not shards and request.passthrough_to_shard is None:
        raise no_shards()
    # A listed shard without a known end is still there. A missing shard without a known end left
    # by the time the list was read, not long before.
    known = (each for each in spans if each.until is not None or each.shard not in shards)
    left_by = first_key(next_tick(listed.by))
    removed = sorted(each._replace(until=each.until or left_by) for each in known)
    stream = MergedStream(
        request,
        shards,
        start_at=start_at,
        topology_from=listed.before,
        removed=removed,
        draining=listed.draining,
        sizes=limits.blocks,
    )
    return PreparedStream(
        StreamRunner(stream, request, cluster, nudge_sender, limits, memory), start_at
    )


def no_shards() -> CommandError:
    """Return the error for a cluster without shards."""
    return CommandError(ErrorCode.ShardNotFound, "No shards found")


def give_back_all(cluster: Cluster, connections: Mapping[str, Connection]) -> None:
    """Return connections to the cluster's pool."""
    for connection in connections.values():
        cluster.release(connection)


async def connect_all(
    cluster: Cluster,
    shards: Mapping[str, str],
    preference: ReadPreference,
    timeout: float,
    connections: dict[str, Connection],
) -> None:
    """Connect to all shards concurrently within ``timeout`` seconds; fill ``connections``.

    ``shards`` maps ids to host strings, since a shard may have been removed since the list was
    read. Raises CommandError, labelled as mongos labels it.
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

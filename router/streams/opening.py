"""What a stream opens: which shards, from which time, and with which commands
(docs/design.md#opening-and-resuming)."""

from collections.abc import Mapping, Set

from router.catalog.cluster import Cluster
from router.merge.actions import OpenRemote, ReopenRemote
from router.merge.membership import ShardSpan
from router.merge.merged_stream import MergedStream
from router.request.shard_commands import shard_command, topology_command
from router.request.stream_request import StreamRequest
from router.stream_settings import StreamSettings
from router.streams.cluster_time import ClusterTimeFetcher, no_shards
from shard_client.bson.resume_token import first_key
from shard_client.cluster_clock import next_tick
from shard_client.remote_cursor.remote_cursor import Opening

_Command = tuple[str, Mapping[str, object]]


async def merged_stream(
    request: StreamRequest,
    cluster: Cluster,
    cluster_time: ClusterTimeFetcher,
    limits: StreamSettings,
    spans: Set[ShardSpan] = frozenset(),
) -> MergedStream:
    """Return the merged stream of ``request``, with its shards and its start.

    ``spans`` are those of the stream that its client has left. Raises CommandError, labelled as
    mongos labels it, after ``open_timeout`` at the latest; 70 ShardNotFound if the cluster has no
    shards.
    """
    start_at = request.start_time
    if start_at is None:
        start_at, listed = await cluster_time.now(request)
    else:
        listed = await cluster.shards(limits.open_timeout)
    shards = listed.hosts
    if not shards and request.passthrough_to_shard is None:
        raise no_shards()
    # A listed shard without a known end is still there. A missing shard without a known end left
    # by the time the list was read, not long before.
    left_by = first_key(next_tick(listed.by))
    known = (
        each._replace(until=left_by) if each.until is None and each.shard not in shards else each
        for each in spans
    )
    return MergedStream(
        request,
        shards,
        start_at=start_at,
        topology_from=listed.before,
        spans=sorted(known, key=lambda each: each[:3]),
        draining=listed.draining,
        sizes=limits.blocks,
    )


def opening_of(request: StreamRequest, action: OpenRemote | ReopenRemote) -> Opening:
    """Return a function that builds a remote's command: from its start, or after a watermark."""
    first = action.start_at if isinstance(action, OpenRemote) else action.start_after
    topology = isinstance(action, OpenRemote) and action.topology

    def opening(pbrt: bytes | None) -> _Command:
        start = first if pbrt is None else pbrt
        return topology_command(start) if topology else shard_command(request, start)

    return opening

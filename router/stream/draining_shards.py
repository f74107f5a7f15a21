"""Shards that drain: whether they have left (docs/design.md#topology)."""

import asyncio
import math
from collections.abc import Callable

import structlog

from router.catalog.cluster import Cluster
from router.stream.merge.merged_stream import MergedStream
from shard_client.errors import CommandError

log = structlog.get_logger()


async def watch_draining(
    stream: MergedStream, cluster: Cluster, interval: float, applied: Callable[[], None]
) -> None:
    """Read the shard list while shards drain, and remove those that have left from ``stream``.

    A change stream need not report a removal (docs/protocol.md#sharded-cluster). All streams of the
    process read the list at the same moments, ``interval`` seconds apart, so that one read serves
    them all. ``applied`` is called after each.
    """
    membership = stream.membership
    while membership.draining and stream.error is None:
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(interval * math.floor(now / interval + 1) - now)
        try:
            listed = await cluster.shards()
        except CommandError as error:
            log.info("cannot tell whether a draining shard has left", error=str(error))
            continue
        if stream.error is None:
            membership.apply_list(listed.hosts.keys(), listed.draining, listed.by)
            applied()

"""Detecting that a draining shard has left.

A change stream need not report it (docs/protocol.md#sharded-cluster).
"""

import asyncio
import math
from collections.abc import AsyncIterator

import structlog

from router.catalog.cluster import Cluster
from router.merge.actions import Action
from router.merge.merged_stream import MergedStream
from shard_client.errors import CommandError

log = structlog.get_logger()


async def watch_draining(
    stream: MergedStream, cluster: Cluster, interval: float
) -> AsyncIterator[list[Action]]:
    """Read the shard list every ``interval`` seconds while a shard of ``stream`` drains.

    Yield the actions for the shards that have left, after each read. All streams of the process
    read the list at the same moments, so that one read serves them all.
    """
    loop = asyncio.get_running_loop()
    while stream.draining and stream.error is None:
        now = loop.time()
        await asyncio.sleep(interval * math.floor(now / interval + 1) - now)
        try:
            listed = await cluster.shards()
        except CommandError as error:
            log.info("cannot tell whether a draining shard has left", error=str(error))
            continue
        yield stream.shards_listed(listed.hosts.keys(), listed.draining, listed.by)

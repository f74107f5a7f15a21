"""Detecting that a draining shard has left.

A change stream need not report it (docs/protocol.md#sharded-cluster).
"""

import asyncio
import math
from collections.abc import Callable

import structlog

from router.catalog.cluster import Cluster
from router.change_stream.actions import Action
from router.change_stream.merged_stream import MergedStream
from shard_client.errors import CommandError

log = structlog.get_logger()


class Departures:
    """Reads the shard list every ``interval`` seconds while a shard of ``stream`` drains.

    All streams of the process read it at the same moments, so that one read serves them all.
    ``on_left`` is called after each read with the actions for the shards that have left.
    """

    def __init__(
        self,
        stream: MergedStream,
        cluster: Cluster,
        on_left: Callable[[list[Action]], None],
        interval: float,
    ) -> None:
        self._stream = stream
        self._cluster = cluster
        self._on_left = on_left
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._watching: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Start reading the list if a shard drains; cheap to call."""
        if self._stream.draining and self._watching is None:
            self._watching = self._loop.create_task(self._watch(), name="watch draining shards")

    def close(self) -> None:
        """Stop reading the list."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while self._stream.draining and self._stream.error is None:
            now = self._loop.time()
            await asyncio.sleep(self._interval * math.floor(now / self._interval + 1) - now)
            try:
                listed = await self._cluster.shards()
            except CommandError as error:
                log.info("cannot tell whether a draining shard has left", error=str(error))
                continue
            self._on_left(
                self._stream.shards_listed(listed.hosts.keys(), listed.draining, listed.by)
            )
        self._watching = None

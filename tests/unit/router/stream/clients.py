"""Several clients of one stream on a scripted cluster."""

import asyncio
from typing import Any

from router.cursors.cursor import MergedCursor
from router.cursors.registry import CursorRegistry
from shard_client.errors import CommandError
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, stream

BIG = 70_000
"""The size of an event that fills one block of the log."""


async def opened(registry: CursorRegistry, count: int, *start: Any, **more: Any) -> list[Any]:
    """Open the same stream ``count`` times concurrently."""
    opening = [registry.open(stream(*start, **more), OWNER) for _ in range(count)]
    return [cursor for cursor, _ in await asyncio.gather(*opening)]


def write(cluster: ScriptedCluster, *seconds: int, size: int = 0) -> None:
    """Write one event a second, on the shards in turn; then all members advance past it."""
    for second in seconds:
        shard = cluster.shards[f"s{second % 3}"]
        shard.insert(second, second, filler="x" * size)
        cluster.noop(second + 1)


def noops(registry: CursorRegistry) -> dict[str, int]:
    """The targets that have got no-op writes, and how many."""
    counts = {target: load.noop_commands for target, load in registry.loads.items()}
    return {target: count for target, count in counts.items() if count}


def fail_remote(cursor: MergedCursor, error: CommandError) -> None:
    """Fail the first shard's remote of the stream that a cursor reads."""
    running = cursor.running_stream
    assert running is not None
    remote = running._remotes[1]
    running._remote_failed(remote, remote.cursor, error)

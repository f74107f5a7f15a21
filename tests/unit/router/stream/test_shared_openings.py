"""Openings of one stream by several clients at once: refused, unreachable, closed, cancelled."""

import asyncio

from shard_client.errors import CommandError
from tests.doubles.scripted_cluster import (
    OWNER,
    REMOTES,
    ScriptedCluster,
    read_until,
    stream,
)
from tests.harness.until import PATIENCE, until
from tests.unit.router.stream.clients import write


async def test_a_refusal_fails_all_concurrent_openings(cluster: ScriptedCluster):
    registry = cluster.registry()
    cluster.shards["s1"].fail("aggregate", 40324, "Unrecognized pipeline stage name: '$nope'")
    opening = [registry.open(stream(), OWNER) for _ in range(3)]
    for result in await asyncio.gather(*opening, return_exceptions=True):
        assert isinstance(result, CommandError)
        assert result.code == 40324
    await registry.open(stream(), OWNER)


async def test_an_unreachable_config_server_fails_all_openings_in_time(
    cluster: ScriptedCluster,
):
    """One after another, the openings would take twice as long as the test waits."""
    registry = cluster.registry(open_timeout=0.6)
    await cluster.config.stop()
    opening = [registry.open(stream(second), OWNER) for second in range(100, 200)]
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*opening, return_exceptions=True)
    assert all(isinstance(result, CommandError) for result in results)


async def test_closing_fails_pending_openings(cluster: ScriptedCluster):
    registry = cluster.registry(close_timeout=0.5)
    cluster.shards["s1"].hang.add("aggregate")
    opening = [asyncio.create_task(registry.open(stream(), OWNER)) for _ in range(3)]
    await until(lambda: cluster.shards["s1"].commands["aggregate"])
    await registry.close()
    for result in await asyncio.gather(*opening, return_exceptions=True):
        assert isinstance(result, CommandError)
        assert result.labels == {"ResumableChangeStreamError"}


async def test_a_cancelled_opening_does_not_affect_others(cluster: ScriptedCluster):
    registry = cluster.registry(share_linger=0.01)
    first, second = (asyncio.create_task(registry.open(stream(), OWNER)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    cursor, _ = await second
    write(cluster, 101)
    assert await read_until(cursor, 1) == [101]
    for turns in range(0, 80, 3):
        opening = asyncio.create_task(registry.open(stream(None, let={"a": turns}), OWNER))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        (result,) = await asyncio.gather(opening, return_exceptions=True)
        if isinstance(result, tuple):
            registry.kill([result[0].cursor_id], OWNER)
    await until(lambda: cluster.open_cursors == REMOTES)

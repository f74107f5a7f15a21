"""How long events wait for the low watermark, and clients for their turn."""

import asyncio

from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, read_until, stream
from tests.harness.until import until


async def test_events_that_the_low_watermark_holds_back_are_measured(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(noop=False)
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.noop(100)
    waits = registry.loads.low_watermark_waits
    begun = asyncio.get_running_loop().time()
    cluster.shards["s1"].insert(101, 1)
    reading = asyncio.create_task(read_until(cursor, 1))
    await until(lambda: registry.loads.of("s1").events == 1)
    assert sum(waits.counts) == 0, "the other shard may still have an earlier event"
    cluster.noop(102)
    assert await reading == [1]
    assert sum(waits.counts) == 1
    assert 0 < waits.total <= asyncio.get_running_loop().time() - begun


async def test_the_reply_to_a_waiting_client_is_measured_once(cluster: ScriptedCluster) -> None:
    registry = cluster.registry()
    cursor, _ = await registry.open(stream(), OWNER)
    delays = registry.loads.reply_delays
    assert (await cursor.next_batch(None, 0.001)).events == []
    assert sum(delays.counts) == 0, "no event has woken the client"
    reading = asyncio.create_task(read_until(cursor, 1))
    await asyncio.sleep(0)
    cluster.shards["s1"].insert(101, 1)
    cluster.noop(102)
    assert await reading == [1]
    assert sum(delays.counts) >= 1
    assert delays.total >= 0

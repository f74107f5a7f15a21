"""The remotes behind a merged stream: failures, new shards, budgets, no-op writes."""

import asyncio
from typing import Any

import pytest
from bson import Timestamp

from shard_client.errors import RESUMABLE_LABEL, CommandError
from tests.doubles.scripted_cluster import (
    OWNER,
    ScriptedCluster,
    numbers,
    read_nothing_until,
    read_until,
    stream,
)
from tests.harness.until import PATIENCE, until


@pytest.mark.parametrize("away", ["config", "s0"])
async def test_an_open_stream_outlasts_an_outage(cluster: ScriptedCluster, away: str):
    """It does so for longer than ``failure_timeout``: a client that resumed would wait as long."""
    registry = cluster.registry(failure_timeout=0.1, connect_timeout=0.1, prefetch_time=0.1)
    cursor, _ = await registry.open(stream(), OWNER)
    member = cluster.config if away == "config" else cluster.shards[away]
    port = member.port
    await member.stop()
    member.cursors.clear()
    cluster.shards["s1"].insert(101, 1)
    cluster.noop(102)

    def remote() -> dict[str, Any]:
        (described,) = registry.describe_streams()
        return next(each for each in described["remotes"] if each["target"] == away)

    await read_nothing_until(cursor, lambda: remote().get("failingMillis", 0) > 300)
    await read_nothing_until(cursor, lambda: next(registry.describe_streams())["waiting"])
    assert next(registry.describe_streams())["slowestShard"] == away
    assert remote()["state"] == "failing"
    assert remote()["error"]
    # A client that asks now and then is not late: there is nothing to read.
    await until(lambda: not next(registry.describe_streams())["waitedFor"])
    assert registry.describe_cursors(1, 1e6)[0]["behindSeconds"] < 10
    await member.start(port)
    cluster.noop(104)
    assert await read_until(cursor, 1) == [1]
    assert remote()["reopened"] == 1


async def test_a_stream_of_one_shard_fails_with_it_retriably(cluster: ScriptedCluster):
    registry = cluster.registry(failure_timeout=0.2, connect_timeout=0.1)
    cursor, _ = await registry.open(stream(**{"$_passthroughToShard": {"shard": "s0"}}), OWNER)
    await cluster.shards["s0"].stop()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(CommandError) as failure:  # noqa: PT012
            while True:
                await cursor.next_batch(None, PATIENCE)
    assert RESUMABLE_LABEL in failure.value.labels


async def test_a_stream_of_one_shard_reads_little_ahead(cluster: ScriptedCluster):
    shard = cluster.shards["s0"]
    for n in range(1000):
        shard.insert(Timestamp(101, n + 1), n, filler="x" * 1000)
    registry = cluster.registry(one_shard_batch_bytes=20_000)
    cursor, _ = await registry.open(stream(**{"$_passthroughToShard": {"shard": "s0"}}), OWNER)
    shared = cursor.running_stream
    assert shared is not None
    first = await cursor.next_batch(None, PATIENCE)
    assert len(first.events) < 150, "the first batch has 101 events, whatever their size"
    (remote,) = shared._remotes
    await until(lambda: remote.cursor is not None and remote.cursor.wants_pause)
    assert shared.merged.all_buffered_bytes < 150_000
    numbers_read = [*numbers(first), *await read_until(cursor, 1000 - len(first.events))]
    assert numbers_read == list(range(1000))


async def test_a_member_that_is_still_scanning_is_not_probed(cluster: ScriptedCluster):
    """Before its first reply the member may be scanning, and a second scan would slow it down."""
    registry = cluster.registry(noop_writes=True, await_quiet=20.0, probe_worth=0.0)
    slow = cluster.shards["s1"]
    slow.slow["getMore"] = 0.15
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.shards["s0"].insert(105, 1)
    await until(lambda: slow.commands["appendOplogNote"])
    assert slow.commands["aggregate"] == 1
    assert await read_until(cursor, 1) == [1]


async def test_a_closed_stream_holds_no_events_and_leaves_no_task(cluster: ScriptedCluster):
    """It is part of cycles, so the collector frees it much later, or never in an idle process."""
    registry = cluster.registry(share_linger=0.0)
    cursor, _ = await registry.open(stream(), OWNER)
    running = cursor.running_stream
    assert running is not None
    cluster.shards["s0"].insert(101, 1)
    cluster.noop(102)
    cluster.shards["s1"].insert(103, 2)
    await until(lambda: next(registry.describe_streams())["bufferedBytes"])
    assert await read_until(cursor, 1) == [1]
    tasks = set(running._tasks)
    assert tasks
    registry.kill([cursor.cursor_id])
    await registry.close()
    assert all(task.done() for task in tasks)
    assert running.merged.held_bytes == 0


async def test_events_that_the_low_watermark_holds_back_are_measured(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(noop_writes=False)
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.noop(100)
    waits = registry.streams.resources.loads.low_watermark_waits
    begun = asyncio.get_running_loop().time()
    cluster.shards["s1"].insert(101, 1)
    reading = asyncio.create_task(read_until(cursor, 1))
    await until(lambda: registry.streams.resources.loads.of("s1").events == 1)
    assert sum(waits.counts) == 0, "the other shard may still have an earlier event"
    cluster.noop(102)
    assert await reading == [1]
    assert sum(waits.counts) == 1
    assert 0 < waits.total <= asyncio.get_running_loop().time() - begun

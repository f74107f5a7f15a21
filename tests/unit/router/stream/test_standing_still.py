"""Members that answer without their watermark advancing, and members that are unreachable."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest
from bson import Timestamp

from router.stream.read_scheduler import ReadScheduler
from tests.doubles.scripted_cluster import LIMITS, OWNER, ScriptedCluster, read_until, stream
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import until

NUDGING = replace(LIMITS, noop=True, watermark_timeout=0.2)


async def second_member(cluster: ScriptedCluster) -> tuple[ScriptedMember, ScriptedMember]:
    """Add a secondary to shard s1; return both members."""
    old = cluster.shards["s1"]
    new = await ScriptedMember("rs1", primary=False).start()
    cluster.extra.append(new)
    new.noop(99)
    old.hosts = new.hosts = [f"127.0.0.1:{old.port}", f"127.0.0.1:{new.port}"]
    cluster.config.documents["shards"][1]["host"] = f"rs1/{','.join(old.hosts)}"
    return old, new


async def test_a_partitioned_former_primary_is_abandoned(cluster: ScriptedCluster):
    old, new = await second_member(cluster)
    registry = cluster.registry(NUDGING)
    cursor, _ = await registry.open(stream(), OWNER)
    await until(lambda: old.commands["getMore"])
    old.shows, old.unreplicated, new.primary = Timestamp(99, 1), True, True
    new.insert(105, 5)
    cluster.shards["s0"].insert(106, 6)
    cluster.config.noop(107)
    cluster.shards["s2"].noop(107)
    assert await read_until(cursor, 2) == [5, 6]
    assert new.commands["appendOplogNote"], "the note went to the primary"


async def test_a_single_member_without_progress_is_reopened_and_kept(
    cluster: ScriptedCluster,
):
    registry = cluster.registry(NUDGING)
    cursor, _ = await registry.open(stream(), OWNER)
    slow = cluster.shards["s1"]
    await until(lambda: slow.commands["getMore"])
    slow.shows = Timestamp(99, 1)
    cluster.shards["s0"].insert(105, 5)
    assert (await cursor.next_batch(None, 0.5)).events == []
    await until(lambda: slow.commands["aggregate"] >= 2)
    slow.shows = None
    assert await read_until(cursor, 1) == [5]


async def test_without_a_watermark_timeout_a_member_is_kept(cluster: ScriptedCluster):
    registry = cluster.registry(NUDGING, watermark_timeout=0.0)
    cursor, _ = await registry.open(stream(), OWNER)
    slow = cluster.shards["s1"]
    await until(lambda: slow.commands["getMore"])
    slow.shows = Timestamp(99, 1)
    cluster.shards["s0"].insert(105, 5)
    assert (await cursor.next_batch(None, 0.5)).events == []
    assert slow.commands["aggregate"] == 1
    slow.shows = None
    assert await read_until(cursor, 1) == [5]


@pytest.mark.parametrize("away", ["config", "shard"])
async def test_unreachable_members_rarely_get_noops(cluster: ScriptedCluster, away: str):
    registry = cluster.registry(NUDGING, backoff_max=0.5)
    cursor, _ = await registry.open(stream(), OWNER)
    member = cluster.config if away == "config" else cluster.shards["s1"]
    await until(lambda: member.commands["getMore"])
    port = member.port
    await member.stop()
    cluster.shards["s0"].insert(105, 5)
    looks, original = 0, ReadScheduler._write_noops

    def counted(scheduler: ReadScheduler) -> None:
        nonlocal looks
        looks += 1
        original(scheduler)

    patched: Callable[[ReadScheduler], None] = counted
    with patch.object(ReadScheduler, "_write_noops", patched):
        assert (await cursor.next_batch(None, 0.3)).events == []
        looks = 0
        begun = asyncio.get_running_loop().time()
        assert (await cursor.next_batch(None, 1.0)).events == []
        passed = asyncio.get_running_loop().time() - begun
    assert looks <= 10 * passed
    await member.start(port)
    assert await read_until(cursor, 1) == [5]

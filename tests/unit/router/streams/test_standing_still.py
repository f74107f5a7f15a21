"""Members that answer without their promise advancing, and members that are unreachable."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest
from bson import Timestamp

from router.streams.idle_members import IdleMembers
from router.streams.remote import NudgeState, Overdue
from tests.doubles.scripted_cluster import LIMITS, OWNER, ScriptedCluster, read_until, stream
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import until

NUDGING = replace(LIMITS, nudge=True, promise_timeout=0.2)


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


async def test_without_a_promise_timeout_a_member_is_kept(cluster: ScriptedCluster):
    registry = cluster.registry(NUDGING, promise_timeout=0.0)
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
async def test_unreachable_members_are_rarely_nudged(cluster: ScriptedCluster, away: str):
    registry = cluster.registry(NUDGING, backoff_max=0.5)
    cursor, _ = await registry.open(stream(), OWNER)
    member = cluster.config if away == "config" else cluster.shards["s1"]
    await until(lambda: member.commands["getMore"])
    port = member.port
    await member.stop()
    cluster.shards["s0"].insert(105, 5)
    looks, nudge = 0, IdleMembers._nudge

    def counted(idle: IdleMembers) -> None:
        nonlocal looks
        looks += 1
        nudge(idle)

    patched: Callable[[IdleMembers], None] = counted
    with patch.object(IdleMembers, "_nudge", patched):
        assert (await cursor.next_batch(None, 0.3)).events == []
        looks = 0
        begun = asyncio.get_running_loop().time()
        assert (await cursor.next_batch(None, 1.0)).events == []
        passed = asyncio.get_running_loop().time() - begun
    assert looks <= 10 * passed
    await member.start(port)
    assert await read_until(cursor, 1) == [5]


def test_the_patience_doubles_and_resets():
    overdue, past = Overdue(5.0), Timestamp(10, 1)
    overdue.reached(past, now=100.0)
    overdue.reached(Timestamp(20, 1), now=104.0)
    assert not overdue.give_up(105.0)
    assert overdue.give_up(105.1)
    assert not overdue.give_up(115.0)
    assert overdue.give_up(115.2)
    overdue.promised(past)
    assert overdue.waiting, "a promise up to the time does not suffice"
    overdue.promised(Timestamp(10, 2))
    assert not overdue.waiting
    overdue.reached(past, now=200.0)
    assert overdue.give_up(205.1)
    now, pauses = 205.1, []
    for _ in range(6):
        begun = now
        while not overdue.give_up(now):
            now += 0.5
        pauses.append(now - begun)
    assert max(pauses) < 61


def test_without_a_timeout_nothing_is_overdue():
    overdue = Overdue(0.0)
    overdue.reached(Timestamp(10, 1), now=0.0)
    assert not overdue.give_up(1e9)


def test_pauses_between_ineffective_nudges_grow():
    nudge, now, pauses = NudgeState(), 0.0, []
    for _ in range(8):
        nudge.ask(Timestamp(10, 1))
        nudge.done(now)
        pauses.append(nudge.again - now)
        now = nudge.again
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (pytest.approx(0.1), pytest.approx(2.0))
    nudge.ask(Timestamp(11, 1))
    nudge.done(now)
    assert nudge.again - now == pytest.approx(0.1), "a later event starts with the shortest pause"

"""The remotes behind a merged stream: failures, new shards, budgets, no-op writes."""

import asyncio
from typing import Any

import bson
import pytest
from bson import Timestamp

from router.stream_settings import BlockSizes
from shard_client.errors import RESUMABLE_LABEL, CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch
from tests.doubles.scripted_cluster import (
    OWNER,
    ScriptedCluster,
    numbers,
    read_nothing_until,
    read_until,
    stream,
)
from tests.doubles.scripted_member import mark_token
from tests.harness.until import PATIENCE, until
from tests.unit.router.stream.clients import noops


@pytest.mark.parametrize(
    "fault",
    ["cut", "cursor gone", "not primary", "cursor killed", "rollback", "interrupted", "restart"],
)
async def test_a_failed_remote_is_reopened_after_its_own_watermark(
    cluster: ScriptedCluster, fault: str
):
    shard = cluster.shards["s1"]
    cursor, _ = await cluster.registry().open(stream(), OWNER)
    shard.insert(101, 1)
    cluster.noop(102)
    assert await read_until(cursor, 1) == [1]
    match fault:
        case "cut":
            shard.cut()
        case "cursor gone":
            shard.cursors.clear()
        case "not primary":
            shard.fail("getMore", 10107)
        case "cursor killed":
            shard.fail("getMore", 237)
        case "rollback":
            shard.fail("getMore", 175)
        case "interrupted":
            shard.fail("getMore", 11602)
        case "restart":
            port = shard.port
            await shard.stop()
            await until(lambda: not shard.writers)
            shard.cursors.clear()
            await shard.start(port)
    await until(lambda: len(shard.opened) == 2)
    again = shard.opened[1]["pipeline"][0]["$changeStream"]
    assert again["resumeAfter"] == {"_data": mark_token(Timestamp(102, 1))}
    shard.insert(103, 2)
    cluster.noop(104)
    assert await read_until(cursor, 1) == [2]
    await until(lambda: len(shard.cursors) == 1)  # the abandoned cursors are killed


async def test_a_fatal_error_reaches_the_client_immediately(cluster: ScriptedCluster):
    registry = cluster.registry()
    shard = cluster.shards["s2"]
    cursor, _ = await registry.open(stream(), OWNER)
    shard.fail("getMore", 286, "resume point lost")
    with pytest.raises(CommandError) as failure, registry.checkout(cursor.cursor_id, OWNER) as held:
        await held.next_batch(None, PATIENCE)
    assert failure.value.code == 286
    assert failure.value.labels == {"NonResumableChangeStreamError"}
    where = f"Error on remote shard 127.0.0.1:{shard.port} :: caused by :: resume point lost"
    assert failure.value.message == where
    assert cursor.cursor_id not in registry
    await registry.close()
    await until(lambda: cluster.open_cursors == 0)


async def test_a_shard_s_refusal_fails_the_opening(cluster: ScriptedCluster):
    registry = cluster.registry()
    cluster.shards["s2"].fail("aggregate", 40324, "Unrecognized pipeline stage name: '$nope'")
    with pytest.raises(CommandError) as failure:
        await registry.open(stream(), OWNER)
    assert failure.value.code == 40324
    assert failure.value.message == "Unrecognized pipeline stage name: '$nope'"
    assert len(registry) == 0
    await registry.close()
    assert cluster.open_cursors == 0


@pytest.mark.parametrize("away", ["config", "s0"])
async def test_an_open_stream_outlasts_an_outage(cluster: ScriptedCluster, away: str):
    """It does so for longer than ``failure_timeout``: a client that resumed would wait as long."""
    registry = cluster.registry(failure_timeout=0.1, connect_timeout=0.1)
    cursor, _ = await registry.open(stream(), OWNER)
    member = cluster.config if away == "config" else cluster.shards[away]
    port = member.port
    await member.stop()
    member.cursors.clear()
    cluster.shards["s1"].insert(101, 1)
    cluster.noop(102)

    def remote() -> dict[str, Any]:
        (described,) = registry.describe()
        return next(each for each in described["remotes"] if each["target"] == away)

    await read_nothing_until(cursor, lambda: remote().get("failingMillis", 0) > 300)
    await read_nothing_until(cursor, lambda: registry.describe()[0]["waiting"])
    assert registry.describe()[0]["slowestShard"] == away
    assert remote()["state"] == "failing"
    assert remote()["error"]
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


async def test_a_defect_of_a_remote_cursor_is_a_failure_that_clients_resume_after(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
):
    cursor, _ = await cluster.registry().open(stream(), OWNER)

    def broken(_: CursorBatch) -> None:
        raise RuntimeError("cannot take this")

    monkeypatch.setattr(CursorBatch, "split", broken)
    cluster.noop(102)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(CommandError) as failure:  # noqa: PT012
            while True:
                await cursor.next_batch(None, PATIENCE)
    assert failure.value.code == 1
    assert RESUMABLE_LABEL in failure.value.labels


async def test_a_stream_resumes_while_a_shard_is_away(cluster: ScriptedCluster):
    registry = cluster.registry(open_timeout=1.5, connect_timeout=0.5)
    shard = cluster.shards["s0"]
    port = shard.port
    await shard.stop()
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.shards["s1"].insert(101, 1)
    cluster.noop(102)
    await read_nothing_until(cursor, lambda: registry.describe()[0]["bufferedBytes"])
    (described,) = registry.describe()
    assert (described["slowestShard"], described["waiting"]) == ("s0", True)
    await shard.start(port)
    assert await read_until(cursor, 1) == [1]


async def test_prefetching_stops_when_the_client_stops_reading(cluster: ScriptedCluster):
    cursor, _ = await cluster.registry(linger=0.05).open(stream(), OWNER)
    shared = cursor.running_stream
    assert shared is not None
    remotes = shared._remotes.values()
    await until(
        lambda: all(each.cursor is not None and each.cursor.wants_pause for each in remotes)
    )
    await until(lambda: not any(member.waiting for member in cluster.members))
    asked = sum(member.commands["getMore"] for member in cluster.members)
    await asyncio.sleep(0.1)
    assert sum(member.commands["getMore"] for member in cluster.members) == asked
    cluster.shards["s0"].insert(101, 1)
    cluster.noop(102)
    assert await read_until(cursor, 1) == [1]


async def test_a_stream_of_one_shard_reads_little_ahead(cluster: ScriptedCluster):
    shard = cluster.shards["s0"]
    for n in range(1000):
        shard.insert(Timestamp(101, n + 1), n, filler="x" * 1000)
    registry = cluster.registry(one_shard_batch_bytes=20_000)
    cursor, _ = await registry.open(stream(**{"$_passthroughToShard": {"shard": "s0"}}), OWNER)
    shared = cursor.running_stream
    assert shared is not None
    first = await cursor.next_batch(None, PATIENCE)
    assert (
        len(first.events) < 150
    )  # the first batch of a cursor has 101 events, whatever their size
    (remote,) = shared._remotes.values()
    await until(lambda: remote.cursor is not None and remote.cursor.wants_pause)
    assert shared.merged.all_buffered_bytes < 150_000
    numbers_read = [*numbers(first), *await read_until(cursor, 1000 - len(first.events))]
    assert numbers_read == list(range(1000))


async def test_a_reply_has_the_requested_events_or_about_its_target_size(
    cluster: ScriptedCluster,
):
    for n in range(12):
        cluster.shards["s0"].insert(Timestamp(101, n + 1), n, filler="x" * 1000)
    cluster.noop(102)
    registry = cluster.registry(reply_target_bytes=3000, blocks=BlockSizes(1, join_bytes=0))
    cursor, _ = await registry.open(stream(), OWNER)
    shared = cursor.running_stream
    assert shared is not None
    await until(lambda: (shared.merged.low_watermark or b"") > b"8200000066")
    assert numbers(await cursor.next_batch(7, PATIENCE)) == [*range(7)]
    rest = numbers(await cursor.next_batch(None, PATIENCE))
    assert rest[:2] == [7, 8]
    assert len(rest) < 5


async def test_noops_move_idle_members_past_a_waiting_event(cluster: ScriptedCluster):
    registry = cluster.registry(noop=True, noop_delay=0.002)
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.shards["s0"].insert(105, 1)
    assert await read_until(cursor, 1) == [1]
    idle = (cluster.config, cluster.shards["s1"], cluster.shards["s2"])
    assert [member.past[0] for member in idle] == [Timestamp(105, 2)] * 3
    assert set(noops(registry)) == {"s1", "s2", "config"}
    assert all(count <= 3 for count in noops(registry).values())
    before = sum(noops(registry).values())
    await cursor.next_batch(None, 0.1)
    assert sum(noops(registry).values()) == before, "no event waits, so no member is nudged"


async def test_no_event_is_delayed_by_a_long_wait(cluster: ScriptedCluster):
    registry = cluster.registry(
        noop=True, await_quiet=20.0, active_for=0.0, probe_worth=0.002, close_timeout=4.0
    )
    cursor, _ = await registry.open(stream(), OWNER)
    await until(lambda: all(member.commands["getMore"] for member in cluster.members))
    for number, second in enumerate((105, 1105, 2105)):
        cluster.shards[f"s{number}"].insert(second, number)
        async with asyncio.timeout(PATIENCE):
            assert await read_until(cursor, 1) == [number]
    assert cluster.open_cursors <= 4 + 3, "at most a second cursor on each shard"
    async with asyncio.timeout(PATIENCE):
        await registry.close()
    assert cluster.open_cursors == 0


async def test_a_member_that_is_still_scanning_is_not_probed(cluster: ScriptedCluster):
    """Before its first reply the member may be scanning, and a second scan would slow it down."""
    registry = cluster.registry(noop=True, await_quiet=20.0, probe_worth=0.0)
    slow = cluster.shards["s1"]
    slow.slow["getMore"] = 0.15
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.shards["s0"].insert(105, 1)
    await until(lambda: slow.commands["appendOplogNote"])
    assert slow.commands["aggregate"] == 1
    assert await read_until(cursor, 1) == [1]


async def test_members_that_refuse_noop_writes_are_read_from(cluster: ScriptedCluster):
    registry = cluster.registry(noop=True, noop_delay=0.002)
    for member in cluster.members:
        member.notes = False
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.shards["s0"].insert(105, 1)
    await until(lambda: cluster.shards["s1"].commands["find"])
    cluster.noop(106)
    assert await read_until(cursor, 1) == [1]


async def test_a_stream_that_starts_in_the_future_waits(cluster: ScriptedCluster):
    cursor, first = await cluster.registry().open(stream(200), OWNER)
    cluster.shards["s0"].insert(150, 1)
    cluster.noop(160)
    batch = await cursor.next_batch(None, 0.05)
    assert batch.events == []
    assert bson.decode(batch.pbrt) == bson.decode(first.pbrt)
    cluster.shards["s0"].insert(201, 2)
    cluster.noop(210)
    assert numbers(await cursor.next_batch(None, PATIENCE)) == [2]


async def test_a_closed_stream_holds_no_events(cluster: ScriptedCluster):
    """It is part of cycles, so the collector frees it much later, or never in an idle process."""
    registry = cluster.registry(share_linger=0.0)
    cursor, _ = await registry.open(stream(), OWNER)
    running = cursor.running_stream
    assert running is not None
    cluster.shards["s0"].insert(101, 1)
    cluster.noop(102)
    cluster.shards["s1"].insert(103, 2)
    await until(lambda: registry.describe()[0]["bufferedBytes"])
    assert await read_until(cursor, 1) == [1]
    registry.kill([cursor.cursor_id], OWNER)
    await registry.close()
    assert running.merged.held_bytes == 0

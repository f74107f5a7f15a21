"""Clients of one stream read at their own paces: far behind, slow, or without ever waiting."""

import asyncio

import pytest

from router.cursors.registry import CursorRegistry
from tests.doubles.scripted_cluster import (
    OWNER,
    REMOTES,
    ScriptedCluster,
    numbers,
    read_until,
    stream,
)
from tests.doubles.scripted_member import invalidate
from tests.harness.until import PATIENCE, until
from tests.unit.router.stream.clients import BIG, opened, write


async def test_a_client_before_the_log_reads_alone_until_it_catches_up(
    cluster: ScriptedCluster,
):
    registry = cluster.registry(share_linger=0.01)
    write(cluster, *range(101, 111))
    ahead, _ = await registry.open(stream(106), OWNER)
    assert len(await read_until(ahead, 5)) == 5
    behind, _ = await registry.open(stream(101), OWNER)
    assert cluster.open_cursors == 2 * REMOTES
    assert await read_until(behind, 10) == [*range(101, 111)]
    await behind.next_batch(None, 0.01)
    await until(lambda: cluster.open_cursors == REMOTES)
    write(cluster, 120)
    assert await read_until(ahead, 1) == await read_until(behind, 1) == [120]


async def test_a_slow_client_delays_no_other_and_loses_no_events(cluster: ScriptedCluster):
    registry = cluster.registry(share_log_bytes=3 * BIG, share_linger=0.01)
    slow, fast = await opened(registry, 2)
    for second in range(101, 131):
        write(cluster, second, size=BIG)
        assert await read_until(fast, 1) == [second]
        assert cluster.open_cursors == REMOTES
    found: list[int] = []
    while len(found) < 30:
        found += numbers(await slow.next_batch(4, PATIENCE))
        assert cluster.open_cursors <= 2 * REMOTES
    assert found == [*range(101, 131)]
    await slow.next_batch(None, 0.01)
    await until(lambda: cluster.open_cursors == REMOTES)
    write(cluster, 140)
    assert await read_until(slow, 1) == await read_until(fast, 1) == [140]


async def test_a_slow_client_after_an_invalidate_goes_on_at_its_own_place(
    cluster: ScriptedCluster,
):
    """Oplogs may have passed the invalidate's time."""
    registry = cluster.registry(share_log_bytes=3 * BIG, share_linger=0.01)
    token = invalidate(cluster.shards["s0"], 102)
    after = [{"$changeStream": {"startAfter": {"_data": token}}}]
    slow, fast = await opened(registry, 2, pipeline=after)
    write(cluster, 105, 106)
    for client in (slow, fast):
        assert await read_until(client, 2) == [105, 106]
    for member in cluster.shards.values():
        member.opened.clear()
    for second in range(107, 127):
        write(cluster, second, size=BIG)
        assert await read_until(fast, 1) == [second]
    assert await read_until(slow, 20) == [*range(107, 127)]
    starts = [
        each["pipeline"][0]["$changeStream"]
        for member in cluster.shards.values()
        for each in member.opened
    ]
    assert len(starts) == len(cluster.shards)
    assert all(each["startAtOperationTime"].time >= 106 for each in starts)


async def test_a_client_that_never_waits_gets_all_events(cluster: ScriptedCluster):
    registry = cluster.registry(share_log_bytes=2 * BIG)
    impatient, fast = await opened(registry, 2)
    write(cluster, *range(101, 111), size=BIG)
    assert len(await read_until(fast, 10)) == 10
    found: list[int] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < 10:
            found += numbers(await impatient.next_batch(None, 0))
            await asyncio.sleep(0.001)
    assert found == [*range(101, 111)]


async def test_a_single_slow_client_pauses_the_remotes(
    cluster: ScriptedCluster,
):
    registry = cluster.registry(
        remote_buffer_bytes=BIG, stream_buffer_bytes=BIG, batch_target_bytes=BIG // 10
    )
    cursor, _ = await registry.open(stream(), OWNER)
    write(cluster, *range(101, 1301), size=BIG // 100)
    for _ in range(3):
        assert len((await cursor.next_batch(1, PATIENCE)).events) == 1
        await until(lambda: paused(registry))
        (description,) = registry.describe()
        assert sum(remote["events"] for remote in description["remotes"]) < 800


def paused(registry: CursorRegistry) -> bool:
    """Return whether every shard's remote has paused until a client reads."""
    (description,) = registry.describe()
    shards = [each for each in description["remotes"] if each["target"] != "config"]
    return all(each["state"] == "paused" for each in shards)


async def test_a_client_far_behind_does_not_delay_new_clients(
    cluster: ScriptedCluster,
):
    registry = cluster.registry(
        remote_buffer_bytes=BIG, stream_buffer_bytes=BIG, batch_target_bytes=BIG // 10
    )
    old, _ = await registry.open(stream(), OWNER)
    write(cluster, *range(101, 1301), size=BIG // 100)
    found = numbers(await old.next_batch(1, PATIENCE))
    await until(lambda: paused(registry))
    new, _ = await registry.open(stream(None), OWNER)
    assert len(registry.describe()) == 2
    write(cluster, 1310)
    assert await read_until(new, 1) == [1310]
    while found[-1] != 1310:
        found += numbers(await old.next_batch(None, PATIENCE))
    assert found == [*range(101, 1301), 1310]
    await old.next_batch(None, 0.01)
    assert len(registry.describe()) == 1


@pytest.mark.parametrize(("newest", "joins"), [(1310, True), (9000, False)])
async def test_in_a_backlog_a_client_does_not_join_an_unread_stream_before_its_start(
    cluster: ScriptedCluster, newest: int, joins: bool
):
    registry = cluster.registry(
        remote_buffer_bytes=BIG, stream_buffer_bytes=BIG, batch_target_bytes=BIG // 10,
        share_linger=60.0, share_behind=2000.0,
    )  # fmt: skip
    write(cluster, *range(101, 1301), size=BIG // 100)
    cluster.noop(newest)
    first, _ = await registry.open(stream(101), OWNER)
    assert numbers(await first.next_batch(1, PATIENCE)) == [101]
    lingering = first.running_stream
    registry.kill([first.cursor_id], OWNER)
    then, _ = await registry.open(stream(1299), OWNER)
    assert (then.running_stream is lingering) == joins
    assert await read_until(then, 2) == [1299, 1300]
    write(cluster, newest + 10)
    assert await read_until(then, 1) == [newest + 10]
    assert (then.running_stream is lingering) == joins

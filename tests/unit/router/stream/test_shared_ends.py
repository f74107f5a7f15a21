"""The end of a shared stream, for each of its clients: kills, errors, invalidates."""

import asyncio

import bson
import pytest

from shard_client.errors import CommandError
from tests.doubles.scripted_cluster import (
    OWNER,
    ScriptedCluster,
    numbers,
    read_until,
    stream,
)
from tests.doubles.scripted_member import invalidate
from tests.harness.until import PATIENCE, until
from tests.unit.router.stream.clients import opened, write


async def test_killing_a_cursor_does_not_affect_other_clients(cluster: ScriptedCluster):
    registry = cluster.registry(share_linger=0.02)
    first, second, third = await opened(registry, 3)
    waiting = [asyncio.create_task(each.next_batch(None, PATIENCE)) for each in (first, second)]
    await asyncio.sleep(0)
    registry.kill([first.cursor_id], OWNER)
    with pytest.raises(CommandError, match="interrupted"):
        await waiting[0]
    write(cluster, 101)
    assert numbers(await waiting[1]) == await read_until(third, 1) == [101]
    registry.kill([second.cursor_id, third.cursor_id], OWNER)
    await until(lambda: cluster.open_cursors == 0)


async def test_remotes_linger_after_their_last_client(cluster: ScriptedCluster):
    registry = cluster.registry(share_linger=1.5)
    first, _ = await registry.open(stream(), OWNER)
    write(cluster, 101, 103)
    batch = await first.next_batch(1, PATIENCE)
    registry.kill([first.cursor_id], OWNER)
    resumed = {"resumeAfter": bson.decode(batch.pbrt)}
    again, _ = await registry.open(stream(pipeline=[{"$changeStream": resumed}]), OWNER)
    assert await read_until(again, 1) == [103]
    assert all(len(member.opened) == 1 for member in cluster.members)
    registry.kill([again.cursor_id], OWNER)
    await until(lambda: cluster.open_cursors == 0)


async def test_nothing_is_read_ahead_for_clients_that_have_left(cluster: ScriptedCluster):
    registry = cluster.registry(share_linger=60.0, await_quiet=0.02)
    cursor, _ = await registry.open(stream(), OWNER)
    write(cluster, 101)
    assert await read_until(cursor, 1) == [101]
    shared = cursor.running_stream
    assert shared is not None
    remotes = shared._remotes.values()
    registry.kill([cursor.cursor_id], OWNER)
    await until(
        lambda: all(each.cursor is not None and each.cursor.wants_pause for each in remotes)
    )
    write(cluster, 103)
    again, _ = await registry.open(stream(102), OWNER)
    assert again.running_stream is shared
    assert await read_until(again, 1) == [103]


async def test_an_error_reaches_every_client_after_earlier_events(cluster: ScriptedCluster):
    registry = cluster.registry()
    cursors = await opened(registry, 3)
    waiting = asyncio.create_task(cursors[0].next_batch(None, PATIENCE))
    await asyncio.sleep(0)
    write(cluster, 101)
    assert numbers(await waiting) == [101]
    cluster.shards["s2"].fail("getMore", 286, "resume point lost")
    with pytest.raises(CommandError, match="resume point lost"):
        await cursors[0].next_batch(None, PATIENCE)
    for cursor in cursors[1:]:
        assert await read_until(cursor, 1) == [101]
        with pytest.raises(CommandError, match="resume point lost") as failure:
            await cursor.next_batch(None, PATIENCE)
        assert failure.value.labels == {"NonResumableChangeStreamError"}
    assert await read_until((await registry.open(stream(), OWNER))[0], 1) == [101]


async def test_an_invalidate_ends_the_stream_when_a_client_reaches_it(
    cluster: ScriptedCluster,
):
    registry = cluster.registry(share_linger=0.01)
    first, second = await opened(registry, 2)
    write(cluster, 101)
    token = {"_data": invalidate(cluster.shards["s1"], 103)}
    cluster.shards["s0"].insert(105, 105)
    cluster.noop(110)
    assert await read_until(first, 2) == [101, 2]
    ended = await first.next_batch(None, PATIENCE)
    assert (ended.closed, bson.decode(ended.pbrt)) == (True, token)
    # Clients before the invalidate continue to read; later openings get a new stream.
    third, _ = await registry.open(stream(104), OWNER)
    assert await read_until(third, 1) == [105]
    assert numbers(await second.next_batch(1, PATIENCE)) == [101]
    assert numbers(await second.next_batch(1, PATIENCE)) == [2]
    assert (await second.next_batch(1, PATIENCE)).closed

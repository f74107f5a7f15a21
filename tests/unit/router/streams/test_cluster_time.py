"""What time it is: asked once for all who ask at once, over connections that are there.

Nothing that is written later lies before the time told.
"""

import asyncio

from bson import Timestamp

from tests.unit.router.conftest import OWNER, ScriptedCluster, numbers, stream, until


async def test_shards_behind_the_time_told_are_told_it(cluster: ScriptedCluster):
    registry = cluster.registry()
    await registry.open(stream(None), OWNER)
    ahead, *behind = cluster.shards.values()
    ahead.now = Timestamp(105, 7)
    cursor, _ = await registry.open(stream(None), OWNER)
    for shard in behind:
        assert shard.now >= Timestamp(105, 7)
    # What a shard writes next is beyond the time that it knows.
    written = behind[0].now
    behind[0].insert(Timestamp(written.time, written.inc + 1), 1)
    cluster.noop(200)
    assert numbers(await cursor.next_batch(None, 2.0)) == [1]


async def test_all_who_open_at_once_ask_for_the_time_once(cluster: ScriptedCluster):
    """Even if their streams differ in everything; and the shard list is read once for all."""
    registry = cluster.registry()
    # The first of them asks at once, the others share the next question.
    requests = [stream(None, comment=n, let={"n": n}) for n in range(10)]
    config, shards = cluster.config, cluster.shards.values()
    await registry.open(stream(None), OWNER)
    hellos = [shard.commands["hello"] for shard in shards]
    lists = config.commands["find"]
    async with asyncio.TaskGroup() as group:
        for request in requests:
            group.create_task(registry.open(request, OWNER))
    assert config.commands["find"] - lists <= 2
    for shard, before in zip(shards, hellos, strict=True):
        # One of each opening, to see whether the member is still primary.
        assert shard.commands["hello"] - before <= 2 + len(requests)
        assert shard.commands["aggregate"] == 1 + len(requests)


async def test_a_stream_opens_over_the_connection_that_asked_for_the_time(
    cluster: ScriptedCluster,
):
    registry = cluster.registry(share_linger=0.0)
    for _ in range(3):
        cursor, _first = await registry.open(stream(None), OWNER)
        for shard in cluster.shards.values():
            assert len(shard.writers) == 1
        registry.kill([cursor.cursor_id], OWNER)
        await until(lambda: not cluster.open_cursors)

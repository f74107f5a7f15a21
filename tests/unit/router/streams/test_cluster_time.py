"""The cluster time of openings: one request serves concurrent ones, over existing connections.

No later write has a cluster time before the one returned.
"""

import asyncio

from bson import Timestamp

from tests.unit.router.conftest import OWNER, ScriptedCluster, numbers, stream, until


async def test_shards_behind_the_cluster_time_learn_it(cluster: ScriptedCluster):
    registry = cluster.registry()
    await registry.open(stream(None), OWNER)
    ahead, *behind = cluster.shards.values()
    ahead.now = Timestamp(105, 7)
    cursor, _ = await registry.open(stream(None), OWNER)
    for shard in behind:
        assert shard.now >= Timestamp(105, 7)
    # A shard's next write lies beyond the latest cluster time that it has seen.
    written = behind[0].now
    behind[0].insert(Timestamp(written.time, written.inc + 1), 1)
    cluster.noop(200)
    assert numbers(await cursor.next_batch(None, 2.0)) == [1]


async def test_concurrent_openings_share_one_request_for_the_time(cluster: ScriptedCluster):
    """This holds even for different streams, and the shard list is also read only once."""
    registry = cluster.registry()
    # The first opening sends a request at once; the others share the next one.
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
        # Each opening sends one, to check that the member is still primary.
        assert shard.commands["hello"] - before <= 2 + len(requests)
        assert shard.commands["aggregate"] == 1 + len(requests)


async def test_a_stream_opens_over_the_connection_of_the_time_request(
    cluster: ScriptedCluster,
):
    registry = cluster.registry(share_linger=0.0)
    for _ in range(3):
        cursor, _first = await registry.open(stream(None), OWNER)
        for shard in cluster.shards.values():
            assert len(shard.writers) == 1
        registry.kill([cursor.cursor_id], OWNER)
        await until(lambda: not cluster.open_cursors)

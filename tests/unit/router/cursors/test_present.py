"""Streams from now that share remotes: nothing written later lies before their start."""

from bson import Timestamp

from tests.unit.router.cursors.conftest import OWNER, ScriptedCluster, numbers, stream


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

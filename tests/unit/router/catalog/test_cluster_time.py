"""The cluster time of openings: one request serves concurrent ones, over existing connections.

No later write has a cluster time before the one returned.
"""

import asyncio

import pytest
from bson import Timestamp

from shard_client.errors import CommandError, ErrorCode
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, stream
from tests.doubles.scripted_member import ScriptedMember


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


@pytest.fixture
async def sets_of_two(cluster: ScriptedCluster) -> list[tuple[ScriptedMember, ScriptedMember]]:
    """Add a secondary to each shard; return the primaries and secondaries."""
    members = []
    for document in cluster.config.documents["shards"]:
        primary = cluster.shards[document["_id"]]
        secondary = await ScriptedMember(primary.set_name, primary=False).start()
        secondary.noop(99)
        cluster.extra.append(secondary)
        hosts = [f"127.0.0.1:{each.port}" for each in (primary, secondary)]
        primary.hosts = secondary.hosts = hosts
        document["host"] = f"{primary.set_name}/{','.join(hosts)}"
        members.append((primary, secondary))
    return members


@pytest.mark.parametrize("mode", ["secondary", "secondaryPreferred", "nearest"])
async def test_primaries_that_are_not_read_are_sent_the_cluster_time(
    cluster: ScriptedCluster, sets_of_two: list[tuple[ScriptedMember, ScriptedMember]], mode: str
):
    """Otherwise a primary's next write could have a time before the stream's start."""
    for each in sets_of_two[0]:
        each.now = Timestamp(105, 7)
    await cluster.registry().open(stream(None, **{"$readPreference": {"mode": mode}}), OWNER)
    assert all(primary.now >= Timestamp(105, 7) for primary, _secondary in sets_of_two)


async def test_a_stream_from_secondaries_opens_without_a_primary(
    cluster: ScriptedCluster, sets_of_two: list[tuple[ScriptedMember, ScriptedMember]]
):
    primary, _secondary = sets_of_two[1]
    primary.primary = False
    registry = cluster.registry(connect_timeout=0.1)
    preference = {"$readPreference": {"mode": "secondary"}}
    cursor, _first = await registry.open(stream(None, **preference), OWNER)
    assert not cursor.finished


async def test_a_closed_fetcher_asks_no_shard(cluster: ScriptedCluster):
    times = cluster.registry().streams.cluster_time
    asked = times.now(stream(None))  # a request that has arrived before the router ends
    await times.close()
    with pytest.raises(CommandError) as refused:
        await asked
    assert refused.value.code == ErrorCode.ShutdownInProgress
    assert all(member.commands["hello"] == 0 for member in cluster.shards.values())

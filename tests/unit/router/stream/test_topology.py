"""Shards that join, leave, move and change members; unreachable config servers."""

import asyncio
from typing import Any

import pytest

from router.catalog.cluster import connected
from router.cursors.registry import CursorRegistry
from router.stream.merged_stream import MergedStream
from shard_client.errors import RESUMABLE_LABEL, CommandError
from shard_client.replica_set.replica_set import PRIMARY
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, read_until, stream
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import PATIENCE, until

_NAMESPACE = {"db": "config", "coll": "shards"}


def change_shards(
    cluster: ScriptedCluster, second: int, operation: str, shard: str, host: str = ""
) -> None:
    """Change config.shards at ``second`` and write the event to its change stream."""
    shards = [each for each in cluster.config.documents["shards"] if each["_id"] != shard]
    cluster.config.documents["shards"] = shards
    if operation != "delete":
        shards.append({"_id": shard, "host": host, "state": 1})
    cluster.config.insert(
        second,
        second % 100,
        operationType=operation,
        documentKey={"_id": shard},
        fullDocument={"_id": shard, "host": host, "state": 1},
        ns=_NAMESPACE,
    )


def remote(registry: CursorRegistry, target: str, *, last: bool = False) -> dict[str, Any]:
    """Describe the first or last remote on ``target`` of the only stream."""
    (described,) = registry.describe()
    found = [each for each in described["remotes"] if each["target"] == target]
    return found[-1 if last else 0]


def targets(registry: CursorRegistry) -> list[str]:
    """Return the targets of the remotes of the first stream."""
    return [each["target"] for each in registry.describe()[0]["remotes"]]


def drain(cluster: ScriptedCluster) -> None:
    """Let the shard s1 drain."""
    for document in cluster.config.documents["shards"]:
        if document["_id"] == "s1":
            document["draining"] = True
    cluster.config.insert(
        103,
        3,
        operationType="update",
        documentKey={"_id": "s1"},
        updateDescription={"updatedFields": {"draining": True}},
        ns=_NAMESPACE,
    )
    cluster.noop(104)


async def test_a_removal_without_an_event_is_noticed(cluster: ScriptedCluster):
    """As on 6.0, the shard drains and later is missing from the list."""
    registry = cluster.registry(removed_shards_interval=0.01)
    cursor, _ = await registry.open(stream(), OWNER)
    drain(cluster)
    listed = cluster.config.commands["find"]
    await until(lambda: cluster.config.commands["find"] > listed + 1)
    assert targets(registry).count("s1") == 1
    left = [each for each in cluster.config.documents["shards"] if each["_id"] != "s1"]
    cluster.config.documents["shards"] = left
    assert cursor.running_stream is not None
    merged = cursor.running_stream.merged
    await until(lambda: [merged.remotes[each.remote] for each in merged.leaving] == ["s1"])
    cluster.noop(200)  # watermarks beyond the time when the list was read
    await until(lambda: "s1" not in targets(registry))
    listed = cluster.config.commands["find"]
    cluster.shards["s0"].insert(201, 2)
    cluster.noop(202)
    assert (await read_until(cursor, 1))[-1] == 2
    assert cluster.config.commands["find"] <= listed + 1


async def test_a_stream_that_cannot_watch_a_draining_shard_fails(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not notice that the shard has left, and wait for it without end."""
    registry = cluster.registry(removed_shards_interval=0.01)
    cursor, _ = await registry.open(stream(), OWNER)
    monkeypatch.setattr(MergedStream, "shards_listed", None)
    drain(cluster)
    with pytest.raises(CommandError) as caught:
        await read_until(cursor, 1)
    assert RESUMABLE_LABEL in caught.value.labels


async def extra(cluster: ScriptedCluster, name: str) -> ScriptedMember:
    member = await ScriptedMember(name).start()
    member.noop(99)
    cluster.extra.append(member)
    return member


async def test_lost_history_of_the_config_server_is_resumable(cluster: ScriptedCluster):
    """A resumed stream reads the shard list again, so unlike a shard's this error is resumable."""
    cursor, _ = await cluster.registry().open(stream(), OWNER)
    cluster.config.fail("getMore", 286, "Resume of change stream was not possible")
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(CommandError, match="was not possible") as failure:  # noqa: PT012
            while True:
                await cursor.next_batch(None, 0.1)
    assert (failure.value.code, failure.value.labels) == (234, {RESUMABLE_LABEL})


async def test_the_config_server_can_be_a_shard(cluster: ScriptedCluster):
    """Two remotes have the same target: one for its data, one for config.shards."""
    change_shards(cluster, 98, "insert", "config", cluster.config.host)
    registry = cluster.registry()
    cursor, _ = await registry.open(stream(None), OWNER)
    opened = [each["pipeline"][0]["$changeStream"] for each in cluster.config.opened]
    assert sum("allowToRunOnConfigDB" in each for each in opened) == 1
    assert len(opened) == 2
    assert sorted(targets(registry)) == ["config", "config", "s0", "s1", "s2"]
    assert remote(registry, "config").get("topology")
    cluster.shards["s0"].insert(105, 1)
    cluster.noop(106)
    # The scripted config server returns the event to both remotes; only one delivers it.
    cluster.config.insert(107, 2, operationType="update", documentKey={"_id": "s0"}, ns=_NAMESPACE)
    cluster.noop(108)
    assert await read_until(cursor, 2) == [1, 2]


async def test_the_config_server_can_join_as_a_shard_and_leave(cluster: ScriptedCluster):
    registry = cluster.registry()
    cursor, _ = await registry.open(stream(), OWNER)
    change_shards(cluster, 105, "insert", "config", cluster.config.host)
    cluster.noop(106)
    await until(lambda: not remote(registry, "config", last=True).get("topology"))
    change_shards(cluster, 110, "delete", "config")
    cluster.shards["s0"].insert(111, 1)
    cluster.noop(112)
    found = await read_until(cursor, 2)
    assert found == ["config", 1], "only its writes as a shard are delivered"
    await until(lambda: remote(registry, "config", last=True).get("topology"))


async def test_a_shard_removed_during_an_opening_is_still_read(cluster: ScriptedCluster):
    """The opening has an older list, while other readers already have the new one."""
    cluster.registry()
    router = cluster.clusters[0]
    shards = (await router.shards()).hosts
    change_shards(cluster, 101, "delete", "s1")
    await router.shards()
    async with connected(router, shards, PRIMARY, 2.0) as connections:
        assert connections.keys() == {"s0", "s1", "s2"}

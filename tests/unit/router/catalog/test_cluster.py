"""The shard list, targets and versions, from scripted members."""

import asyncio
import functools
import socket
from collections.abc import AsyncIterator

import pytest
from bson import Timestamp

from router.catalog.cluster import Cluster, ShardList
from router.catalog.upstream import CatalogPrimary
from router.stream_settings import StreamSettings
from shard_client.errors import CommandError, WrongServerError
from tests.doubles.probed_replica_set import ProbedReplicaSet
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import until

LIMITS = StreamSettings(open_timeout=2.0, connect_timeout=2.0)


@pytest.fixture
async def config() -> AsyncIterator[ScriptedMember]:
    member = await ScriptedMember("cfg").start()
    member.noop(50)
    yield member
    await member.stop()


@pytest.fixture
async def cluster(config: ScriptedMember) -> AsyncIterator[Cluster]:
    cluster = Cluster(config.host, LIMITS, replica_set=ProbedReplicaSet)
    yield cluster
    await cluster.close()


async def test_the_shard_list_has_the_times_before_and_after_reading(
    config: ScriptedMember, cluster: Cluster
):
    config.documents["shards"] = [{"_id": "a", "host": "rsa/h:1"}, {"_id": "b", "host": "rsb/h:2"}]
    config.slow["find"] = 0.1
    reading = asyncio.ensure_future(cluster.shards())
    await until(lambda: config.commands["find"])
    config.noop(60)
    listed = await reading
    assert listed.hosts == {"a": "rsa/h:1", "b": "rsb/h:2"}
    assert (listed.before, listed.by) == (Timestamp(50, 1), Timestamp(60, 1))
    assert cluster.clock.time == Timestamp(100, 1)


async def test_a_cut_connection_is_replaced(config: ScriptedMember, cluster: Cluster):
    await cluster.shards()
    config.cut()
    assert await cluster.shards() == ShardList({}, Timestamp(50, 1), Timestamp(50, 1))
    config.fail("find", 10107)
    assert await cluster.shards() == ShardList({}, Timestamp(50, 1), Timestamp(50, 1))


async def test_unknown_targets_and_malformed_lists_are_errors(
    config: ScriptedMember, cluster: Cluster
):
    with pytest.raises(CommandError) as failure:
        await cluster.connect("nope")
    assert failure.value.code == 70
    config.documents["shards"] = [{"_id": "a", "host": "no set name"}]
    with pytest.raises(CommandError) as failure:
        await cluster.shards()
    assert failure.value.code == 9


async def test_a_shard_is_found_at_its_address_in_the_newest_list(
    config: ScriptedMember, cluster: Cluster
):
    old = await ScriptedMember("rs").start()
    config.documents["shards"] = [{"_id": "a", "host": old.host}]
    await cluster.shards()
    (await cluster.connect("a")).abort()
    await old.stop()
    new = await ScriptedMember("rs").start()
    config.documents["shards"] = [{"_id": "a", "host": new.host}]
    connection = await cluster.connect("a", old.host)
    assert connection.address == ("127.0.0.1", new.port)
    connection.abort()
    await new.stop()


async def test_members_only_in_the_newest_list_are_found(config: ScriptedMember):
    """The only member known so far hung before it could list the others."""
    cluster = Cluster(
        config.host, LIMITS, replica_set=functools.partial(ProbedReplicaSet, probe_timeout=0.2)
    )
    with socket.create_server(("127.0.0.1", 0)) as hung:
        old = f"rs/127.0.0.1:{hung.getsockname()[1]}"
        config.documents["shards"] = [{"_id": "a", "host": old}]
        await cluster.shards()
        new = await ScriptedMember("rs").start()
        config.documents["shards"] = [{"_id": "a", "host": f"{old},127.0.0.1:{new.port}"}]
        connection = await cluster.connect("a", old)
    assert connection.address == ("127.0.0.1", new.port)
    connection.abort()
    await new.stop()
    await cluster.close()


async def test_a_member_that_is_not_primary_is_refused(config: ScriptedMember, cluster: Cluster):
    shard = await ScriptedMember("rs").start()
    config.documents["shards"] = [{"_id": "a", "host": shard.host}]
    await cluster.shards()
    (await cluster.connect("a")).abort()
    shard.primary = False
    with pytest.raises(CommandError) as failure:
        await cluster.connect("a")
    assert failure.value.code in (133, 10107)
    assert "ResumableChangeStreamError" in failure.value.labels
    await shard.stop()


@pytest.mark.parametrize(
    ("wire_versions", "version"), [((17, 17), 1), ((21, 25), 2), ((17, 21), 1)]
)
async def test_the_token_version_is_that_of_the_oldest_shard(
    config: ScriptedMember, cluster: Cluster, wire_versions: tuple[int, int], version: int
):
    members = [
        await ScriptedMember(f"rs{n}", wire_version=wire_version).start()
        for n, wire_version in enumerate(wire_versions)
    ]
    config.documents["shards"] = [{"_id": each.set_name, "host": each.host} for each in members]
    await cluster.shards()
    for member in members:
        (await cluster.connect(member.set_name)).abort()
    assert cluster.token_version == version
    for member in members:
        await member.stop()


async def test_a_replica_set_is_its_only_shard_and_its_own_catalog():
    member = await ScriptedMember("rs0").start()
    cluster = Cluster(member.host, LIMITS, sharded=False, replica_set=ProbedReplicaSet)
    assert (await cluster.shards())[:2] == ({"rs0": member.host}, None)
    assert (cluster.known_shards, cluster.catalog) == ({"rs0"}, "rs0")
    (await cluster.connect("rs0")).abort()
    assert not member.commands["find"]
    await cluster.close()
    await member.stop()


async def test_a_config_server_is_no_replica_set(config: ScriptedMember):
    cluster = Cluster(config.host, LIMITS, sharded=False, replica_set=ProbedReplicaSet)
    with pytest.raises(WrongServerError, match="is a config server: name it in"):
        await cluster.connect("cfg")
    await cluster.close()


async def test_commands_for_a_replica_set_follow_its_primary():
    first = await ScriptedMember("rs0").start()
    second = await ScriptedMember("rs0", primary=False).start()
    first.hosts = second.hosts = [f"127.0.0.1:{each.port}" for each in (first, second)]
    cluster = Cluster(
        f"rs0/{','.join(first.hosts)}", LIMITS, sharded=False, replica_set=ProbedReplicaSet
    )
    upstream = CatalogPrimary(cluster)
    before = await upstream.connect()
    assert before.address[1] == first.port
    first.primary, second.primary = False, True
    assert upstream.serves(before.address)
    upstream.heard(None)
    assert upstream.serves(before.address)
    upstream.heard(10107)
    assert not upstream.serves(before.address)
    after = await upstream.connect()
    assert after.address[1] == second.port
    assert upstream.serves(after.address)
    await second.stop()
    first.primary = True
    again = await upstream.connect()
    assert again.address[1] == first.port
    for connection in (before, after, again):
        connection.abort()
    await cluster.close()
    await first.stop()


def test_a_bad_configdb_is_refused():
    with pytest.raises(ValueError, match="setName/host:port"):
        Cluster("localhost:27019", replica_set=ProbedReplicaSet)

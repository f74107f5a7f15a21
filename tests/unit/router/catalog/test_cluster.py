"""The shard list, targets and versions, from scripted members."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest
from bson import Timestamp
from structlog.testing import capture_logs

from router.catalog import catalog_primary
from router.catalog.catalog_primary import CatalogPrimary
from router.catalog.cluster import Cluster, MemberDialer
from router.limits.memory import Holding, Memory
from router.lookup.upstream_reads import Result, UpstreamReads
from router.stream_settings import StreamSettings
from shard_client.errors import CommandError, is_resumable
from shard_client.wire.connection import Connection
from tests.doubles.probed_replica_set import ProbedReplicaSet
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import PATIENCE, until

LIMITS = StreamSettings(open_timeout=2.0, connect_timeout=2.0)


class Started(AsyncExitStack):
    """Starts members and clusters, which end with it."""

    async def member(self, name: str, **fields: Any) -> ScriptedMember:
        member = await ScriptedMember(name, **fields).start()
        self.push_async_callback(member.stop)
        return member

    def cluster(self, seeds: str, **fields: Any) -> Cluster:
        cluster = Cluster(seeds, LIMITS, **{"replica_set": ProbedReplicaSet, **fields})
        self.push_async_callback(cluster.close)
        return cluster


@pytest.fixture
async def started() -> AsyncIterator[Started]:
    async with Started() as started:
        yield started


@pytest.fixture
async def config(started: Started) -> ScriptedMember:
    member = await started.member("cfg")
    member.noop(50)
    return member


@pytest.fixture
async def cluster(started: Started, config: ScriptedMember) -> Cluster:
    return started.cluster(config.host)


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


async def test_unknown_targets_and_malformed_lists_are_errors(
    config: ScriptedMember, cluster: Cluster
):
    with pytest.raises(CommandError) as failure:
        await cluster.command("nope", "admin", {"ping": 1}, PATIENCE)
    assert failure.value.code == 70
    config.documents["shards"] = [{"_id": "a", "host": "no set name"}]
    with pytest.raises(CommandError) as failure:
        await cluster.shards()
    assert failure.value.code == 9


@pytest.mark.parametrize(
    ("wire_versions", "version"), [((17, 17), 1), ((21, 25), 2), ((17, 21), 1)]
)
async def test_the_token_version_is_that_of_the_oldest_shard(
    started: Started,
    config: ScriptedMember,
    cluster: Cluster,
    wire_versions: tuple[int, int],
    version: int,
):
    members = [
        await started.member(f"rs{n}", wire_version=wire_version)
        for n, wire_version in enumerate(wire_versions)
    ]
    config.documents["shards"] = [{"_id": each.set_name, "host": each.host} for each in members]
    await cluster.shards()
    for member in members:
        await cluster.command(member.set_name, "admin", {"ping": 1}, PATIENCE)
    assert cluster.versions.of_tokens == version


async def test_an_outdated_host_string_causes_the_list_to_be_read_once(
    started: Started, config: ScriptedMember, cluster: Cluster
):
    """A stream keeps the host string of its opening, or of an event, for as long as it lives."""
    member = await started.member("rs0")
    config.documents["shards"] = [{"_id": "a", "host": f"{member.host},127.0.0.1:1"}]
    await cluster.shards()
    dialer = MemberDialer(cluster, "a", member.host)
    for _ in range(3):
        cluster.pool.give_back(await dialer.connect(PATIENCE))
    assert config.commands["find"] == 2


@pytest.mark.parametrize("error", [FileNotFoundError("no file"), ValueError("no certificate")])
async def test_a_shard_keeps_its_monitor_if_a_new_one_cannot_be_made(
    started: Started, config: ScriptedMember, error: Exception
) -> None:
    made: list[str] = []
    refused = False

    def make(name: str, seeds: tuple[tuple[str, int], ...]) -> ProbedReplicaSet:
        if refused:
            raise error
        made.append(name)
        return ProbedReplicaSet(name, seeds)

    cluster = started.cluster(config.host, replica_set=make)
    member = await started.member("rs0")
    config.documents["shards"] = [{"_id": "a", "host": member.host}]
    await cluster.shards()
    refused = True
    config.documents["shards"] = [{"_id": "a", "host": f"{member.host},127.0.0.1:1"}]
    await cluster.shards()
    await cluster.command("a", "admin", {"ping": 1}, PATIENCE)
    refused = False
    await cluster.shards()
    assert made == ["cfg", "rs0", "rs0"]


@pytest.mark.parametrize("error", [FileNotFoundError("no file"), ValueError("no certificate")])
async def test_a_new_shard_without_a_monitor_is_waited_for_and_the_others_are_served(
    started: Started, config: ScriptedMember, error: Exception
) -> None:
    refused = True

    def make(name: str, seeds: tuple[tuple[str, int], ...]) -> ProbedReplicaSet:
        if refused and name == "rs1":
            raise error
        return ProbedReplicaSet(name, seeds)

    cluster = started.cluster(config.host, replica_set=make)
    members = [await started.member(name) for name in ("rs0", "rs1")]
    config.documents["shards"] = [{"_id": each.set_name, "host": each.host} for each in members]
    with capture_logs() as lines:
        listed = await cluster.shards()
    assert list(listed.hosts) == ["rs0", "rs1"]
    assert [line["log_level"] for line in lines] == ["warning"]
    await cluster.command("rs0", "admin", {"ping": 1}, PATIENCE)
    for host in (members[1].host, None):
        with pytest.raises(CommandError) as failure:
            cluster.replica_set("rs1", host)
        assert is_resumable(failure.value)
    refused = False
    await cluster.command("rs1", "admin", {"ping": 1}, PATIENCE)


async def test_a_config_server_can_be_a_shard(config: ScriptedMember, cluster: Cluster) -> None:
    assert cluster.known_shards == set()
    config.documents["shards"] = [{"_id": "config", "host": config.host}]
    config.documents["databases"] = [{"_id": "db", "primary": "config"}]
    await cluster.shards()
    assert cluster.known_shards == {"config"}
    config.documents["shards"] = []
    await cluster.shards()
    assert cluster.known_shards == set()


async def test_a_replica_set_is_its_only_shard_and_its_own_catalog(started: Started):
    member = await started.member("rs0")
    cluster = started.cluster(member.host, sharded=False)
    assert (await cluster.shards())[:2] == ({"rs0": member.host}, None)
    assert (cluster.known_shards, cluster.catalog) == ({"rs0"}, "rs0")
    await cluster.command("rs0", "admin", {"ping": 1}, PATIENCE)
    assert not member.commands["find"]


async def replica_set(started: Started) -> tuple[ScriptedMember, ScriptedMember, Cluster]:
    """Start a primary and a secondary; return them and their cluster."""
    first, second = await started.member("rs0"), await started.member("rs0", primary=False)
    first.hosts = second.hosts = [f"127.0.0.1:{each.port}" for each in (first, second)]
    return first, second, started.cluster(f"rs0/{','.join(first.hosts)}", sharded=False)


async def test_commands_for_a_replica_set_follow_its_primary(started: Started):
    first, second, cluster = await replica_set(started)
    upstream = CatalogPrimary(cluster)
    before = await upstream.connect()
    assert before.address[1] == first.port
    cluster.replica_set("rs0").distrust(before.address)  # as after a late reply to another command
    assert await upstream.serves(before.address), "a login on this connection would be lost"
    first.primary, second.primary = False, True
    assert await upstream.serves(before.address)
    upstream.note_reply(before.address, None)
    assert await upstream.serves(before.address)
    upstream.note_reply(before.address, 10107)
    assert not await upstream.serves(before.address)
    after = await upstream.connect()
    assert after.address[1] == second.port
    assert await upstream.serves(after.address)
    upstream.note_reply(before.address, 10107)
    assert cluster.replica_set("rs0").primary == after.address, "a late reply does not concern it"
    await second.stop()
    first.primary = True
    again = await upstream.connect()
    assert again.address[1] == first.port
    for connection in (before, after, again):
        connection.abort()


@pytest.mark.parametrize("expired", [False, True])
async def test_a_lookup_in_a_replica_set_waits_for_the_next_primary(
    started: Started, expired: bool, monkeypatch: pytest.MonkeyPatch
):
    """Whether a kept connection is found cut, or a new one is refused."""
    monkeypatch.setattr(catalog_primary, "_TIMEOUT", 0.1)
    first, second, cluster = await replica_set(started)
    primary, lent = CatalogPrimary(cluster), 0

    def lend() -> AbstractAsyncContextManager[Connection]:
        nonlocal lent
        lent += 1
        return primary.lend()

    settings = StreamSettings(failure_timeout=PATIENCE, backoff_first=0.001, backoff_max=0.01)
    reads = UpstreamReads(lend, cluster.clock, settings)

    async def found() -> Result:
        find = {"find": "c", "filter": {}}
        return await reads.read("db", find, Holding(Memory(1 << 30)))

    assert (await found()).whole
    if expired:
        cluster.pool.forget(("127.0.0.1", first.port))
    await first.stop()
    waiting = asyncio.create_task(found())
    await until(lambda: lent > 3 or waiting.done())  # it has connected once, and has found none
    second.primary = True
    assert (await waiting).whole
    assert second.commands["find"] == 1

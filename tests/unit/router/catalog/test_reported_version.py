"""The version that drivers see, at the start and during a rolling upgrade."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from router.catalog.reported_version import ClusterVersion
from router.commands.serving_process import ServerDescription
from router.upstream.upstream_mongos import UpstreamMongos
from shard_client.errors import CommandError, NetworkError
from tests.doubles.fake_clusters import Server, VersionedServers
from tests.harness.until import PATIENCE, until

V6, V7, V8 = ("6.0.15", 17), ("7.0.2", 21), ("8.0.4-rc1", 25)


def version(
    servers: VersionedServers, router: ServerDescription, *, upstream: bool = False, **times: float
) -> ClusterVersion:
    mongos = cast(UpstreamMongos, servers) if upstream else None
    return ClusterVersion(cast(Any, servers), mongos, router.become, **times)


async def read(watch: ClusterVersion) -> None:
    await watch.keep_current(asyncio.Event(), once=True)


@asynccontextmanager
async def kept_current(watch: ClusterVersion) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.keep_current(asyncio.Event()))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def changed(router: ServerDescription) -> None:
    await router.topology.wait_beyond(router.topology.document(), timeout=PATIENCE)


async def test_it_retries_until_a_server_answers() -> None:
    failures = [CommandError(133, "no primary"), NetworkError("cut"), ValueError("an odd answer")]
    servers = VersionedServers(failures, s0=V8, config=V8)
    router = ServerDescription()
    waiting = asyncio.create_task(changed(router))
    await read(version(servers, router, retry_pause=0.0))
    await waiting
    assert not servers.failures
    assert all(connection.closed for connection in servers.connections)
    assert router.identity.version == "8.0.4-rc1"
    assert router.identity.build_info["versionArray"] == [8, 0, 4, 0]
    assert router.identity.max_wire_version == 25


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ({"config": V7}, V7),
        ({"config": V7, "s0": V6, "s1": V7, "upstream": V7}, V6),
        ({"config": V7, "s0": V7, "s1": V7, "upstream": V6}, V6),
        ({"config": V8, "s0": V8, "s1": V8, "upstream": ("8.0.3", 25)}, ("8.0.3", 25)),
        ({"config": V7, "s0": V7, "s1": None, "upstream": V7}, V7),
        ({"config": V7, "s0": V7}, V7),
    ],
)
async def test_the_lowest_version_counts(
    servers: dict[str, Server | None], expected: Server
) -> None:
    ask_timeout = 0.05 if None in servers.values() else PATIENCE
    asked = VersionedServers(**servers)
    router = ServerDescription()
    await read(version(asked, router, upstream=True, ask_timeout=ask_timeout))
    assert (router.identity.version, router.identity.max_wire_version) == expected


async def test_a_rolling_upgrade_is_followed() -> None:
    servers = VersionedServers(config=V6, s0=V6, s1=V6, upstream=V6)
    router = ServerDescription()
    watch = version(servers, router, upstream=True)
    await read(watch)
    counter = router.topology.counter
    async with kept_current(watch):
        for upgraded in ("config", "s0", "s1"):
            servers.servers[upgraded] = V7
            wanted = len(servers.connections) + 4
            servers.versions.changed.set()
            await until(lambda wanted=wanted: len(servers.connections) >= wanted)
        assert (router.identity.version, router.topology.counter) == ("6.0.15", counter)
        waiting = asyncio.create_task(changed(router))
        servers.servers["upstream"] = V7
        servers.versions.changed.set()
        await waiting
        assert (router.identity.version, router.topology.counter) == ("7.0.2", counter + 1)


async def with_an_old_shard() -> tuple[VersionedServers, ServerDescription, ClusterVersion]:
    servers = VersionedServers(config=V7, s0=V6, s1=V7)
    router = ServerDescription()
    watch = version(servers, router, refresh_pause=0.0)
    await read(watch)
    return servers, router, watch


async def test_a_restarting_server_does_not_change_the_version() -> None:
    servers, router, watch = await with_an_old_shard()
    del servers.servers["config"]  # a shard missing from the list would have left the cluster
    servers.servers["config2"] = V7
    async with kept_current(watch):
        wanted = len(servers.connections) + 6
        await until(lambda: len(servers.connections) >= wanted)
        assert router.identity.version == "6.0.15"
        servers.servers["config"] = V7
        servers.servers["s0"] = V7
        await changed(router)
        assert router.identity.version == "7.0.2"


async def test_a_shard_that_leaves_no_longer_counts() -> None:
    servers, router, watch = await with_an_old_shard()
    async with kept_current(watch):
        del servers.servers["s0"]
        await changed(router)
        assert router.identity.version == "7.0.2"

"""The process's parts put together: what it learns of the cluster that it stands for."""

import asyncio
from typing import Any, cast

import pytest
from bson.timestamp import Timestamp

from router import service
from router.catalog.cluster import ShardList
from router.commands.node import Node
from router.config.settings import load_settings
from shard_client.errors import CommandError, NetworkError
from tests.harness.fake_cursors import FakeCursors


class FakeConnection:
    def __init__(self, version: str, wire_version: int) -> None:
        self.hello = {"maxWireVersion": wire_version}
        self.version = version
        self.released = False

    async def command(self, database: str, command: Any, *, timeout: float) -> dict[str, Any]:
        assert (database, command) == ("admin", {"buildInfo": 1})
        return {"version": self.version, "ok": 1.0}


class FakeCluster:
    """Fails as often as it has failures, then answers."""

    def __init__(self, failures: list[Exception], shards: dict[str, str]) -> None:
        self.failures = failures
        self.known = shards
        self.asked: list[str] = []
        self.connection = FakeConnection("8.0.4-rc1", 25)

    async def shards(self) -> ShardList:
        if self.failures:
            raise self.failures.pop()
        return ShardList(self.known, Timestamp(1, 1), Timestamp(1, 1))

    async def connect(self, target: str, host: str | None = None) -> FakeConnection:
        self.asked.append(target)
        return self.connection

    def release(self, connection: FakeConnection) -> None:
        connection.released = True


def node(cluster: FakeCluster) -> Node:
    cursors = cast(Any, FakeCursors())
    return Node(clock=cursors.clock, cursors=cursors, cluster=cast(Any, cluster))


async def test_the_shards_version_becomes_the_router_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_RETRY_PAUSE", 0)
    unreachable = [CommandError(133, "no primary"), NetworkError("cut")]
    cluster = FakeCluster(list(unreachable), {"shard0": "shard0/a:1"})
    router = node(cluster)
    assert not router.identity.known
    waiting = asyncio.create_task(
        router.topology.wait_beyond(router.topology.document(), timeout=10)
    )
    await service.learn_identity(cast(Any, cluster), router.become)
    await waiting
    assert not cluster.failures
    assert cluster.asked == ["shard0"]
    assert cluster.connection.released
    assert router.identity.version == "8.0.4-rc1"
    assert router.identity.build_info["versionArray"] == [8, 0, 4, 0]
    assert router.identity.max_wire_version == 25


async def test_a_cluster_without_shards_is_asked_at_its_config_server() -> None:
    cluster = FakeCluster([], {})
    await service.learn_identity(cast(Any, cluster), node(cluster).become)
    assert cluster.asked == ["config"]


async def test_there_is_nothing_to_serve_without_a_config_server() -> None:
    with pytest.raises(ValueError, match=r"sharding\.configDB is not set"):
        await service.serve(load_settings({}), [], asyncio.Event())

"""Clusters that replace ``Cluster``: servers of given versions, oplogs, or one shard."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bson.timestamp import Timestamp

from router.catalog.server_checks import Check
from router.catalog.shard_list import ShardList
from router.catalog.wire_versions import WireVersions
from shard_client.cluster_clock import ClusterClock
from shard_client.errors import CommandError, NetworkError
from shard_client.wire.authentication import OPEN
from shard_client.wire.connection import Connection
from tests.harness.until import PATIENCE

Server = tuple[str, int]
"""A version, and its ``maxWireVersion``."""


class VersionedConnection:
    """Answers buildInfo with the version of its server."""

    def __init__(self, server: Server) -> None:
        self.version, wire_version = server
        self.hello = {"maxWireVersion": wire_version}
        self.closed = False

    async def command(self, database: str, command: Any, *, timeout: float) -> dict[str, Any]:
        assert (database, command) == ("admin", {"buildInfo": 1})
        return {"version": self.version, "ok": 1.0}


class VersionedServers:
    """Shards, config server and upstream by name, with their versions.

    A server whose version is None never answers; a missing server is down. ``failures`` are raised
    by ``shards``, the last one first.
    """

    def __init__(self, failures: list[Exception] | None = None, **servers: Server | None) -> None:
        self.failures = failures or []
        self.servers = servers
        self.catalog = "config"
        self.versions = WireVersions()
        self.connections: list[VersionedConnection] = []

    async def shards(self) -> ShardList:
        if self.failures:
            raise self.failures.pop()
        hosts: dict[str, str] = {
            name: f"{name}/a:1" for name in ("s0", "s1") if name in self.servers
        }
        return ShardList(hosts, Timestamp(1, 1), Timestamp(1, 1))

    @asynccontextmanager
    async def lend(
        self, target: str = "upstream", host: str | None = None
    ) -> AsyncIterator[VersionedConnection]:
        if target not in self.servers:
            raise NetworkError("down")
        server = self.servers[target]
        if server is None:
            await asyncio.Event().wait()
            raise AssertionError
        connection = VersionedConnection(server)
        self.connections.append(connection)
        yield connection
        connection.closed = True


class OplogConnection:
    """Answers each command with one entry of the oplog, and with its user's privileges."""

    def __init__(self, entry: Mapping[str, Any], privileges: object, wire_version: int) -> None:
        self._entry, self._privileges = entry, privileges
        self.hello = {"maxWireVersion": wire_version}

    async def command(self, database: str, command: object, *, timeout: float) -> dict[str, Any]:
        return {
            "cursor": {"firstBatch": [self._entry]},
            "authInfo": {"authenticatedUserPrivileges": self._privileges},
        }


class AnsweringCluster:
    """One shard and a config server that answer while ``answering`` is set, as it is at first.

    ``entry`` is their oplog's first, ``privileges`` those of the user of ``access``. The shard list
    cannot be read if there is a ``failure``.
    """

    def __init__(self) -> None:
        self.answering = asyncio.Event()
        self.answering.set()
        self.entry: dict[str, Any] = {"ts": Timestamp(100, 1), "o": {"msg": "initiating set"}}
        self.sharded, self.catalog = True, "config"
        self.hosts = {"a": "a/host:1"}
        self.failure: CommandError | None = None
        self.clock = ClusterClock()
        self.access = OPEN
        self.privileges: list[dict[str, Any]] = []
        self.wire_version = 17

    async def shards(self, timeout: float) -> ShardList:
        if self.failure is not None:
            raise self.failure
        return ShardList(self.hosts, Timestamp(1, 1), Timestamp(1, 1))

    @property
    def known_shards(self) -> set[str]:
        return {*self.hosts}

    @asynccontextmanager
    async def lend(self, target: str, *, timeout: float) -> AsyncIterator[OplogConnection]:
        await self.answering.wait()
        yield OplogConnection(self.entry, self.privileges, self.wire_version)


class FixedChecks:
    """Replaces ServerChecks: the config server and the shards ``north`` and ``south`` answer.

    Args:
        oldest: the second of the oldest entry of each oplog.
    """

    def __init__(self, oldest: int) -> None:
        time = Timestamp(oldest, 1)
        self.found = {"config": Check("config", "config")}
        self.found |= {name: Check(name, name, oldest=time) for name in ("north", "south")}

    def fails(self, target: str, problem: str) -> None:
        """Let a replica set fail its check."""
        self.found[target] = Check(target, target, severity="error", text=problem)

    async def results(self) -> Sequence[Check]:
        return list(self.found.values())


class OneShard:
    """A cluster whose only shard, ``s0``, is a scripted server on ``port``."""

    def __init__(self, port: int) -> None:
        self.catalog = "config"
        self.clock = ClusterClock()
        self._address = ("127.0.0.1", port)

    async def shards(self) -> ShardList:
        return ShardList({"s0": "s0/host"}, Timestamp(1, 1), Timestamp(1, 1))

    async def command(
        self, target: str, database: str, command: Mapping[str, Any], timeout: float, host: str
    ) -> dict[str, Any]:
        assert (target, host) == ("s0", "s0/host")
        connection = await Connection.open(self._address, timeout=PATIENCE)
        try:
            return await connection.command(database, command, timeout=timeout)
        finally:
            connection.abort()

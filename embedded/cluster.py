"""A sharded cluster in one process: config server, shards and a mongos endpoint."""

import time
from collections.abc import Callable
from random import Random
from types import TracebackType
from typing import Self

import structlog
from bson.objectid import ObjectId

from embedded.access.control import AccessControl
from embedded.cursors import CursorTable
from embedded.errors import bad_value
from embedded.logical_clock import LogicalClock
from embedded.mongod import Mongod
from embedded.mongos.catalog import ClusterCatalog
from embedded.mongos.cluster_transactions import TransactionTable
from embedded.mongos.endpoint import Mongos
from embedded.mongos.namespace_locks import NamespaceLocks
from embedded.mongos.request import ClusterState
from embedded.mongos.shards import Shard
from embedded.server import Server
from embedded.server_version import V6_0, ServerVersion

log = structlog.get_logger()


class EmbeddedCluster:
    """A config server, shards and a mongos endpoint on loopback ports, with their data in memory.

    Use as an asynchronous context manager, or call ``start`` and ``stop``.

    Args:
        shards: how many shards to start with, called shard0, shard1, …
        port: the mongos endpoint's port; 0 picks a free one.
        server_version: the version of MongoDB that all servers behave as.
        noop_interval: seconds between an idle server's no-ops.
        oplog_size: how many entries each oplog keeps.
        wall: the wall clock, in seconds since 1970.
        random: the source of UUIDs and cursor ids.
        access: who may use the servers, by default everybody; and TLS of all servers.
    """

    def __init__(
        self,
        shards: int = 3,
        *,
        port: int = 0,
        server_version: ServerVersion = V6_0,
        noop_interval: float = 10.0,
        oplog_size: int = 200_000,
        wall: Callable[[], float] = time.time,
        random: Random | None = None,
        access: AccessControl | None = None,
    ) -> None:
        self._port = port
        self._names = [f"shard{index}" for index in range(shards)]
        self._server_version = server_version
        self._noop_interval = noop_interval
        self._oplog_size = oplog_size
        self._wall = wall
        self._random = random or Random()
        self._access = access or AccessControl()
        self._running: dict[str, Mongod] = {}
        self.config_server = self._make("cfg", is_config=True)
        gossip = LogicalClock(lambda: 0.0)  # it never ticks by itself
        locks = NamespaceLocks()
        self._state = ClusterState(
            catalog=ClusterCatalog(Shard("config", self.config_server, gossip), gossip),
            servers=self,
            locks=locks,
            transactions=TransactionTable(locks),
            cursors=CursorTable(self._random),
            process_id=ObjectId(),
            access=self._access,
            wall=wall,
        )
        self.mongos = Mongos(self._state)
        self._server = Server(self.mongos, self._access.tls)

    async def start(self) -> None:
        """Start all servers and add the shards to the cluster.

        Raises:
            OSError: the port is taken; all servers have been stopped again.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        await self.config_server.start()
        if self._access.enforced:
            keys = {"insert": "system.keys", "documents": self._access.keys()}
            await self._state.catalog.config.execute("admin", keys)
        version = {"insert": "version", "documents": [{"_id": 1, "clusterId": ObjectId()}]}
        await self._state.catalog.config.execute("config", version)
        for name in self._names:
            mongod = await self.start_shard(name)
            shard = Shard(name, mongod, self._state.catalog.gossip)
            await self._state.catalog.add_shard(shard)
        await self._server.start(self._port)

    async def stop(self) -> None:
        """Stop all servers."""
        await self._server.stop()
        self._state.cursors.close()
        self._state.transactions.close()
        for mongod in self._running.values():
            await mongod.stop()
        await self.config_server.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def mongos_address(self) -> str:
        """``host:port`` of the mongos endpoint."""
        host, port = self._server.address
        return f"{host}:{port}"

    @property
    def configdb(self) -> str:
        """The config server's host string, in the form of ``--configdb``."""
        return self.config_server.host_string

    @property
    def shards(self) -> dict[str, str]:
        """The host strings of the cluster's shards, by shard id."""
        return {shard.id: shard.host for shard in self._state.catalog.shards}

    def shard(self, name: str) -> Mongod:
        """Return the shard server of this name.

        Raises:
            KeyError: no such server runs.
        """
        return self._running[name]

    def member(self, name: str) -> Mongod:
        """Return the server of this name; ``config`` is the config server.

        Raises:
            KeyError: there is no such server.
        """
        return self.config_server if name == "config" else self._running[name]

    async def start_shard(self, name: str) -> Mongod:
        """Start a shard server without adding it to the cluster (see ``addShard``).

        Raises:
            CommandError: 2 BadValue if a shard server of that name exists.
        """
        if name in self._running:
            raise bad_value(f"a shard server {name!r} is already running")
        mongod = self._running[name] = self._make(name, is_config=False)
        try:
            await mongod.start()
        except BaseException:
            del self._running[name]
            raise
        log.info("shard server started", shard=name, host=mongod.host_string)
        return mongod

    def find(self, host: str) -> Mongod | None:
        """Return the shard server with this host string or address, None if there is none."""
        for mongod in self._running.values():
            if host in (mongod.host_string, mongod.host_string.partition("/")[2]):
                return mongod
        return None

    def _make(self, name: str, *, is_config: bool) -> Mongod:
        return Mongod(
            name,
            "configsvr" if is_config else "shardsvr",
            server_version=self._server_version,
            oplog_size=self._oplog_size,
            noop_interval=self._noop_interval,
            wall=self._wall,
            random=Random(self._random.getrandbits(64)),
            access=self._access,
        )

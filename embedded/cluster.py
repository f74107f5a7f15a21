"""A sharded cluster in one process: config server, shards and a mongos endpoint."""

import time
from collections.abc import Callable
from random import Random
from types import TracebackType
from typing import Self

from bson.objectid import ObjectId

from embedded.access.control import AccessControl
from embedded.cursors import CursorTable
from embedded.logical_clock import LogicalClock
from embedded.member import Role
from embedded.mongod import Mongod
from embedded.mongos.catalog import ClusterCatalog
from embedded.mongos.cluster_transactions import TransactionTable
from embedded.mongos.commands import Mongos
from embedded.mongos.namespace_locks import NamespaceLocks
from embedded.mongos.request import ClusterState
from embedded.mongos.shards import Servers, Shard
from embedded.server import Server
from embedded.server_version import V6_0, ServerVersion


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
        chance, access = random or Random(), access or AccessControl()

        def make(name: str, role: Role) -> Mongod:
            return Mongod(
                name,
                role,
                server_version=server_version,
                oplog_size=oplog_size,
                noop_interval=noop_interval,
                wall=wall,
                random=Random(chance.getrandbits(64)),
                access=access,
            )

        servers, locks = Servers(make), NamespaceLocks()
        gossip = LogicalClock(lambda: 0.0)  # it never ticks by itself
        self.state = ClusterState(
            catalog=ClusterCatalog(Shard("config", servers.config, gossip), gossip),
            servers=servers,
            locks=locks,
            transactions=TransactionTable(locks),
            cursors=CursorTable(chance),
            process_id=ObjectId(),
            access=access,
        )
        self.mongos = Mongos(self.state)
        self._server = Server(self.mongos.run_command, access.tls)

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
        state, config = self.state, self.state.catalog.config
        await state.servers.config.start()
        if state.access.enforced:
            keys = {"insert": "system.keys", "documents": state.access.keys()}
            await config.execute("admin", keys)
        version = {"insert": "version", "documents": [{"_id": 1, "clusterId": ObjectId()}]}
        await config.execute("config", version)
        for name in self._names:
            mongod = await state.servers.start_shard(name)
            await state.catalog.add_shard(Shard(name, mongod, state.catalog.gossip))
        await self._server.start(self._port)

    async def stop(self) -> None:
        """Stop all servers."""
        await self._server.stop()
        self.state.cursors.close()
        self.state.transactions.close()
        await self.state.servers.stop()

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
    def config_server(self) -> Mongod:
        """The config server."""
        return self.state.servers.config

    @property
    def configdb(self) -> str:
        """The config server's host string, in the form of ``--configdb``."""
        return self.config_server.host_string

    @property
    def shards(self) -> dict[str, str]:
        """The host strings of the cluster's shards, by shard id."""
        return {shard.id: shard.host for shard in self.state.catalog.shards}

    def shard(self, name: str) -> Mongod:
        """Return the shard server of this name.

        Raises:
            KeyError: no such server runs.
        """
        return self.state.servers.shards[name]

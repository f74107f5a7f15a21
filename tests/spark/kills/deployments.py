"""What the job of a seed reads, with the faults of its servers."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness.clusters import (
    RealCluster,
    TestCluster,
    real_servers_named,
    start_cluster,
    start_real_set,
)
from tests.harness.ports import free_port
from tests.harness.replica_sets import ReplicaSet
from tests.harness.routers import start_router


class Deployment(ABC):
    """A router in front of a cluster, a mongos alone, or a replica set.

    ``uri`` is what the job reads, ``beside`` a server for writes that no fault of ``router`` kills,
    ``truth`` one whose change stream has all events. ``lacks`` are the kinds of faults that it
    cannot have.
    """

    uri: str
    beside: str
    truth: str
    lacks: tuple[str, ...] = ()

    @property
    @abstractmethod
    def shards(self) -> list[str]:
        """The shards by name, none of a replica set."""

    @abstractmethod
    def kill_router(self, pause: float) -> None:
        """Kill what the job reads through, and start it again after some seconds."""

    @abstractmethod
    def kill_primary(self, which: float, pause: float) -> None:
        """Kill a primary and start it again after some seconds; ``which`` is from 0 to 1."""

    def add_shard(self) -> str:
        """Add a shard; return its name."""
        raise NotImplementedError


class _Clustered(Deployment):
    def __init__(self, cluster: TestCluster) -> None:
        self._cluster = cluster
        self.beside = cluster.mongos_uri

    @property
    def shards(self) -> list[str]:
        return sorted(self._cluster.shards)

    def kill_primary(self, which: float, pause: float) -> None:
        shard = self.shards[int(which * len(self.shards))]
        self._cluster.stop_member(shard)
        time.sleep(pause)
        self._cluster.start_member(shard)

    def add_shard(self) -> str:
        return self._cluster.add_shard()[0]


class _ThroughRouter(_Clustered):
    def __init__(self, cluster: TestCluster) -> None:
        super().__init__(cluster)
        self._port = free_port()
        self._start()
        self.uri = self._router.uri
        # The embedded mongos has no change streams: there the router's is read by pymongo.
        self.truth = cluster.mongos_uri if cluster.real else self.uri

    def _start(self) -> None:
        cluster = self._cluster
        self._router = start_router(cluster.configdb, cluster.mongos_uri, port=self._port)

    def kill_router(self, pause: float) -> None:
        self._router.process.kill()
        self._router.process.wait()
        time.sleep(pause)
        self._start()

    def stop(self) -> None:
        self._router.stop()


class _ThroughMongos(_Clustered):
    def __init__(self, cluster: RealCluster) -> None:
        super().__init__(cluster)
        self._servers = cluster
        self._name, address = list(cluster.mongoses.items())[1]
        self.uri = cluster.mongos_uri.replace(cluster.mongos, address)
        self.truth = cluster.mongos_uri

    def kill_router(self, pause: float) -> None:
        self._servers.stop_mongos(self._name)
        time.sleep(pause)
        self._servers.start_mongos(self._name)


class _Set(Deployment):
    lacks = ("router", "move", "shard")

    def __init__(self, servers: ReplicaSet) -> None:
        self._servers = servers
        self.uri = self.beside = self.truth = servers.set_uri

    @property
    def shards(self) -> list[str]:
        return []

    def kill_router(self, pause: float) -> None:
        raise NotImplementedError

    def kill_primary(self, which: float, pause: float) -> None:
        primary = self._servers.wait_primary()
        self._servers.kill(primary)
        time.sleep(pause)
        self._servers.start(primary)
        self._servers.wait_healthy()


@contextmanager
def deployed(kind: str, members: int) -> Iterator[Deployment]:
    """Run one of `conftest.DEPLOYMENTS` for the block; skip the test if there are no servers."""
    if kind == "replica set":
        with start_real_set("rs0", members) as servers:
            yield _Set(servers)
        return
    options = {"members": members, "mongoses": 2} if real_servers_named() else {}
    with start_cluster(2, noop_interval=1, **options) as cluster:
        if kind == "router":
            through = _ThroughRouter(cluster)
            try:
                yield through
            finally:
                through.stop()
        elif isinstance(cluster, RealCluster):
            yield _ThroughMongos(cluster)
        else:
            pytest.skip("the embedded mongos has no change streams")

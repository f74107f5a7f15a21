"""Sharded clusters for tests: the embedded one, or real servers, behind one interface.

If ``MERGEROUTER_MONGO_BIN`` names a folder with ``mongod`` and ``mongos``, tests that call
``start_cluster`` run on these programs. If ``MERGEROUTER_MONGO_IMAGE`` names a Docker image, such
as mongo:6.0, they run on its containers.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster_base import Client, TestCluster, shard
from tests.harness.embedded_process import EmbeddedProcess
from tests.harness.launchers import Containers, Launcher, ServerBinaries
from tests.harness.real_cluster import RealCluster
from tests.harness.replica_sets import ReplicaSet
from tests.harness.server_settings import ServerSettings

__all__ = [
    "REAL_SERVERS",
    "Client",
    "RealCluster",
    "TestCluster",
    "on_real_servers",
    "real_servers_named",
    "shard",
    "start_cluster",
    "start_real_cluster",
    "start_real_set",
]

REAL_SERVERS = "MERGEROUTER_MONGO_BIN"
DOCKER_IMAGE = "MERGEROUTER_MONGO_IMAGE"
_NO_SERVERS = f"needs MongoDB's servers: set {REAL_SERVERS} or {DOCKER_IMAGE}"


def start_cluster(shards: int = 3, **options: Any) -> TestCluster:
    """Start a cluster of ``shards`` shards called shard0, shard1, …

    ``options`` are flags of ``mergerouter embedded``, or arguments of ``RealCluster``: both have
    ``noop_interval`` (whole seconds on real servers, which have a ``server_version`` of their own)
    and ``settings``, of which the embedded cluster takes ``noop_interval``, key file and TLS.
    """
    launcher = _launcher()
    if launcher is None:
        return EmbeddedProcess(shards, options)
    options.pop("server_version", None)
    return RealCluster(launcher, shards, **options)


def real_servers_named() -> bool:
    """Return whether ``start_cluster`` starts MongoDB's own servers."""
    return REAL_SERVERS in os.environ or DOCKER_IMAGE in os.environ


def on_real_servers(lacking: str) -> pytest.MarkDecorator:
    """Return a mark for tests that need what the embedded cluster does not have."""
    return pytest.mark.skipif(
        not real_servers_named(), reason=f"the embedded cluster has no {lacking}"
    )


def start_real_cluster(shards: int = 3, **options: Any) -> RealCluster:
    """Start a cluster of MongoDB's own servers; skip the test without them.

    ``options`` are arguments of ``RealCluster``, such as ``members=3``.
    """
    launcher = _launcher()
    if launcher is None:
        pytest.skip(_NO_SERVERS)
    return RealCluster(launcher, shards, **options)


@contextmanager
def start_real_set(
    name: str, members: int = 1, settings: ServerSettings | None = None
) -> Iterator[ReplicaSet]:
    """Run a replica set of MongoDB's own servers for the block; skip the test without them."""
    launcher = _launcher()
    if launcher is None:
        pytest.skip(_NO_SERVERS)
    servers = ReplicaSet(launcher, name, settings or ServerSettings(noop_interval=1), members)
    try:
        servers.launch()
        servers.initiate()
        yield servers
    finally:
        launcher.stop()


def _launcher() -> Launcher | None:
    folder, image = os.environ.get(REAL_SERVERS), os.environ.get(DOCKER_IMAGE)
    if folder:
        return ServerBinaries(Path(folder))
    return Containers(image) if image else None

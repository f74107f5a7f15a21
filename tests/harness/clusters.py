"""Sharded clusters for tests: the embedded one, or real servers, behind one interface.

If ``MERGEROUTER_MONGO_BIN`` names a folder with ``mongod`` and ``mongos``, tests that call
``start_cluster`` run on these programs. ``pytest --docker`` runs them on containers of
``MERGEROUTER_MONGO_IMAGE``, by default mongo:6.0.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from embedded.demo.processes import Program
from tests.harness.cluster_base import Client, TestCluster
from tests.harness.launchers import Containers, Launcher, ServerBinaries
from tests.harness.real_cluster import RealCluster
from tests.harness.replica_sets import ReplicaSet
from tests.harness.server_settings import ServerSettings

__all__ = [
    "DEFAULT_IMAGE",
    "DOCKER_IMAGE",
    "EMBEDDED",
    "REAL_SERVERS",
    "Client",
    "EmbeddedProcess",
    "RealCluster",
    "ServerBinaries",
    "TestCluster",
    "on_real_servers",
    "real_servers_named",
    "start_cluster",
    "start_real_cluster",
    "start_real_set",
]

REAL_SERVERS = "MERGEROUTER_MONGO_BIN"
DOCKER_IMAGE = "MERGEROUTER_MONGO_IMAGE"
DEFAULT_IMAGE = "mongo:6.0"
_NO_SERVERS = f"needs MongoDB's servers: set {REAL_SERVERS}, or use --docker"
_START_SECONDS = 120.0
EMBEDDED = "import typer; from embedded.cli import embedded; typer.run(embedded)"
"""The program ``mergerouter embedded``, without the router's package."""


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


class EmbeddedProcess(TestCluster):
    """``mergerouter embedded`` as a child process."""

    def __init__(self, shards: int, options: Mapping[str, Any]) -> None:
        flags = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in options.items()
            if name != "settings"
        ]
        self._settings: ServerSettings = options.get("settings") or ServerSettings()
        flags += self._settings.embedded()
        self._program = Program(
            "the embedded cluster", ["-c", EMBEDDED, f"--shards={shards}", *flags]
        )
        self.process = self._program.process
        attributes = self._program.wait_ready(_START_SECONDS)
        self.mongos = attributes["mongos"]
        self.configdb = attributes["configdb"]
        self.shards = attributes["shards"]
        self._started = len(self.shards)
        if self._settings.login:
            self.create_root(self._settings)

    @property
    def mongos_uri(self) -> str:
        return self._settings.root_uri(self.mongos)

    def direct(self, name: str, **options: Any) -> Client:
        host = self.configdb if name == "config" else self.shards[name]
        uri = self._settings.uri(host.partition("/")[2], "directConnection=true")
        return Client(uri, **options)

    @property
    def real(self) -> bool:
        return False

    def start_shard(self) -> tuple[str, str]:
        name = f"shard{self._started}"
        self._started += 1
        with Client(self.mongos_uri) as client:
            return name, client.admin.command("startShard", name)["host"]

    def stop_member(self, name: str) -> None:
        self._switch(name, "stop")

    def start_member(self, name: str) -> None:
        self._switch(name, "start")

    def hang_member(self, name: str) -> None:
        self._switch(name, "hang")

    def wake_member(self, name: str) -> None:
        self._switch(name, "goOn")

    def kill_cursors(self, name: str) -> None:
        self._switch(name, "killCursors")

    def _switch(self, name: str, to: str) -> None:
        with Client(self.mongos_uri) as client:
            client.admin.command("switchMember", name, to=to)

    @property
    def logs(self) -> list[str]:
        """The lines of its log."""
        return list(self._program.lines)

    def stop(self) -> None:
        self._program.stop()

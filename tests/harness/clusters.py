"""Sharded clusters for tests: the embedded one, or real servers, behind one interface.

``MERGEROUTER_MONGO_BIN`` names a folder with ``mongod`` and ``mongos``; with it, tests that call
``start_cluster`` run against those (docs/protocol.md, section 9). ``pytest --docker`` runs them
against containers of ``MERGEROUTER_MONGO_IMAGE``, by default mongo:6.0.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import pymongo
import pytest
from pymongo.errors import OperationFailure, PyMongoError

from embedded.demo.processes import Program

Client = pymongo.MongoClient[dict[str, Any]]

REAL_SERVERS = "MERGEROUTER_MONGO_BIN"
DOCKER_IMAGE = "MERGEROUTER_MONGO_IMAGE"
DEFAULT_IMAGE = "mongo:6.0"
_START_SECONDS = 30.0
_REAL_START_SECONDS = 120.0
_ALREADY_INITIALIZED = 23


class TestCluster(ABC):
    """A running sharded cluster."""

    __test__ = False

    mongos: str
    """``host:port`` of the mongos."""

    configdb: str
    """The config server's host string."""

    shards: dict[str, str]
    """The shards by id, with their host strings."""

    @property
    def mongos_uri(self) -> str:
        """The connection string of the mongos."""
        return f"mongodb://{self.mongos}/"

    @property
    @abstractmethod
    def real(self) -> bool:
        """Whether these are MongoDB's own servers."""

    @abstractmethod
    def start_shard(self) -> tuple[str, str]:
        """Start one more shard server, which is no shard yet; return its id and host string."""

    @abstractmethod
    def stop(self) -> None:
        """End all servers."""

    def add_shard(self) -> tuple[str, str]:
        """Start one more server and make it a shard; return its id and host string."""
        name, host = self.start_shard()
        client: Client
        with pymongo.MongoClient(self.mongos_uri) as client:
            client.admin.command("addShard", host, name=name)
        self.shards[name] = host
        return name, host

    def direct(self, name: str, **options: Any) -> Client:
        """Return a client of one shard's server (``config``: the config server's)."""
        host = self.configdb if name == "config" else self.shards[name]
        return pymongo.MongoClient(
            f"mongodb://{host.partition('/')[2]}/?directConnection=true", **options
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start_cluster(shards: int = 3, **options: Any) -> TestCluster:
    """Start a cluster of ``shards`` shards called shard0, shard1, …

    ``options`` are ``mergerouter embedded``'s flags, such as ``token_version=2``; real servers
    know ``noop_interval`` (whole seconds) only.
    """
    return _real_cluster(shards, options) or EmbeddedProcess(shards, options)


def real_servers_named() -> bool:
    """Whether ``start_cluster`` starts MongoDB's own servers."""
    return REAL_SERVERS in os.environ or DOCKER_IMAGE in os.environ


def start_real_cluster(shards: int = 3, **options: Any) -> TestCluster:
    """Start a cluster of MongoDB's own servers, or skip the test for want of them."""
    cluster = _real_cluster(shards, options)
    if cluster is None:
        pytest.skip(f"needs MongoDB's servers: set {REAL_SERVERS}, or use --docker")
    return cluster


def _real_cluster(shards: int, options: Mapping[str, Any]) -> TestCluster | None:
    noop_interval = options.get("noop_interval")
    folder, image = os.environ.get(REAL_SERVERS), os.environ.get(DOCKER_IMAGE)
    if folder:
        return RealCluster(ServerBinaries(Path(folder)), shards, noop_interval=noop_interval)
    if image:
        return RealCluster(Containers(image), shards, noop_interval=noop_interval)
    return None


class EmbeddedProcess(TestCluster):
    """``mergerouter embedded`` as a child process."""

    def __init__(self, shards: int, options: Mapping[str, Any]) -> None:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        program = "import typer; from embedded.cli import embedded; typer.run(embedded)"
        self._program = Program(
            "the embedded cluster", ["-c", program, f"--shards={shards}", *flags]
        )
        self.process = self._program.process
        attributes = self._program.wait_ready(_START_SECONDS)
        self.mongos = attributes["mongos"]
        self.configdb = attributes["configdb"]
        self.shards = attributes["shards"]

    @property
    def real(self) -> bool:
        return False

    def start_shard(self) -> tuple[str, str]:
        name = f"shard{len(self.shards)}"
        client: Client
        with pymongo.MongoClient(self.mongos_uri) as client:
            return name, client.admin.command("startShard", name)["host"]

    @property
    def logs(self) -> list[str]:
        """The lines that it has logged."""
        return list(self._program.lines)

    def stop(self) -> None:
        self._program.stop()


class Launcher(Protocol):
    """How MongoDB's programs are started and ended."""

    def launch(self, name: str, program: str, *arguments: str) -> None:
        """Start ``program``; ``name`` is for its files and its log."""

    def stop(self) -> None:
        """End everything that was started, the last first."""


class ServerBinaries:
    """Programs from a folder, as child processes; their data goes to a temporary folder."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="mergerouter-cluster-"))
        self._processes: list[subprocess.Popen[bytes]] = []

    def launch(self, name: str, program: str, *arguments: str) -> None:
        if program == "mongod":
            data = self._folder / name
            data.mkdir()
            arguments = (*arguments, "--dbpath", str(data))
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [self._binaries / program, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Containers:
    """Programs of a Docker image, on the machine's own network, so that all addresses agree."""

    def __init__(self, image: str) -> None:
        self._image = image
        self._containers: list[Any] = []

    def launch(self, name: str, program: str, *arguments: str) -> None:
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(self._image)
        container.with_command([program, *arguments]).with_kwargs(network_mode="host")
        container.start()
        self._containers.append(container)

    def stop(self) -> None:
        for container in reversed(self._containers):
            container.stop()


class RealCluster(TestCluster):
    """MongoDB's own servers, one-member replica sets."""

    def __init__(
        self, launcher: Launcher, shards: int, *, noop_interval: float | None = None
    ) -> None:
        self._launcher = launcher
        self._noop: list[str] = []
        if noop_interval is not None:
            seconds = max(1, round(noop_interval))
            self._noop = ["--setParameter", f"periodicNoopIntervalSecs={seconds}"]
        self.shards = {}
        try:
            self.configdb = self._start_member("cfg", "--configsvr")
            self.mongos = self._start_mongos()
            for _ in range(shards):
                self.add_shard()
        except BaseException:
            self.stop()
            raise

    @property
    def real(self) -> bool:
        return True

    def start_shard(self) -> tuple[str, str]:
        name = f"shard{len(self.shards)}"
        return name, self._start_member(name, "--shardsvr")

    def stop(self) -> None:
        self._launcher.stop()

    def _start_member(self, name: str, role: str) -> str:
        port = _free_port()
        self._launcher.launch(
            name, "mongod", role, "--replSet", name, "--bind_ip", "127.0.0.1",
            "--port", str(port), "--wiredTigerCacheSizeGB", "0.4", "--oplogSize", "512",
            "--setParameter", "enableTestCommands=1",
            "--setParameter", "shutdownTimeoutMillisForSignaledShutdown=0", *self._noop,
        )  # fmt: skip
        address = f"127.0.0.1:{port}"
        config: dict[str, Any] = {"_id": name, "members": [{"_id": 0, "host": address}]}
        if role == "--configsvr":
            config["configsvr"] = True
        uri = f"mongodb://{address}/?directConnection=true"

        def initiated(client: Client) -> bool:
            try:
                client.admin.command("replSetInitiate", config)
            except OperationFailure as error:
                return error.code == _ALREADY_INITIALIZED
            return True

        _eventually(uri, f"{name} to take its configuration", initiated)
        _eventually(uri, f"{name} to be primary", _is_primary)
        return f"{name}/{address}"

    def _start_mongos(self) -> str:
        port = _free_port()
        self._launcher.launch(
            "mongos", "mongos", "--configdb", self.configdb, "--bind_ip", "127.0.0.1",
            "--port", str(port),
            "--setParameter", "enableTestCommands=1",
            "--setParameter", "mongosShutdownTimeoutMillisForSignaledShutdown=0",
        )  # fmt: skip
        _eventually(f"mongodb://127.0.0.1:{port}/", "mongos to start", _answers)
        return f"127.0.0.1:{port}"


def _eventually(uri: str, what: str, done: Callable[[Client], bool]) -> None:
    """Ask, with a new client each time, until ``done``; a bounded time.

    New clients, since a connection from before replSetInitiate refuses sessions.
    """
    deadline = time.monotonic() + _REAL_START_SECONDS
    failure: PyMongoError | None = None
    client: Client
    while time.monotonic() < deadline:
        try:
            with pymongo.MongoClient(uri, serverSelectionTimeoutMS=1000) as client:
                if done(client):
                    return
        except PyMongoError as error:
            failure = error
        time.sleep(0.1)
    raise RuntimeError(f"waited {_REAL_START_SECONDS:g} s for {what}: {failure}")


def _is_primary(client: Client) -> bool:
    return bool(client.admin.command("hello")["isWritablePrimary"])


def _answers(client: Client) -> bool:
    return bool(client.admin.command("ping")["ok"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

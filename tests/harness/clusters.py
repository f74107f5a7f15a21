"""Sharded clusters for tests: the embedded one, or real servers, behind one interface.

``MERGEROUTER_MONGO_BIN`` names a folder with ``mongod`` and ``mongos``; with it, tests that call
``start_cluster`` run against those (docs/protocol.md, section 9). ``pytest --docker`` runs them
against containers of ``MERGEROUTER_MONGO_IMAGE``, by default mongo:6.0.
"""

import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymongo
import pytest
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from embedded.demo.processes import Program
from tests.harness.launchers import Containers, Launcher, ServerBinaries
from tests.harness.server_settings import ServerSettings

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

    @abstractmethod
    def stop_member(self, name: str) -> None:
        """End a shard's server (``config``: the config server's) as a power cut would."""

    @abstractmethod
    def start_member(self, name: str) -> None:
        """Start a server that was stopped, with its data, at its address."""

    @abstractmethod
    def hang_member(self, name: str) -> None:
        """Have a server answer nobody, though it can be connected to."""

    @abstractmethod
    def wake_member(self, name: str) -> None:
        """Have a server that hangs go on."""

    @abstractmethod
    def step_down(self, name: str, seconds: float) -> None:
        """Leave a replica set without a primary for so long, then have the same one elected."""

    @abstractmethod
    def kill_cursors(self, name: str) -> None:
        """Kill all cursors on a server."""

    def add_shard(self) -> tuple[str, str]:
        """Start one more server and make it a shard; return its id and host string."""
        name, host = self.start_shard()
        self.join_shard(name, host)
        return name, host

    def join_shard(self, name: str, host: str) -> None:
        """Make a server that runs a shard of the cluster."""
        client: Client
        with pymongo.MongoClient(self.mongos_uri) as client:
            client.admin.command("addShard", host, name=name)
        self.shards[name] = host

    def remove_shard(self, name: str) -> str:
        """Drain a shard and take it out of the cluster; its server runs on. Return its host.

        Its databases go to another shard.
        """
        other = next(each for each in self.shards if each != name)
        deadline = time.monotonic() + _REAL_START_SECONDS
        client: Client
        with pymongo.MongoClient(self.mongos_uri) as client:
            while (state := client.admin.command("removeShard", name))["state"] != "completed":
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{name} does not drain: {state}")
                for database in state.get("dbsToMove", ()):
                    client.admin.command("movePrimary", database, to=other)
                time.sleep(0.05)
        return self.shards.pop(name)

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
        self._started = len(self.shards)

    @property
    def real(self) -> bool:
        return False

    def start_shard(self) -> tuple[str, str]:
        name = f"shard{self._started}"
        self._started += 1
        client: Client
        with pymongo.MongoClient(self.mongos_uri) as client:
            return name, client.admin.command("startShard", name)["host"]

    def stop_member(self, name: str) -> None:
        self._switch(name, "stop")

    def start_member(self, name: str) -> None:
        self._switch(name, "start")

    def hang_member(self, name: str) -> None:
        self._switch(name, "hang")

    def wake_member(self, name: str) -> None:
        self._switch(name, "goOn")

    def step_down(self, name: str, seconds: float) -> None:
        self._switch(name, "stepDown")
        time.sleep(seconds)
        self._switch(name, "stepUp")

    def kill_cursors(self, name: str) -> None:
        self._switch(name, "killCursors")

    def _switch(self, name: str, to: str) -> None:
        client: Client
        with pymongo.MongoClient(self.mongos_uri) as client:
            client.admin.command("switchMember", name, to=to)

    @property
    def logs(self) -> list[str]:
        """The lines that it has logged."""
        return list(self._program.lines)

    def stop(self) -> None:
        self._program.stop()


class RealCluster(TestCluster):
    """MongoDB's own servers, one-member replica sets."""

    def __init__(
        self, launcher: Launcher, shards: int, *, noop_interval: float | None = None
    ) -> None:
        self._launcher = launcher
        self._started = 0
        self._settings = ServerSettings(noop_interval=noop_interval)
        self.shards = {}
        try:
            self.configdb = self._start_server("cfg", "--configsvr")
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
        name = f"shard{self._started}"
        self._started += 1
        return name, self._start_server(name, "--shardsvr")

    def stop_member(self, name: str) -> None:
        self._launcher.kill(_program(name))

    def start_member(self, name: str) -> None:
        self._launcher.relaunch(_program(name))
        _eventually(self._direct_uri(name), f"{name} to be primary again", _is_primary)

    def hang_member(self, name: str) -> None:
        self._launcher.pause(_program(name))

    def wake_member(self, name: str) -> None:
        self._launcher.unpause(_program(name))

    def step_down(self, name: str, seconds: float) -> None:
        client: Client
        whole = max(1, round(seconds))
        try:
            with self.direct(name) as client:
                client.admin.command("replSetStepDown", whole, force=True)
        except AutoReconnect:
            pass  # some versions close all connections
        _eventually(self._direct_uri(name), f"{name} to be primary again", _is_primary)

    def kill_cursors(self, name: str) -> None:
        client: Client
        with self.direct(name) as client:
            current = [{"$currentOp": {"idleCursors": True, "allUsers": True}}]
            for operation in client.admin.aggregate(current):
                cursor = operation.get("cursor")
                if cursor is not None and "changeStream" in str(cursor.get("originatingCommand")):
                    database, _, collection = operation["ns"].partition(".")
                    killing = {"killCursors": collection, "cursors": [cursor["cursorId"]]}
                    client[database].command(killing)

    def stop(self) -> None:
        self._launcher.stop()

    def _direct_uri(self, name: str) -> str:
        host = self.configdb if name == "config" else self.shards[name]
        return f"mongodb://{host.partition('/')[2]}/?directConnection=true"

    def _start_server(self, name: str, role: str) -> str:
        port = _free_port()
        self._launcher.launch(
            name, "mongod", role, "--replSet", name, "--bind_ip", "127.0.0.1",
            "--port", str(port), *self._settings.mongod(),
        )  # fmt: skip
        address = f"127.0.0.1:{port}"
        config: dict[str, Any] = {
            "_id": name,
            "members": [{"_id": 0, "host": address}],
            "settings": self._settings.replica_set(),
        }
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
            "--port", str(port), *self._settings.mongos(),
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


def _program(member: str) -> str:
    return "cfg" if member == "config" else member


def _is_primary(client: Client) -> bool:
    return bool(client.admin.command("hello")["isWritablePrimary"])


def _answers(client: Client) -> bool:
    return bool(client.admin.command("ping")["ok"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

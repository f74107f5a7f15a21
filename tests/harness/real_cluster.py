"""A sharded cluster of MongoDB's own servers."""

from collections.abc import Callable
from typing import Any

from tests.harness.cluster_base import Client, TestCluster
from tests.harness.launchers import Launcher
from tests.harness.ports import free_port
from tests.harness.replica_sets import ReplicaSet, eventually
from tests.harness.server_settings import ServerSettings
from tests.harness.until import wait_for


class RealCluster(TestCluster):
    """A sharded cluster of MongoDB's own servers.

    Args:
        launcher: starts the servers.
        shards: the number of shards, called shard0, shard1, …
        noop_interval: seconds between an idle primary's no-ops; None for the server's default.
        members: the number of members of each replica set, including the config server's.
        mongoses: the number of mongos; ``mongos`` is the first.
        settings: the servers' configuration, which overrides ``noop_interval``.
    """

    def __init__(
        self,
        launcher: Launcher,
        shards: int,
        *,
        noop_interval: float | None = None,
        members: int = 1,
        mongoses: int = 1,
        settings: ServerSettings | None = None,
    ) -> None:
        self._launcher = launcher
        self._started = 0
        self._settings = settings or ServerSettings(noop_interval=noop_interval)
        self._members = members
        self.shards = {}
        self.sets: dict[str, ReplicaSet] = {}
        """The replica sets by shard id; ``config`` is the config server's."""
        self.mongoses: dict[str, str] = {}
        """The addresses of all mongos by program name."""
        try:
            self._start(shards, mongoses)
        except BaseException:
            self.stop()
            raise

    @property
    def real(self) -> bool:
        return True

    @property
    def mongos_uri(self) -> str:
        return self._settings.root_uri(self.mongos)

    def start_shard(self) -> tuple[str, str]:
        shard = self._launch_shard()
        shard.initiate()
        return shard.name, shard.host_string

    def direct(self, name: str, **options: Any) -> Client:
        replica_set = self.sets[name]
        program = next(iter(replica_set.members))
        if len(replica_set.members) > 1:
            program = replica_set.wait_primary()
        return Client(replica_set.uri(program), **options)

    def stop_member(self, name: str) -> None:
        replica_set = self.sets[name]
        replica_set.kill(replica_set.wait_primary())

    def start_member(self, name: str) -> None:
        replica_set = self.sets[name]
        for program in replica_set.members:
            if not self._launcher.running(program):
                replica_set.start(program)
        replica_set.wait_healthy()

    def hang_member(self, name: str) -> None:
        replica_set = self.sets[name]
        replica_set.hang(replica_set.wait_primary())

    def wake_member(self, name: str) -> None:
        replica_set = self.sets[name]
        for program in replica_set.members:
            replica_set.wake(program)

    def roll_over(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Write to all shards until their oplogs have lost what they had before.

        It needs a small ``oplog_mb`` and frequent checkpoints. ``meanwhile`` is called repeatedly.
        """
        note = {"appendOplogNote": 1, "data": {"text": "x" * 100_000}}
        for name in self.shards:
            with self.direct(name) as shard:
                oplog = shard.local["oplog.rs"]
                last = oplog.find(sort=[("$natural", -1)], limit=1).next()["ts"]

                def is_lost(shard: Client = shard, oplog: Any = oplog, last: Any = last) -> bool:
                    for _ in range(10):
                        shard.admin.command(note)
                    meanwhile()
                    return bool(oplog.find_one(sort=[("$natural", 1)])["ts"] > last)

                wait_for(is_lost, "the oplog to roll over")

    def kill_cursors(self, name: str) -> None:
        replica_set = self.sets[name]
        replica_set.kill_cursors(replica_set.wait_primary())

    def stop_mongos(self, name: str) -> None:
        """End a mongos as a power cut would."""
        self._launcher.kill(name)

    def start_mongos(self, name: str) -> None:
        """Restart a stopped mongos and wait until it answers."""
        self._launcher.relaunch(name)
        eventually(self._settings.client_uri(self.mongoses[name]), f"{name} to start", _answers)

    def stop(self) -> None:
        self._launcher.stop()

    def _start(self, shards: int, mongoses: int) -> None:
        config = ReplicaSet(
            self._launcher, "cfg", self._settings, self._members, role="--configsvr"
        )
        self.sets["config"] = config
        config.launch()
        launched = [self._launch_shard() for _ in range(shards)]
        config.initiate()
        self.configdb = config.host_string
        for number in range(mongoses):
            name = f"mongos-{number}" if number else "mongos"
            port = free_port()
            self._launcher.launch(
                name, "mongos", "--configdb", self.configdb, "--bind_ip", "127.0.0.1",
                "--port", str(port), *self._settings.mongos(),
            )  # fmt: skip
            self.mongoses[name] = f"127.0.0.1:{port}"
        self.mongos = self.mongoses["mongos"]
        for shard in launched:
            shard.initiate()
        for name, address in self.mongoses.items():
            eventually(self._settings.client_uri(address), f"{name} to start", _answers)
        if self._settings.login:
            self.create_root(self._settings)
        for shard in launched:
            self.join_shard(shard.name, shard.host_string)

    def _launch_shard(self) -> ReplicaSet:
        name = f"shard{self._started}"
        self._started += 1
        shard = ReplicaSet(self._launcher, name, self._settings, self._members, role="--shardsvr")
        shard.launch()
        self.sets[name] = shard
        return shard


def _answers(client: Client) -> bool:
    return bool(client.admin.command("ping")["ok"])

"""Faults of a cluster of three-member sets, its mongos and the router."""

import random
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pymongo

from tests.faults.writers import DATABASE, SHARDED
from tests.harness.cluster_base import Client
from tests.harness.real_cluster import RealCluster
from tests.harness.replica_sets import ReplicaSet
from tests.harness.routers import RouterProcess, start_router
from tests.harness.until import wait_for

SETS = ("shard0", "shard1", "config")
_MOVE_SECONDS = 60.0
_ANSWER_SECONDS = 120.0


@dataclass(slots=True)
class Faults:
    """The faults. Each is a method that returns after it has repaired the damage.

    Args:
        cluster: a cluster with three members in each set and two mongos.
        router: the router to kill and restart at its port.
        checkpoint: waits until all watchers have received all writes so far.
        answers: returns the number of answers that each driver on the router has had, by name.
        parameters: the router's start parameters.
    """

    cluster: RealCluster
    router: RouterProcess
    checkpoint: Callable[[], None]
    answers: Callable[[], Mapping[str, int]]
    parameters: dict[str, object] = field(default_factory=dict)
    log: list[tuple[float, float, str]] = field(default_factory=list)
    """The start and end (monotonic clock) and the description of each fault."""
    _before: list[RouterProcess] = field(default_factory=list)
    _answers: Mapping[str, int] = field(default_factory=dict)
    """The answers up to the last restart of the router."""
    _extra: str = ""

    @property
    def routers(self) -> list[RouterProcess]:
        """All routers, the running one last."""
        return [*self._before, self.router]

    def run(self, name: str, on: str = "", seconds: float = 0.0) -> None:
        """Run the fault ``name``; ``on`` is the set for faults of a replica set."""
        what = " ".join(filter(None, (name, on, f"{seconds:.1f} s" if seconds else "")))
        begun = time.monotonic()
        try:
            if on:
                getattr(self, name)(self.cluster.sets[on], seconds)
                self.cluster.sets[on].wait_healthy()
            else:
                getattr(self, name)(seconds)
        finally:
            self.log.append((begun, time.monotonic(), what))

    def run_all(self, *faults: tuple[str, str, float]) -> None:
        """Run faults of different sets at the same time."""
        with ThreadPoolExecutor() as pool:
            for each in [pool.submit(self.run, *fault) for fault in faults]:
                each.result()

    # Faults of a replica set.

    def kill_primary(self, where: ReplicaSet, seconds: float) -> None:
        """Kill the primary; it restarts after ``seconds``, possibly before an election."""
        primary = where.wait_primary()
        where.kill(primary)
        time.sleep(seconds)
        where.start(primary)

    def kill_secondary(self, where: ReplicaSet, seconds: float) -> None:
        secondary = where.secondaries()[0]
        where.kill(secondary)
        time.sleep(seconds)
        where.start(secondary)

    def hang_primary(self, where: ReplicaSet, seconds: float) -> None:
        primary = where.wait_primary()
        where.hang(primary)
        time.sleep(seconds)
        where.wake(primary)

    def hang_secondary(self, where: ReplicaSet, seconds: float) -> None:
        secondary = where.secondaries()[0]
        where.hang(secondary)
        time.sleep(seconds)
        where.wake(secondary)

    def step_down(self, where: ReplicaSet, seconds: float) -> None:
        where.step_down(max(2, round(seconds)))

    def partition_primary(self, where: ReplicaSet, seconds: float) -> None:
        with where.partitioned_primary():
            time.sleep(seconds)

    def lag_secondary(self, where: ReplicaSet, seconds: float) -> None:
        with where.lagging(where.secondaries()[0]):
            time.sleep(seconds)

    def remove_secondary(self, where: ReplicaSet, seconds: float) -> None:
        """Remove a secondary from the configuration, leave it running, and add it again."""
        secondary = where.secondaries()[0]
        where.remove_member(secondary)
        time.sleep(seconds)
        where.add_member(secondary)

    def remove_primary(self, where: ReplicaSet, seconds: float) -> None:
        """Step the primary down and remove it from the configuration at once."""
        primary = where.wait_primary()
        where.step_down(10)
        where.wait_primary(other_than=primary)
        where.remove_member(primary)
        time.sleep(seconds)
        where.add_member(primary)

    def kill_cursors(self, where: ReplicaSet, _seconds: float) -> None:
        where.kill_cursors(where.wait_primary())

    # Faults of the router and of mongos.

    def kill_router(self, seconds: float) -> None:
        self._restart_router(signal.SIGKILL, seconds)

    def end_router(self, seconds: float) -> None:
        self._restart_router(signal.SIGTERM, seconds)

    def hang_router(self, seconds: float) -> None:
        self.router.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.router.process.send_signal(signal.SIGCONT)

    def kill_upstream(self, seconds: float) -> None:
        """Kill the mongos that is the router's upstream; writers use the other one."""
        self.cluster.stop_mongos("mongos")
        time.sleep(seconds)
        self.cluster.start_mongos("mongos")

    # Changes of the cluster.

    def move_chunk(self, _seconds: float) -> None:
        self._move("p", "shard0")
        self._move("p", "shard1")

    def add_shard(self, _seconds: float) -> None:
        """Add a shard of one member and move the chunk of ``p`` to it."""
        if not self._extra:
            self._extra, _host = self.cluster.add_shard()
            self._move("p", self._extra)

    def remove_shard(self, _seconds: float) -> None:
        """Drain a shard, wait for all watchers, remove it and shut it down."""
        if self._extra:
            self._move("p", "shard1")
            self.checkpoint()
            self.cluster.remove_shard(self._extra)
            self.cluster.sets.pop(self._extra).kill(self._extra)
            self._extra = ""

    def _restart_router(self, how: signal.Signals, seconds: float) -> None:
        """End the router and start it at its port again.

        Drivers resume a stream once. If a router ends before it has answered a driver that lost the
        router before it, the driver raises the error. So each must have had an answer first.
        """
        wait_for(
            lambda: not self._answers.items() & self.answers().items(),
            "an answer to each driver since the last restart of the router",
            _ANSWER_SECONDS,
        )
        port = self.router.port
        self.router.process.send_signal(how)
        self.router.process.wait()
        time.sleep(seconds)
        self._before.append(self.router)
        self.router = start_router(
            self.cluster.configdb, self.cluster.mongos_uri, port=port, set_parameter=self.parameters
        )
        self._answers = dict(self.answers())

    def _move(self, region: str, shard: str) -> None:
        with Client(self.cluster.mongos_uri) as client:
            deadline = time.monotonic() + _MOVE_SECONDS
            while True:
                try:
                    client.admin.command(
                        "moveChunk", f"{DATABASE}.{SHARDED}", find={"region": region}, to=shard
                    )
                except pymongo.errors.PyMongoError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)  # a transaction or an election blocks it
                    continue
                return


_ON_A_SET = {
    "kill_primary": (3, (0.1, 8.0)),
    "kill_secondary": (1, (0.5, 6.0)),
    "hang_primary": (3, (0.5, 12.0)),
    "hang_secondary": (1, (0.5, 8.0)),
    "step_down": (3, (2.0, 6.0)),
    "partition_primary": (3, (1.0, 15.0)),
    "lag_secondary": (2, (2.0, 12.0)),
    "remove_secondary": (2, (0.5, 8.0)),
    "remove_primary": (1, (0.5, 6.0)),
    "kill_cursors": (1, (0.0, 0.0)),
}
_ON_ALL = {
    "kill_router": (3, (0.0, 2.0)),
    "end_router": (1, (0.0, 1.0)),
    "hang_router": (1, (0.5, 6.0)),
    "kill_upstream": (2, (0.2, 4.0)),
    "move_chunk": (2, (0.0, 0.0)),
    "add_shard": (2, (0.0, 0.0)),
    "remove_shard": (2, (0.0, 0.0)),
}


def random_faults(chance: random.Random) -> list[tuple[str, str, float]]:
    """Choose the next faults at random: one, or several at once on different sets."""
    if chance.random() < 0.3:
        name, (_, between) = _choose(chance, _ON_ALL)
        return [(name, "", chance.uniform(*between))]
    chosen = []
    for where in chance.sample(SETS, chance.choice((1, 1, 1, 2, 2, 3))):
        name, (_, between) = _choose(chance, _ON_A_SET)
        chosen.append((name, where, chance.uniform(*between)))
    if chance.random() < 0.15:
        chosen.append(("kill_router", "", chance.uniform(0.0, 2.0)))
    return chosen


def _choose(
    chance: random.Random, weights: dict[str, tuple[int, tuple[float, float]]]
) -> tuple[str, tuple[int, tuple[float, float]]]:
    names = list(weights)
    name = chance.choices(names, [weights[each][0] for each in names])[0]
    return name, weights[name]

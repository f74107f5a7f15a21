"""Faults of a cluster of three-member sets, its mongos and the router."""

import random
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.faults.writers import DATABASE, SHARDED
from tests.harness.cluster_base import Client
from tests.harness.real_cluster import RealCluster
from tests.harness.replica_sets import ReplicaSet, eventually
from tests.harness.routers import RouterProcess, start_router
from tests.harness.until import wait_for

SETS = ("shard0", "shard1", "config")
_ANSWER_SECONDS = 120.0


@dataclass(slots=True)
class Faults:
    """Damages the cluster or the router, and repairs it.

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
                with _OF_A_SET[name].damage(self.cluster.sets[on]):
                    time.sleep(seconds)
                self.cluster.sets[on].wait_healthy()
            else:
                _OF_ALL[name].damage(self, seconds)
        finally:
            self.log.append((begun, time.monotonic(), what))

    def run_all(self, *faults: tuple[str, str, float]) -> None:
        """Run faults of different sets at the same time."""
        with ThreadPoolExecutor() as pool:
            for each in [pool.submit(self.run, *fault) for fault in faults]:
                each.result()

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
        def moved(client: Client) -> bool:
            find = {"region": region}
            client.admin.command("moveChunk", f"{DATABASE}.{SHARDED}", find=find, to=shard)
            return True

        # A transaction or an election blocks it at times.
        eventually(self.cluster.mongos_uri, f"{region} to move to {shard}", moved)


class _OfASet(NamedTuple):
    """A fault of a replica set, which is damaged within a block of some seconds."""

    weight: int
    """How often the fault is chosen, compared with the others."""
    seconds: tuple[float, float]
    damage: Callable[[ReplicaSet], AbstractContextManager[object]]


class _OfAll(NamedTuple):
    """A fault of the router, a mongos or the whole cluster, repaired when ``damage`` returns."""

    weight: int
    seconds: tuple[float, float]
    damage: Callable[[Faults, float], None]


def _at_once(
    act: Callable[[ReplicaSet], None],
) -> Callable[[ReplicaSet], AbstractContextManager[None]]:
    """Return a damage that needs no repair."""

    def damage(where: ReplicaSet) -> AbstractContextManager[None]:
        act(where)
        return nullcontext()

    return damage


def _without_primary(where: ReplicaSet) -> AbstractContextManager[None]:
    """Step the primary down, and leave it out of the configuration for the block."""
    primary = where.wait_primary()
    where.step_down()
    where.wait_primary(other_than=primary)
    return where.removed(primary)


_OF_A_SET = {
    # A primary that restarts soon may do so before an election.
    "kill_primary": _OfASet(3, (0.1, 8.0), lambda where: where.killed(where.wait_primary())),
    "kill_secondary": _OfASet(1, (0.5, 6.0), lambda where: where.killed(where.secondary())),
    "hang_primary": _OfASet(3, (0.5, 12.0), lambda where: where.hanging(where.wait_primary())),
    "hang_secondary": _OfASet(1, (0.5, 8.0), lambda where: where.hanging(where.secondary())),
    "step_down": _OfASet(3, (2.0, 6.0), _at_once(ReplicaSet.step_down)),
    "partition_primary": _OfASet(3, (1.0, 15.0), ReplicaSet.partitioned_primary),
    "lag_secondary": _OfASet(2, (2.0, 12.0), lambda where: where.lagging(where.secondary())),
    "remove_secondary": _OfASet(2, (0.5, 8.0), lambda where: where.removed(where.secondary())),
    "remove_primary": _OfASet(1, (0.5, 6.0), _without_primary),
    "kill_cursors": _OfASet(
        1, (0.0, 0.0), _at_once(lambda where: where.kill_cursors(where.wait_primary()))
    ),
}
_OF_ALL = {
    "kill_router": _OfAll(3, (0.0, 2.0), Faults.kill_router),
    "end_router": _OfAll(1, (0.0, 1.0), Faults.end_router),
    "hang_router": _OfAll(1, (0.5, 6.0), Faults.hang_router),
    "kill_upstream": _OfAll(2, (0.2, 4.0), Faults.kill_upstream),
    "move_chunk": _OfAll(2, (0.0, 0.0), Faults.move_chunk),
    "add_shard": _OfAll(2, (0.0, 0.0), Faults.add_shard),
    "remove_shard": _OfAll(2, (0.0, 0.0), Faults.remove_shard),
}


def random_faults(chance: random.Random) -> list[tuple[str, str, float]]:
    """Choose the next faults at random: one, or several at once on different sets."""
    if chance.random() < 0.3:
        name, seconds = _chosen(chance, _OF_ALL)
        return [(name, "", seconds)]
    chosen = []
    for where in chance.sample(SETS, chance.choice((1, 1, 1, 2, 2, 3))):
        name, seconds = _chosen(chance, _OF_A_SET)
        chosen.append((name, where, seconds))
    if chance.random() < 0.15:
        chosen.append(("kill_router", "", chance.uniform(0.0, 2.0)))
    return chosen


def _chosen(
    chance: random.Random, faults: Mapping[str, _OfASet] | Mapping[str, _OfAll]
) -> tuple[str, float]:
    """Return the name of a fault and its seconds."""
    name = chance.choices([*faults], [each.weight for each in faults.values()])[0]
    return name, chance.uniform(*faults[name].seconds)

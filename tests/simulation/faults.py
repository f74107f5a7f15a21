"""Faults of links, members, the config server and the router."""

import asyncio
from random import Random

from embedded.cluster import EmbeddedCluster
from embedded.mongod import Mongod
from tests.simulation.network import Network
from tests.simulation.processes import RouterProcess
from tests.simulation.trace import Trace
from tests.simulation.workload import Workload


class Faults:
    """Injects faults, one at a time or several at once, and repairs them."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        network: Network,
        router: RouterProcess,
        workload: Workload,
        chance: Random,
        trace: Trace,
    ) -> None:
        self._cluster = cluster
        self._network = network
        self._router = router
        self._workload = workload
        self._chance = chance
        self._trace = trace
        self._router_turn = asyncio.Lock()

    async def run(self, kinds: list[str], span: float) -> None:
        """Inject faults of these kinds at random times within ``span`` seconds."""
        async with asyncio.TaskGroup() as group:
            for kind in kinds:
                group.create_task(self._later(kind, self._chance.random() * span))

    async def _later(self, kind: str, delay: float) -> None:
        await asyncio.sleep(delay)
        member = self._member(kind)
        self._trace.note(f"fault: {kind} {member.name}")
        if kind == "config hangs":
            kind = "hang"
        elif kind == "config":
            kind = self._chance.choice(("hang", "restart", "step down", "cut all", "slow"))
        port = member.address[1]
        match kind:
            case "cut":
                links = self._network.links_to(port)
                if links:
                    self._network.cut(self._chance.choice(links))
            case "cut all":
                for link in self._network.links_to(port):
                    self._network.cut(link)
            case "lose":
                links = self._network.links_to(port)
                if links:
                    self._network.lose(self._chance.choice(links))
            case "client":
                links = self._network.links_to(self._router.port)
                if links:
                    act = self._chance.choice((self._network.cut, self._network.lose))
                    act(self._chance.choice(links))
            case "hang":
                self._network.hang(port)
                await self._pause(2.5)
                self._network.heal(port)
            case "slow":
                self._network.slow_down(port, self._chance.choice((5, 20, 80)))
                await self._pause(2.0)
                self._network.heal(port)
            case "step down":
                member.step_down(kill_cursors=self._chance.random() < 0.3)
                await self._pause(2.5)
                member.step_up()
            case "kill cursors":
                member.cursors.close()
            case "restart":
                await self._restart(member)
            case "kill router" | "stop router":
                await self._restart_router(kill=kind == "kill router")
            case _:
                raise ValueError(f"no such fault: {kind}")

    def _member(self, kind: str) -> Mongod:
        if kind.startswith("config"):
            return self._cluster.config_server
        names = sorted(self._cluster.shards)
        return self._cluster.shard(self._chance.choice(names))

    async def _pause(self, longest: float) -> None:
        await asyncio.sleep(0.02 + self._chance.random() ** 2 * longest)

    async def _restart(self, member: Mongod) -> None:
        restarting = self._workload.restarting
        if member.name in restarting:
            return
        restarting.add(member.name)
        try:
            await member.restart(self._chance.random() ** 2 * 2.5)
        finally:
            restarting.discard(member.name)

    async def _restart_router(self, *, kill: bool) -> None:
        async with self._router_turn:
            if kill:
                await self._router.kill()
            else:
                await self._router.terminate()
            await self._pause(0.5)
            self._router.start()

"""One seed: its plan, its run and its problems."""

import asyncio
import gc
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest import mock

from embedded.cluster import EmbeddedCluster
from embedded.mongod import Mongod
from router.config.settings import settings_of_streams
from router.stream.merge import event_log, merger
from router.stream_settings import StreamSettings
from tests.simulation.audit import Audit
from tests.simulation.faults import Faults
from tests.simulation.feed_client import FeedClient
from tests.simulation.loop import SimulatedLoop, Stuck, run
from tests.simulation.moves import Moves, frequent_moves
from tests.simulation.network import Network
from tests.simulation.plan import Plan, WatcherPlan, draw
from tests.simulation.planted import MARK, Planted, planted, tracing
from tests.simulation.processes import RouterProcess, in_process
from tests.simulation.repeatable import repeatable
from tests.simulation.trace import Trace
from tests.simulation.watcher import Watcher
from tests.simulation.workload import Workload

_WALL = 1_760_000_000.0 - 1_000.0
_ROUTER_PORT = 27_020
_FEED_PORT = 27_021
_NOOP_INTERVAL = 0.8
_TIME_TO_END = 120.0


@dataclass(frozen=True)
class Result:
    """The result of one seed."""

    seed: int
    problems: list[str]
    digest: str
    events: int
    virtual_seconds: float
    moves: Moves


def simulate(
    seed: int, show: Callable[[str], None] | None = None, *, shards: int | None = None
) -> Result:
    """Run one seed; the same seed has the same result and digest.

    Args:
        seed: draws the plan and all that happens.
        show: receives the lines of the trace.
        shards: the number of shards at the start; by default the plan's.
    """
    chance = Random(f"plan {seed}")
    plan = draw(chance)
    if shards is not None:
        plan = replace(plan, shards=shards)
    network = Network(Random(f"network {seed}"), plan.weather)
    loop = SimulatedLoop(network)
    trace = Trace(loop.time, show)
    trace.listen_to_logs(network.is_dead)
    trace.note(f"{plan}")
    scenario = Scenario(plan, chance, loop, network, trace)
    loop.set_exception_handler(scenario.unhandled)

    moving = frequent_moves(plan.sharing, plan.whim, Random(f"moves {seed}"))
    with ExitStack() as stack:
        stack.enter_context(repeatable(seed, scenario.wall))
        block = plan.block_bytes
        stack.enter_context(mock.patch.object(merger, "BLOCK_EVENTS", max(1, block // 500)))
        stack.enter_context(mock.patch.object(event_log, "JOIN_BYTES", block))
        moves = stack.enter_context(moving)
        if plan.planted:  # a trace function takes time
            scenario.planted = stack.enter_context(tracing(planted(plan.planted, trace.note)))
        gc.disable()  # the collector would run at different times in different processes
        try:
            run(loop, scenario.play())
        except Stuck as error:
            trace.problem(f"stuck: {error}")
        except Exception as error:  # a crash is a finding
            trace.problem(f"crashed: {error!r}")
            if show is not None:
                raise
        finally:
            gc.enable()
    return Result(seed, trace.problems, trace.digest, scenario.events, loop.time() - 1_000, moves)


class Scenario:
    """The parts of one run."""

    def __init__(
        self, plan: Plan, chance: Random, loop: SimulatedLoop, network: Network, trace: Trace
    ) -> None:
        self.events = 0
        self.planted: Planted | None = None
        self._plan = plan
        self._chance = chance
        self._loop = loop
        self._network = network
        self._trace = trace

    def wall(self) -> float:
        """The wall clock of all processes."""
        return _WALL + self._loop.time()

    def unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report an exception that no task awaited as a problem."""
        text = f"unhandled: {context.get('message')} {context.get('exception')!r}"
        # What counts of a planted exception is what its readers get.
        (self._trace.note if MARK in text else self._trace.problem)(text)

    async def play(self) -> None:
        """Start everything, run it, stop it and check it."""
        cluster = EmbeddedCluster(
            shards=self._plan.shards,
            server_version=self._plan.server_version,
            noop_interval=_NOOP_INTERVAL,
            wall=self.wall,
            random=self._draw(),
        )
        await in_process("cluster", cluster.start)
        workload = Workload(
            cluster,
            self._draw(),
            self._trace,
            transactions=self._plan.transactions,
            definitions=self._plan.definitions,
        )
        await workload.prepare()
        router_process = RouterProcess(
            self._loop, self._trace, self.wall, cluster.configdb, _ROUTER_PORT,
            self._plan.parameters, upstream=f"mongodb://{cluster.mongos_address}",
            feed_port=_FEED_PORT, settings_of=self._limits,
        )  # fmt: skip
        router_process.start()
        await self._while_it_happens(cluster, workload, router_process)
        await router_process.terminate()
        await cluster.stop()
        await asyncio.sleep(0.1)
        for link in self._network.links:
            self._trace.problem(f"a connection is left: {link}")

    def _limits(self, parameters: Mapping[str, Any]) -> StreamSettings:
        """Return the settings of streams, with replies of the plan's size."""
        size = self._plan.block_bytes
        return replace(
            settings_of_streams(parameters),
            reply_target_bytes=size,
            large_reply_bytes=size,
            **self._plan.limits,
        )

    def _draw(self) -> Random:
        """Return a separate random generator for one part."""
        return Random(self._chance.getrandbits(64))

    async def _while_it_happens(
        self, cluster: EmbeddedCluster, workload: Workload, router_process: RouterProcess
    ) -> None:
        plan = self._plan
        watchers = [
            self._watcher(f"watcher{number}", each, cluster, router_process)
            for number, each in enumerate(plan.watchers)
        ]
        faults = Faults(cluster, self._network, router_process, workload, self._draw(), self._trace)
        watching = [
            self._watch(watcher, each.delay)
            for watcher, each in zip(watchers, plan.watchers, strict=True)
        ]
        feed = self._feed(cluster, router_process)
        clients: list[Watcher | FeedClient] = [*watchers, *([feed[0]] if feed else [])]
        workload.progress = lambda: min(client.progress for client in clients)
        async with asyncio.TaskGroup() as group:
            for steps in plan.writers:
                group.create_task(workload.write(steps, plan.span / 25))
            group.create_task(workload.administrate(plan.steps, plan.span))
            group.create_task(faults.run(plan.faults, plan.span * 1.2))
        self._network.heal_all()
        self._trace.note("quiet")
        end = f"82{max(shard.journal.position for shard in workload.shards_ever.values()) + 1:016X}"
        for watcher in watchers:
            watcher.finish_at(end)
        done, late = await asyncio.wait(watching, timeout=_TIME_TO_END)
        for task in late:
            self._trace.problem(f"{task.get_name()} is still waiting")
            task.cancel()
        for task in done:
            task.result()
        if self.planted is not None:
            self.planted.armed = False
        audit = Audit(
            self._loop, self._trace, self._chance, workload, router_process, end, calm=plan.calm
        )
        if feed is not None:
            await audit.check_feed(*feed)
        await audit.check(watchers)
        self.events = audit.events

    def _watcher(
        self, name: str, plan: WatcherPlan, cluster: EmbeddedCluster, router_process: RouterProcess
    ) -> Watcher:
        def positions() -> dict[str, int]:
            shards: list[Mongod] = [cluster.shard(shard) for shard in cluster.shards]
            return {shard.name: shard.journal.position for shard in shards}

        return Watcher(
            name,
            plan.watch,
            router_process.address,
            self._draw(),
            self._trace,
            positions=positions,
            mood=plan.mood,
            start_at=cluster.config_server.oplog.last_ts if plan.from_the_start else None,
        )

    def _feed(
        self, cluster: EmbeddedCluster, router_process: RouterProcess
    ) -> tuple[FeedClient, asyncio.Task[None]] | None:
        plan, now = self._plan, cluster.config_server.oplog.last_ts
        # A feed client may resume at any time, which hasty removals of shards do not allow.
        if plan.feed is None or now is None or plan.theme == "removal":
            return None
        client = FeedClient(
            plan.feed, router_process.feed, now, self._draw(), self._trace, plan.feed_slow
        )
        return client, in_process("feed client", client.run)

    def _watch(self, watcher: Watcher, delay: float) -> asyncio.Task[None]:
        async def begin() -> None:
            await asyncio.sleep(delay)
            await watcher.run()

        return in_process(watcher.name, begin)

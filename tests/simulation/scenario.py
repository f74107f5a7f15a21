"""One seed: a plan drawn from it, the run, and all that is found wrong."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest import mock

import router.service
from embedded.cluster import EmbeddedCluster
from embedded.mongod import Mongod
from router.config.parameters import stream_limits
from shard_client.errors import CommandError, NetworkError
from tests.simulation.checks import problems_of, segment_problems, start_problems
from tests.simulation.driver import DriverCursor, ask
from tests.simulation.faults import KINDS, Faults
from tests.simulation.loop import SimulatedLoop, Stuck, run
from tests.simulation.network import Network, Weather
from tests.simulation.processes import RouterProcess, in_process
from tests.simulation.repeatable import repeatable
from tests.simulation.trace import Trace
from tests.simulation.truth import whole_history
from tests.simulation.watcher import Segment, Watch, Watcher
from tests.simulation.workload import Workload

_WALL = 1_760_000_000.0 - 1_000.0
_ROUTER_PORT = 27_020
_NOOP_INTERVAL = 0.8
_TIME_TO_END = 120.0
_TIME_TO_RESUME = 30.0
_RESUMED = 2
_TIME_TO_FORGET = 9.0


@dataclass(frozen=True)
class Result:
    """What came of one seed."""

    seed: int
    problems: list[str]
    digest: str
    events: int
    virtual_seconds: float


def simulate(seed: int, show: Callable[[str], None] | None = None) -> Result:
    """Run one seed; the same seed gives the same result, digest included."""
    chance = Random(f"plan {seed}")
    network = Network(Random(f"network {seed}"), _weather(chance))
    loop = SimulatedLoop(network)
    trace = Trace(loop.time, show)
    trace.listen_to_logs(network.is_dead)
    scenario = Scenario(chance, loop, network, trace)
    loop.set_exception_handler(scenario.unhandled)
    with (
        repeatable(seed, scenario.wall),
        mock.patch.object(router.service, "stream_limits", _limits),
    ):
        try:
            run(loop, scenario.play())
        except Stuck as error:
            trace.problem(f"stuck: {error}")
        except Exception as error:  # a seed that crashes is a finding
            trace.problem(f"crashed: {error!r}")
            if show is not None:
                raise
    return Result(seed, trace.problems, trace.digest, scenario.events, loop.time() - 1_000)


def _weather(chance: Random) -> Weather:
    return Weather(
        latency=chance.choice((0.0002, 0.001, 0.005)),
        jitter=chance.choice((0.0, 0.003, 0.02)),
        chop=chance.choice((0.0, 0.05, 0.3)),
        window=chance.choice((2_000, 64_000)),
        keepalive=chance.choice((1.0, 4.0)),
    )


def _limits(values: Any) -> Any:
    """Ask the shards less often than the defaults do: an idle second costs real time."""
    return replace(
        stream_limits(values), await_active=0.06, await_quiet=0.25, active_for=0.3,
        await_gate=0.005, await_gate_max=0.05, linger=3.0, close_timeout=0.8, backoff_max=0.5,
        cursor_timeout=4.0, session_timeout=5.0,
    )  # fmt: skip


class Scenario:
    """Everything of one run."""

    def __init__(self, chance: Random, loop: SimulatedLoop, network: Network, trace: Trace) -> None:
        self.events = 0
        self._chance = chance
        self._loop = loop
        self._network = network
        self._trace = trace
        self._servers: list[Mongod] = []

    def wall(self) -> float:
        """The wall clock of all processes."""
        return _WALL + self._loop.time()

    def unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what would end in a log: nobody waited for it."""
        error = context.get("exception")
        self._trace.problem(f"unhandled: {context.get('message')} {error!r}")

    async def play(self) -> None:
        """Start all, let it run, end it, check it."""
        chance = self._chance
        cluster = EmbeddedCluster(
            shards=chance.choice((2, 2, 3)),
            token_version=chance.choice((1, 2)),
            noop_interval=_NOOP_INTERVAL,
            wall=self.wall,
            random=Random(chance.getrandbits(64)),
        )
        await in_process("cluster", cluster.start)
        workload = Workload(cluster, Random(chance.getrandbits(64)), self._trace)
        await workload.prepare()
        router_process = RouterProcess(
            self._loop, self._trace, self.wall, cluster.configdb, _ROUTER_PORT, _parameters(chance)
        )
        router_process.start()
        await self._while_it_happens(cluster, workload, router_process)
        await router_process.terminate()
        await cluster.stop()
        await asyncio.sleep(0.1)
        for link in self._network.links:
            self._trace.problem(f"a connection is left: {link}")

    async def _while_it_happens(
        self, cluster: EmbeddedCluster, workload: Workload, router_process: RouterProcess
    ) -> None:
        chance = self._chance
        span = chance.choice((1.0, 2.0, 4.0))
        watchers = [
            self._watcher(n, cluster, router_process) for n in range(chance.choice((1, 2, 3)))
        ]
        faults = Faults(
            cluster, self._network, router_process, Random(chance.getrandbits(64)), self._trace
        )
        kinds = chance.choices(KINDS, k=chance.choice((0, 1, 3, 6)))
        steps = ["move", "split", "move", "move primary"][: chance.randrange(5)]
        steps += ["add shard"] * chance.choice((0, 1, 1, 2))
        if chance.random() < 0.1:
            steps.append("drop sharded")
        chance.shuffle(steps)
        watching = [self._watch(watcher, chance.random() ** 2 * span) for watcher in watchers]
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(workload.write(chance.randrange(5, 40), span / 25))
            group.create_task(workload.administrate(steps, span))
            group.create_task(faults.run(kinds, span * 1.2))
        self._network.heal_all()
        self._trace.note("quiet")
        shards = self._shards_of(cluster)
        end = max(shard.journal.position for shard in shards)
        for watcher in watchers:
            watcher.finish_at(f"82{end + 1:016X}")
        done, late = await asyncio.wait(watching, timeout=_TIME_TO_END)
        for task in late:
            self._trace.problem(f"{task.get_name()} is still waiting")
            task.cancel()
        for task in done:
            task.result()
        await self._check(watchers, shards, router_process, f"82{end + 1:016X}")

    def _shards_of(self, cluster: EmbeddedCluster) -> list[Mongod]:
        return [cluster.shard(name) for name in cluster.shards]

    def _watcher(
        self, number: int, cluster: EmbeddedCluster, router_process: RouterProcess
    ) -> Watcher:
        chance = self._chance
        return Watcher(
            f"watcher{number}",
            _watch(chance),
            router_process.address,
            Random(chance.getrandbits(64)),
            self._trace,
            positions=lambda: {
                shard.name: shard.journal.position for shard in self._shards_of(cluster)
            },
            restless=chance.choice((0.0, 0.0, 0.05, 0.2)),
            slow=chance.choice((0.0, 0.0, 0.1)),
        )

    def _watch(self, watcher: Watcher, delay: float) -> asyncio.Task[None]:
        async def begin() -> None:
            await asyncio.sleep(delay)
            await watcher.run()

        return in_process(watcher.name, begin)

    async def _check(
        self, watchers: list[Watcher], shards: list[Mongod], router_process: RouterProcess, end: str
    ) -> None:
        for watcher in watchers:
            history = await whole_history(shards, watcher.watch)
            self.events += sum(len(segment.events) for segment in watcher.segments)
            for problem in problems_of(watcher, history):
                self._trace.problem(problem)
            for segment in watcher.segments:
                for problem in start_problems(segment, shards):
                    self._trace.problem(f"{watcher.name} {problem}")
            tokens = watcher.seen[:]
            self._chance.shuffle(tokens)
            for token in tokens[:_RESUMED]:
                await self._check_resuming(watcher, token, history, router_process, end)
        await self._check_leaks(shards, router_process)

    async def _check_resuming(
        self,
        watcher: Watcher,
        token: dict[str, Any],
        history: list[dict[str, Any]],
        router_process: RouterProcess,
        end: str,
    ) -> None:
        """Resume from a token seen and hold what comes against the rest of the history."""
        watch = watcher.watch
        segment = Segment(token["_data"])
        stage = {**watch.stage, "startAfter": token}
        cursor = DriverCursor(router_process.address, watch.database, watch.target, b"r" * 16)
        try:
            async with asyncio.timeout(_TIME_TO_RESUME):
                batch = await cursor.open(stage, list(watch.pipeline), None)
                while True:
                    segment.events += batch.events
                    segment.end = batch.pbrt["_data"]
                    if not batch.cursor_id or segment.end >= end:
                        break
                    batch = await cursor.more(None, 300)
            await cursor.close()
        except (CommandError, NetworkError, TimeoutError) as error:
            self._trace.problem(f"{watcher.name}: resuming from {token} failed: {error!r}")
            return
        finally:
            cursor.vanish()
        for problem in segment_problems(segment, history):
            self._trace.problem(f"{watcher.name} ({watch}) resumed at {token}: {problem}")

    async def _check_leaks(self, shards: list[Mongod], router_process: RouterProcess) -> None:
        """Once all clients are gone nothing of them may be left in the router or on the shards."""
        await asyncio.sleep(_TIME_TO_FORGET)
        status = await ask(router_process.address, {"serverStatus": 1})
        if left := status["metrics"]["cursor"]["open"]["total"]:
            self._trace.problem(f"{left} merged cursors are left in the router")
        tasks = [task.get_name() for task in self._loop.tasks_of(router_process.name)]
        if len(tasks) > 3:
            self._trace.problem(f"tasks are left in the router: {tasks}")
        now = self._loop.time()
        for shard in shards:
            for entry in shard.cursors._entries.values():
                if now - entry.used_at < _TIME_TO_FORGET - 1.0:
                    self._trace.problem(f"a cursor is left on {shard.name}")


def _watch(chance: Random) -> Watch:
    database, target = chance.choice(
        (("admin", 1), ("admin", 1), ("app", 1), ("side", 1), ("app", "orders"), ("side", "items"),
         ("app", "notes"), ("tmp", "scratch"), ("tmp", 1))
    )  # fmt: skip
    options: dict[str, Any] = {}
    if chance.random() < 0.3:
        options["showExpandedEvents"] = True
    if chance.random() < 0.2:
        options["fullDocument"] = "updateLookup"
    pipeline: tuple[dict[str, Any], ...] = ()
    if chance.random() < 0.2:
        pipeline = ({"$match": {"operationType": {"$in": ["insert", "delete", "drop"]}}},)
    return Watch(
        database,
        target,
        options,
        pipeline,
        batch_size=chance.choice((None, None, 1, 3, 50)),
        max_time_ms=chance.choice((50, 300, 1000)),
    )


def _parameters(chance: Random) -> dict[str, Any]:
    return {
        "connectTimeoutMs": 500,
        "openTimeoutMs": 3000,
        "replyTimeoutMs": 600,
        "failureTimeoutMs": chance.choice((500, 1500, 6000)),
        "idleShardNudge": chance.random() < 0.8,
        "batchTargetBytes": chance.choice((500, 5_000, 1 << 20)),
        "remoteBufferBytes": chance.choice((1_000, 20_000, 1 << 24)),
        "streamBufferBytes": chance.choice((2_000, 40_000, 1 << 26)),
    }

"""A small cluster and a router in virtual time, for tests with their own clients."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest import mock

from embedded.cluster import EmbeddedCluster
from embedded.cursors import CursorTable
from tests.simulation.loop import SimulatedLoop, run
from tests.simulation.network import Network, Weather
from tests.simulation.processes import RouterProcess, in_process
from tests.simulation.repeatable import repeatable
from tests.simulation.trace import Trace

_WALL = 1_760_000_000.0 - 1_000.0
_ROUTER_PORT = 27_020


@dataclass(frozen=True)
class World:
    """A cluster of two shards, the router's port, and the network between them."""

    loop: SimulatedLoop
    network: Network
    trace: Trace
    cluster: EmbeddedCluster
    router: RouterProcess


def visit(
    body: Callable[[World], Awaitable[None]],
    *,
    seed: int = 0,
    upstream: bool = False,
    noop_interval: float = 0.5,
    chop: float = 0.1,
) -> list[str]:
    """Run ``body`` in a new world; return all problems, including those of the shutdown.

    ``chop`` is the part of messages that arrive in two pieces, the second one later.
    """
    network = Network(Random(seed), Weather(jitter=0.0, chop=chop))
    loop = SimulatedLoop(network)
    trace = Trace(loop.time)
    trace.listen_to_logs(network.is_dead)

    def unhandled(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        trace.problem(f"unhandled: {context}")

    async def play() -> None:
        def wall() -> float:
            return _WALL + loop.time()

        cluster = EmbeddedCluster(
            shards=2, noop_interval=noop_interval, wall=wall, random=Random(seed)
        )
        await in_process("cluster", cluster.start)
        mongos = f"mongodb://{cluster.mongos_address}" if upstream else None
        router = RouterProcess(
            loop, trace, wall, cluster.configdb, _ROUTER_PORT, {}, upstream=mongos
        )
        router.start()
        await asyncio.sleep(0.5)
        await body(World(loop, network, trace, cluster, router))
        await router.terminate()
        await cluster.stop()
        await asyncio.sleep(0.1)
        for link in network.links:
            trace.problem(f"a connection is left: {link}")

    loop.set_exception_handler(unhandled)
    with ExitStack() as stack:
        stack.enter_context(repeatable(seed, lambda: _WALL + loop.time()))
        run(loop, play())
    return trace.problems


@contextmanager
def counted_get_mores() -> Iterator[Counter[int]]:
    """Count, during the block, the batches that cursors are asked for, by the id of the table."""
    asked: Counter[int] = Counter()
    next_batch = CursorTable.next_batch

    def count(table: CursorTable, *args: float) -> object:
        asked[id(table)] += 1
        return next_batch(table, *args)  # type: ignore[arg-type]

    with mock.patch.object(CursorTable, "next_batch", count):
        yield asked

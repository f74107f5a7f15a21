"""Some seeds of the differential test; a failure lists all differences."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.differential.seeds import Clients, Outcome, Servers, run_all
from tests.differential.servers import routed
from tests.harness.clusters import RealCluster, start_real_cluster

SEEDS = {"auto": range(1, 13), "always": range(101, 109)}
"""By the parameters shareFilters and shareScopes."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with start_real_cluster(3, noop_interval=1) as cluster:
        yield cluster


@pytest.mark.parametrize("mode", SEEDS)
def test_the_router_returns_what_mongos_returns(cluster: RealCluster, mode: str) -> None:
    parameters = {"shareFilters": mode, "shareScopes": mode}
    # With auto, two streams are enough for both to move while they are read.
    parameters |= dict.fromkeys(("shareFiltersFrom", "shareScopesFrom"), "2")
    with routed(cluster.mongos, cluster.configdb, cluster.shards, parameters) as servers:
        outcomes = asyncio.run(_run(servers, SEEDS[mode]))
    found = [f"seed {each.seed}: {text}" for each in outcomes for text in each.differences]
    assert not found, "\n".join(found)
    assert sum(outcome.events for outcome in outcomes) > 1000


async def _run(servers: Servers, seeds: range) -> list[Outcome]:
    clients = Clients(servers)
    try:
        return await run_all(servers, clients, seeds, jobs=4, done=lambda _: None)
    finally:
        await clients.close()

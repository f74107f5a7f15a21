"""Some seeds of the differential test; a failure lists all differences."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.differential.seeds import Clients, Outcome, Servers, run_all
from tests.differential.servers import WAYS, routed
from tests.differential.workload import THEMES
from tests.harness.clusters import Client, RealCluster, start_real_cluster

SEEDS = range(1, 21, 2)
"""Each theme of a workload with two ways of sharing; `make differential` has all of them."""
_LEAST_MOVES = 25

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with start_real_cluster(3, noop_interval=1) as cluster:
        yield cluster


def test_the_router_returns_what_mongos_returns(cluster: RealCluster) -> None:
    with routed(cluster.mongos, cluster.configdb, cluster.shards) as servers:
        outcomes = asyncio.run(_run(servers))
        with Client(port=servers.routers["moving"]) as client:
            moves = client.admin.command("serverStatus")["mergerouter"]["moves"]
    found = [
        f"seed {each.seed} ({each.theme}, sharing {each.sharing}): {text}"
        for each in outcomes
        for text in each.differences
    ]
    assert not found, "\n".join(found)
    assert Counter(each.theme for each in outcomes) == dict.fromkeys(THEMES, 2)
    assert {each.sharing for each in outcomes} == set(WAYS)
    assert sum(outcome.events for outcome in outcomes) > 5_000
    assert min(moves["toShared"], moves["toOwn"]) > _LEAST_MOVES


async def _run(servers: Servers) -> list[Outcome]:
    clients = Clients(servers)
    try:
        return await run_all(servers, clients, SEEDS, jobs=4, done=lambda _: None)
    finally:
        await clients.close()

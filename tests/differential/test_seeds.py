"""Some seeds of the differential test; a failure lists all differences."""

import asyncio
from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from tests.differential import backlog
from tests.differential.seeds import Clients, Outcome, Servers, run_all
from tests.differential.servers import WAYS, routed
from tests.differential.workload import CREATE_OPTIONS, PLAIN, THEMES
from tests.harness.clusters import Client, RealCluster, start_real_cluster

SEEDS = range(1, 21)
"""Each theme of a workload with each way of sharing."""
_LEAST_MOVES = 50

pytestmark = pytest.mark.timeout(300)


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
    assert {(each.theme, each.sharing) for each in outcomes} == set(product(THEMES, WAYS))
    assert sum(outcome.events for outcome in outcomes) > 10_000
    assert min(moves["toShared"], moves["toOwn"]) > _LEAST_MOVES


async def _run(servers: Servers) -> list[Outcome]:
    clients = Clients(servers)
    try:
        return await run_all(servers, clients, SEEDS, jobs=4, done=lambda _: None)
    finally:
        await clients.close()


def test_a_backlog_is_written_whatever_the_workload_has_created(cluster: RealCluster) -> None:
    async def write() -> None:
        async with AsyncMongoClient[dict[str, Any]](cluster.mongos_uri) as client:
            for number, options in enumerate(CREATE_OPTIONS):
                database = client[f"backlog{number}"]
                for name in PLAIN:
                    await database.create_collection(name, **options)
                await backlog.write(database, Random(number))
                await client.drop_database(database)

    asyncio.run(write())

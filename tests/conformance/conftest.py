"""Fixtures of the conformance tests, which share one cluster and the router in front of it."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.database import Database

from tests.conformance.data import shard_over_three
from tests.conformance.recorded_workload import Workload, run_workload
from tests.harness.clusters import Client, TestCluster, real_servers_named, start_cluster
from tests.harness.embedded_process import EmbeddedProcess
from tests.harness.routers import RouterProcess, start_router
from tests.harness.server_settings import ServerSettings

SHARDS = 3
NOOP_SECONDS = 0.2


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    options: dict[str, Any] = {"noop_interval": NOOP_SECONDS}
    if real_servers_named():
        # A transaction of more than 16 MiB does not fit into the smallest cache.
        options["settings"] = ServerSettings(noop_interval=1, cache_gb=0.5)
    with start_cluster(SHARDS, **options) as running:
        yield running


@pytest.fixture(scope="session")
def router(cluster: TestCluster) -> Iterator[RouterProcess]:
    flags = {"set_parameter": {"enableTestCommands": 1, "awaitQuietMs": 200}}
    with start_router(cluster.configdb, cluster.mongos_uri, **flags) as running:
        yield running


@pytest.fixture(scope="session")
def client(router: RouterProcess) -> Iterator[Client]:
    with Client(router.uri) as connected:
        yield connected


_names = itertools.count(1)


@pytest.fixture
def db(client: Client) -> Iterator[Database[dict[str, Any]]]:
    """Return a database that no other test uses; drop it afterwards."""
    database = client[f"test{next(_names)}"]
    yield database
    client.drop_database(database.name)


@pytest.fixture(scope="session")
def workload(cluster: TestCluster, client: Client) -> Workload:
    """Run the recorded workload through the router."""
    return run_workload(cluster, client)


@pytest.fixture
def sharded(db: Database[dict[str, Any]], cluster: TestCluster) -> Collection[dict[str, Any]]:
    """Return a collection sharded by ``k``: below 10, below 20 and the rest on one shard each."""
    return shard_over_three(db, "spread", list(cluster.shards)[:3])


@pytest.fixture(scope="session")
def newer() -> Iterator[Client]:
    """Return a client of a router whose cluster makes version 2 tokens, as 7.0 and 8.0 do."""
    if real_servers_named():
        pytest.skip("verified on the embedded cluster, which emulates newer servers")
    with (
        EmbeddedProcess(2, {"noop_interval": NOOP_SECONDS, "server_version": "8.2"}) as cluster,
        start_router(cluster.configdb, cluster.mongos_uri) as router,
        Client(router.uri) as connected,
    ):
        yield connected

"""A cluster of two shards and a router in front of it, for all tests of lookups."""

import itertools
from collections.abc import Iterator

import pytest

from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.harness.routers import RouterProcess, start_router
from tests.integration.lookups.both import Both, Data


@pytest.fixture(scope="package")
def cluster() -> Iterator[TestCluster]:
    with start_cluster(2, noop_interval=1) as running:
        yield running


@pytest.fixture(scope="package")
def mongos(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.mongos_uri) as connected:
        yield connected


@pytest.fixture(scope="package")
def process(cluster: TestCluster) -> Iterator[RouterProcess]:
    quickly = {"awaitQuietMs": 200}
    with start_router(
        cluster.configdb, cluster.mongos_uri, feed=True, set_parameter=quickly
    ) as running:
        yield running


@pytest.fixture(scope="package")
def router(process: RouterProcess) -> Iterator[Client]:
    with Client(process.uri) as connected:
        yield connected


_names = itertools.count(1)


@pytest.fixture
def db(mongos: Client, cluster: TestCluster) -> Iterator[Data]:
    """Return a new database whose primary is the first shard."""
    database = mongos[f"lookups{next(_names)}"]
    first = next(iter(cluster.shards))
    mongos.admin.command("enableSharding", database.name, primaryShard=first)
    yield database
    mongos.drop_database(database.name)


@pytest.fixture(scope="package")
def both(cluster: TestCluster, router: Client, mongos: Client) -> Both:
    return Both(cluster, router, mongos)

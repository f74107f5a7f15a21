"""A cluster of three shards for the tests of its mongos."""

from collections.abc import Iterator
from typing import Any

import pytest
from bson import MinKey

from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.integration.embedded_mongos.orders import move


@pytest.fixture(scope="package")
def cluster() -> Iterator[TestCluster]:
    with start_cluster(3) as running:
        yield running


@pytest.fixture(scope="package")
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.mongos_uri) as connected:
        yield connected


@pytest.fixture
def orders(client: Client) -> Iterator[Any]:
    """Return a collection split over three shards by region: below h, h to p, and from p on."""
    client.admin.command("enableSharding", "shop", primaryShard="shard0")
    client.admin.command("shardCollection", "shop.orders", key={"region": 1, "_id": 1})
    for at, shard in (("h", "shard1"), ("p", "shard2")):
        client.admin.command("split", "shop.orders", middle={"region": at, "_id": MinKey()})
        move(client, at, shard)
    yield client.shop.orders
    client.drop_database("shop")

"""One cluster with a router and one Spark session, shared by the tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from bson.timestamp import Timestamp
from pyspark.sql import SparkSession

from spark_sink import local_session
from tests.harness.clusters import TestCluster, start_cluster
from tests.harness.routers import RouterProcess, start_router
from tests.spark.quick_session import QUICK

_numbers = itertools.count()


class Shop:
    """Documents written to a sharded collection, numbered from 0.

    Written through the router, or to ``writes_to``, the connection string of a mongos.
    """

    def __init__(
        self,
        cluster: TestCluster,
        router: RouterProcess,
        database: str,
        writes_to: str | None = None,
    ) -> None:
        self.router = router
        self.uri = router.uri
        self.database = database
        self.client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(
            writes_to or router.uri
        )
        self.orders = self.client[database].orders
        self.written = 0
        self._shards = list(cluster.shards)[:2]
        self.client.admin.command("enableSharding", database, primaryShard=self._shards[0])
        self.shard_orders()
        self.created = self.now()

    def shard_orders(self) -> None:
        namespace = f"{self.database}.orders"
        admin = self.client.admin
        admin.command("shardCollection", namespace, key={"customer": 1})
        admin.command("split", namespace, middle={"customer": 5})
        admin.command("moveChunk", namespace, find={"customer": 5}, to=self._shards[1])

    def now(self) -> Timestamp:
        time: Timestamp = self.client.admin.command("ping")["$clusterTime"]["clusterTime"]
        return time

    def insert(self, count: int) -> None:
        numbers = range(self.written, self.written + count)
        self.written += count  # also of an insert that fails in part
        self.orders.insert_many([{"_id": n, "customer": n % 10, "text": "x" * 99} for n in numbers])


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    with start_cluster(2, noop_interval=1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def router(cluster: TestCluster) -> Iterator[RouterProcess]:
    with start_router(cluster.configdb, upstream=cluster.mongos_uri, feed=True) as router:
        yield router


@pytest.fixture
def shop(cluster: TestCluster, router: RouterProcess) -> Iterator[Shop]:
    shop = Shop(cluster, router, f"shop{next(_numbers)}")
    yield shop
    shop.client.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("tests", settings=QUICK)
    yield session
    session.stop()

"""One cluster with a router and one Spark session for each group of files (pytest-xdist)."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pymongo
import pytest
from bson.timestamp import Timestamp
from pyspark.sql import SparkSession

from spark_sink import local_session
from tests.harness.clusters import TestCluster, shard, start_cluster, start_real_set
from tests.harness.replica_sets import ReplicaSet
from tests.harness.routers import RouterProcess, start_router
from tests.spark.quick_session import QUICK

_numbers = itertools.count()


class Shop:
    """Documents written to a collection, numbered from 0; it is on two shards if there are some.

    Written to the server that is read, or to ``writes_to``, the connection string of a mongos.
    """

    def __init__(
        self, uri: str, database: str, shards: Iterable[str], writes_to: str | None = None
    ) -> None:
        self.uri = uri
        self.database = database
        self.client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(writes_to or uri)
        self.orders = self.client[database].orders
        self.written = 0
        places = list(shards)[:2]
        self.sharded = bool(places)
        if self.sharded:
            first, second = places
            shard(self.client, f"{database}.orders", {"customer": 1}, first, {5: second})
        self.created = self.now()

    def options(self, collection: str = "", **more: object) -> dict[str, str]:
        """The options of a query on the database, or on one of its collections."""
        place = {"uri": self.uri, "database": self.database}
        place |= {"collection": collection} if collection else {}
        return {**place, **{name: str(value) for name, value in more.items()}}

    @property
    def begin(self) -> dict[str, str]:
        """The option with which a query has all events of the shop."""
        return {"startAtOperationTime": f"{self.created.time},{self.created.inc}"}

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
    with start_router(cluster.configdb, upstream=cluster.mongos_uri) as router:
        yield router


@pytest.fixture(scope="session")
def replica_set() -> Iterator[ReplicaSet]:
    with start_real_set("rs0", members=3) as servers:
        yield servers


DEPLOYMENTS = ("router", "mongos", "replica set")
"""What the source reads alike: the parameters of the fixture `shop`, by default the first."""


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    name, kind = f"shop{next(_numbers)}", getattr(request, "param", DEPLOYMENTS[0])
    if kind == "replica set":
        shop = Shop(request.getfixturevalue("replica_set").set_uri, name, ())
    else:
        cluster: TestCluster = request.getfixturevalue("cluster")
        if kind == "mongos" and not cluster.real:
            pytest.skip("the embedded mongos has no change streams")
        uri = cluster.mongos_uri if kind == "mongos" else request.getfixturevalue("router").uri
        shop = Shop(uri, name, cluster.shards)
    yield shop
    shop.client.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("tests", settings=QUICK)
    yield session
    session.stop()

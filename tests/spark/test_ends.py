"""The source's errors as users see them."""

import json
import socket
import time
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.harness.clusters import TestCluster, on_real_servers
from tests.harness.until import Deadline
from tests.spark.conftest import Shop
from tests.spark.query_process import WAIT

# One process for the cluster and Spark, which takes minutes to start on a busy machine.
pytestmark = [pytest.mark.xdist_group("spark_queries"), pytest.mark.timeout(600)]


def stream(spark: SparkSession, shop: Shop, **options: str) -> DataFrame:
    return spark.readStream.format("mergerouter").options(**shop.options(**options)).load()


def test_an_unreachable_router_is_reported_quickly(spark: SparkSession) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"mongodb://app:secret@127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(AnalysisException) as caught:
            spark.readStream.format("mergerouter").option("uri", uri).load()
    message = str(caught.value)
    assert "cannot be reached: start it, or correct option 'uri'" in message
    assert "Traceback" not in message
    assert "secret" not in message


REAL = on_real_servers("documents that tell a shard")


@pytest.mark.parametrize(
    ("name", "option", "problem"),
    [
        ("shard0", "?directConnection=true", "is (a shard|one member)"),
        pytest.param("shard0", "", "is a shard of a cluster", marks=REAL),
        pytest.param("rs0", "?directConnection=true", "is one member", marks=REAL),
        ("config", "", "is a config server of a cluster"),
        ("shard0", "?replicaSet=rs9", "no server that .* names is a member of the set rs9"),
    ],
)
def test_a_part_of_a_deployment_is_refused(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    cluster: TestCluster,
    shop: Shop,
    tmp_path: Path,
    name: str,
    option: str,
    problem: str,
) -> None:
    hosts = {"config": cluster.configdb, **cluster.shards}.get(name)
    hosts = hosts or request.getfixturevalue("replica_set").host_string.partition(",")[0]
    member = f"mongodb://{hosts.partition('/')[2]}/{option}"
    for reading in (spark.readStream, spark.read):
        with pytest.raises(AnalysisException, match=problem):
            reading.format("mergerouter").options(uri=member, database=shop.database).load()
    shop.insert(2)
    frame = stream(spark, shop, collection="orders", **shop.begin)
    writer = frame.writeStream.format("mergerouter").options(uri=member, collection="copy")
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match=problem):
        writer.start().awaitTermination()
    assert "copy" not in shop.client[shop.database].list_collection_names()


def test_now_is_when_the_query_was_started(spark: SparkSession, shop: Shop) -> None:
    shop.insert(5)
    deadline = Deadline(WAIT)
    while shop.now().time < shop_second(shop, seconds=8):  # longer ago than a launch may take
        deadline.check("the cluster time to pass")
        time.sleep(0.2)
    frame = stream(spark, shop, collection="orders")
    query = frame.writeStream.format("memory").queryName("since").start()
    try:
        shop.insert(5)  # before the query's processes have started
        while spark.table("since").count() < 5:
            assert query.exception() is None
            deadline.check("the rows since the start")
        rows = spark.table("since").collect()
    finally:
        query.stop()
    assert sorted(json.loads(row.documentKey)["_id"] for row in rows) == [5, 6, 7, 8, 9]


def shop_second(shop: Shop, *, seconds: int) -> int:
    """Return the second of the cluster time this long after the last order."""
    with shop.orders.watch(start_at_operation_time=shop.created) as watch:
        last = [watch.next()["clusterTime"].time for _ in range(shop.written)][-1]
    return last + seconds

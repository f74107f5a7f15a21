"""The source in a running Spark, which reads from a router on a sharded cluster."""

import json

import pytest
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import spark_partition_id

from tests.harness.until import wait_for
from tests.spark.conftest import Shop

# One process for the cluster and Spark, which takes minutes to start on a busy machine.
pytestmark = [pytest.mark.xdist_group("spark_queries"), pytest.mark.timeout(600)]


def stream(spark: SparkSession, shop: Shop, **options: object) -> DataFrame:
    return spark.readStream.format("mergerouter").options(**shop.options(**options)).load()


def rows_so_far(frame: DataFrame, name: str) -> list[Row]:
    """Return the stream's rows so far, in order of arrival."""
    query = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    query.awaitTermination()
    return frame.sparkSession.table(name).collect()


def test_rows_are_the_router_s_events(spark: SparkSession, shop: Shop) -> None:
    shop.insert(60)
    shop.orders.update_many({"customer": 3}, {"$set": {"paid": True}})
    with shop.client.start_session() as session, session.start_transaction():
        shop.orders.delete_one({"_id": 1, "customer": 1}, session=session)
        shop.orders.insert_one({"_id": 1000, "customer": 9}, session=session)
    frame = stream(
        spark,
        shop,
        collection="orders",
        fullDocument="updateLookup",
        ordering="total",
        maxEventsPerTrigger=40,
        eventsPerPartition=15,
        **shop.begin,
    )
    rows = rows_so_far(frame.withColumn("partition", spark_partition_id()), "rows")

    with (
        MongoClient(shop.uri, document_class=RawBSONDocument) as client,
        client[shop.database].orders.watch(
            full_document="updateLookup", start_at_operation_time=shop.created
        ) as watch,
    ):
        events = [watch.next() for _ in range(68)]
    assert [bytes(row["event"]) for row in rows] == [event.raw for event in events]
    assert [row["token"] for row in rows] == sorted(row["token"] for row in rows)
    assert len({row["partition"] for row in rows}) > 1
    kinds = [row["operationType"] for row in rows]
    assert [kinds.count(kind) for kind in ("insert", "update", "delete")] == [61, 6, 1]
    assert {row["namespace"] for row in rows} == {f"{shop.database}.orders"}
    assert json.loads(rows[60]["documentKey"]) == {"_id": 3, "customer": 3}
    assert json.loads(rows[60]["updateDescription"])["updatedFields"] == {"paid": True}
    assert json.loads(rows[60]["fullDocument"])["paid"] is True


def test_a_pipeline_runs_on_the_shards_and_hidden_events_are_skipped(
    spark: SparkSession, shop: Shop
) -> None:
    shop.insert(50)
    pipeline = '[{"$match": {"fullDocument.customer": {"$in": [4, 5]}}}]'
    frame = stream(spark, shop, pipeline=pipeline, maxEventsPerTrigger=3, **shop.begin)
    rows = rows_so_far(frame, "matched")
    assert [json.loads(row["fullDocument"])["_id"] % 10 for row in rows] == [4, 5] * 5


def test_a_stopped_query_leaves_no_cursors_on_the_router(spark: SparkSession, shop: Shop) -> None:
    def open_cursors() -> int:
        metrics = shop.client.admin.command("serverStatus")["metrics"]
        return int(metrics["cursor"]["open"]["total"])

    wait_for(lambda: open_cursors() == 0, "the cursors of other queries to end")
    frame = stream(spark, shop)
    query = frame.writeStream.format("memory").queryName("stopped").start()
    query.processAllAvailable()
    assert open_cursors() == 1
    query.stop()
    wait_for(lambda: open_cursors() == 0, "the query's cursor to end")

"""The source in a running Spark, which reads from a router on a sharded cluster."""

import json
from unittest.mock import Mock

import pytest
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_sink.errors import HistoryLostError
from spark_sink.events.positions import AtTime
from spark_sink.options.stream_options import parse_options
from spark_sink.source.event_planner import EventPlanner
from spark_sink.source.offsets import Offset
from spark_sink.source.readers import MergerouterStreamReader
from spark_sink.source.task_rows import SnapshotTask, SourceEvent
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


def identifiers(frame: DataFrame, op: str) -> list[int]:
    rows = frame.where(frame.op == op).select("documentKey").collect()
    return sorted(json.loads(row.documentKey)["_id"] for row in rows)


def test_batch_reads_of_documents_and_of_changes(spark: SparkSession, shop: Shop) -> None:
    shop.insert(100)
    between = shop.now()
    shop.insert(50)

    def read(**more: object) -> DataFrame:
        return spark.read.format("mergerouter").options(**shop.options("orders", **more)).load()

    snapshot = read(mode="snapshot", snapshotChunkRows=30)
    assert snapshot.rdd.getNumPartitions() >= 4
    assert identifiers(snapshot, "r") == list(range(150))
    split = f"{between.time},{between.inc + 1}"
    earlier = read(mode="changes", endAtOperationTime=split, **shop.begin)
    assert identifiers(earlier, "c") == list(range(100))
    last = max(row.token for row in earlier.select("token").collect())
    later = read(mode="changes", startAfter=last)
    assert identifiers(later, "c") == list(range(100, 150))
    for given, message in (
        ({}, "option 'mode' is required"),
        ({"mode": "changes"}, "changes requires startAtOperationTime"),
        ({"mode": "snapshot", "startAfter": last}, "a snapshot fixes"),
    ):
        with pytest.raises(AnalysisException, match=message):
            read(**given).count()


@pytest.mark.parametrize(
    ("given", "recovers"),
    [
        ({"snapshotMode": "when_needed"}, True),
        ({"snapshotMode": "initial"}, False),
        ({"onHistoryLost": "snapshot"}, True),
        ({"snapshotMode": "when_needed", "onHistoryLost": "fail"}, False),
    ],
)
def test_a_lost_history_is_replaced_by_a_snapshot_if_an_option_says_so(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], recovers: bool
) -> None:
    shop.insert(5)
    lost = HistoryLostError("history lost")
    monkeypatch.setattr(EventPlanner, "next_batch", Mock(side_effect=lost))
    chosen = parse_options(shop.options("orders", **given))
    reader = MergerouterStreamReader(chosen, 0.0)
    start = Offset(AtTime(shop.created), chosen.scope).document
    try:
        if not recovers:
            with pytest.raises(HistoryLostError):
                reader.latestOffset(start, ReadAllAvailable())
            return
        begun = reader.latestOffset(start, ReadAllAvailable())
        assert reader.partitions(start, begun) == []
        end = reader.latestOffset(begun, ReadAllAvailable())
        last = reader.latestOffset(end, ReadAllAvailable())
        parts = [*reader.partitions(begun, end), *reader.partitions(end, last)]
        with pytest.raises(HistoryLostError, match="the snapshot took longer than"):
            reader.latestOffset(last, ReadAllAvailable())  # and not snapshots for ever
    finally:
        reader.stop()
    assert [type(partition.value) for partition in parts] == [SnapshotTask, SourceEvent]
    reader = MergerouterStreamReader(chosen, 0.0)
    try:
        assert (
            Offset.of(reader.latestOffset(last, ReadAllAvailable())).snapshots.initial_plan
            is not None
        )
    finally:
        reader.stop()

"""A query that is killed at critical moments writes each document and event exactly once."""

from itertools import cycle
from pathlib import Path

import bson
import pytest
from pyspark.sql import SparkSession

from spark_sink import apply_changes, verify
from spark_sink.errors import OptionError
from spark_sink.snapshot.signal_channels import send
from tests.spark.conftest import Shop
from tests.spark.jobs import forget_last_commit
from tests.spark.parquet_query import parquet_writer
from tests.spark.query_process import QueryProcess
from tests.spark.tables import change_at_random, collections_of, table_of


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shop", ["router", "replica set"], indirect=True)
def test_a_killed_query_writes_every_event_exactly_once(
    tmp_path: Path, shop: Shop, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    """Killed within a snapshot, a batch of events, a requested snapshot, and between batches.

    A query that reads a router goes on with the mongos, and again with the router.
    """
    shop.insert(1000)
    signals = tmp_path / "signals"
    signals.mkdir()
    query = QueryProcess(shop, tmp_path)
    options = {"snapshotMode": "initial", "maxEventsPerTrigger": "250"}
    options |= {"snapshotChunkRows": "60", "snapshotTasks": "4"}
    options["signalFolder"] = str(signals)

    uris = [shop.uri]
    if shop.sharded and (cluster := request.getfixturevalue("cluster")).real:
        uris.append(cluster.mongos_uri)
    places = cycle(uris)

    def start(*more: str) -> None:
        query.target[0] = next(places)
        query.start(*(f"{name}={text}" for name, text in options.items()), *more)

    def kill_within_a_batch() -> None:
        """Kill the query while some rows of a batch are in files that are not visible yet."""
        (tmp_path / "armed").touch()
        query.wait_for((tmp_path / "held").exists)
        query.kill()
        for name in ("armed", "held"):
            (tmp_path / name).unlink()
        assert query.batches("offsets")[-1] == query.batches("commits")[-1] + 1

    def change(seed: int) -> None:
        change_at_random(shop, seed, 150)
        shop.written += 5  # some writes at random are upserts

    def insert_one(number: int) -> None:
        shop.orders.insert_one({"_id": number, "customer": 1})
        query.wait_for(lambda: number in [found for _, found in query.rows()])

    try:
        start()
        query.wait_for(lambda: len(query.batches("commits")) >= 2)
        kill_within_a_batch()
        assert query.last_offset()["snapshots"]["batch"]["reading"]
        before = len(query.rows())
        assert 0 < before < 1000
        change(3)

        start("bundled-java")
        query.wait_for(lambda: len(query.rows()) > before)
        change(4)  # while the rest of the snapshot is read
        query.wait_for(lambda: not query.last_offset().get("snapshots", {}).get("requests"))
        insert_one(100_000)
        shop.insert(300)
        kill_within_a_batch()

        start()
        insert_one(100_001)
        wanted = {"data-collections": [f"{shop.database}.orders"]}
        send(str(signals), {"type": "execute-snapshot", "data": wanted})
        query.wait_for(
            lambda: bool(query.last_offset().get("snapshots", {}).get("batch", {}).get("reading"))
        )
        kill_within_a_batch()
        assert query.last_offset()["snapshots"]["batch"]["reading"]
        change(5)

        start()
        query.wait_for(lambda: not list(signals.glob("*.json")))
        query.wait_for(lambda: not query.last_offset().get("snapshots", {}).get("requests"))
        insert_one(100_002)
        query.wait_for(lambda: query.batches("offsets") == query.batches("commits"))
    finally:
        query.kill()

    shop.insert(10)
    forget_last_commit(tmp_path)  # as if the sink has committed a batch, the checkpoint has not
    writer = parquet_writer(spark, shop.uri, shop.database, tmp_path, **options)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert query.batches("commits") == query.batches("offsets")

    rows = spark.read.parquet(str(tmp_path / "table"))
    reads = rows.where("op = 'r'").select("documentKey", "event").collect()
    snapshots = [
        (row.documentKey, bson.decode(bytes(row.event)).get("signal", {})) for row in reads
    ]
    assert len({(key, each.get("id")) for key, each in snapshots}) == len(snapshots)
    events = rows.where("operationType not in ('read', 'snapshotEnd')").select("token").collect()
    with shop.client[shop.database].watch(start_at_operation_time=shop.created) as watch:
        told = [watch.next()["_id"]["_data"] for _ in range(1000 + len(events))]
        assert watch.try_next() is None
    assert sorted(row.token for row in events) == told[1000:]
    target = str(tmp_path / "now" / "table")
    for _ in range(2):  # applied again, they change nothing
        apply_changes(rows, target)
        assert table_of(spark, tmp_path / "now") == collections_of(shop)
    assert verify(spark, target, uri=shop.uri, database=shop.database).collect() == []
    with pytest.raises(OptionError, match="has the keys _id"):
        apply_changes(rows, target, keys=("customer", "_id"))

"""A job's tables stay right when collections are moved and resharded, and after a seek."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from bson.timestamp import Timestamp
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_sink.cli import job
from spark_sink.events.positions import AtTime, key_of, position_document, position_from
from tests.harness.clusters import RealCluster, TestCluster
from tests.spark.conftest import Shop
from tests.spark.jobs import NO_DIFFERENCE, differences, rows_of, run_job
from tests.spark.tables import reshard

pytestmark = [pytest.mark.xdist_group("spark_jobs"), pytest.mark.timeout(600)]


def follow(spark: SparkSession, shop: Shop, folder: Path) -> dict[str, set[str]]:
    """Run a job of the database up to the present; return what verify finds."""
    run_job(spark, shop, folder)
    return differences(spark, shop, folder)


def fill(shop: Shop, name: str, first: int, count: int = 5) -> None:
    documents = [{"_id": number, "in": name} for number in range(first, first + count)]
    shop.client[shop.database][name].insert_many(documents)


def keys_in(folder: Path, collection: str) -> set[str]:
    table = rows_of(folder, "current")
    return {row["key"] for row in table if row["collection"] == collection}


def test_a_moved_database_and_other_shard_keys_leave_the_tables_right(
    tmp_path: Path, shop: Shop, spark: SparkSession, cluster: TestCluster
) -> None:
    shop.insert(20)
    fill(shop, "items", 0)
    assert follow(spark, shop, tmp_path) == NO_DIFFERENCE
    database, admin = shop.client[shop.database], shop.client.admin
    admin.command("movePrimary", shop.database, to=sorted(cluster.shards)[1])
    database.items.update_one({"_id": 1}, {"$set": {"n": 1}})
    orders = f"{shop.database}.orders"
    shop.orders.create_index([("customer", 1), ("n", 1)])
    if isinstance(cluster, RealCluster):  # the embedded cluster changes no shard keys
        admin.command("refineCollectionShardKey", orders, key={"customer": 1, "n": 1})
        shop.orders.update_many({}, {"$set": {"text": "refined"}})
        reshard(cluster, shop, {"n": 1})
        shop.orders.update_many({}, {"$set": {"text": "resharded"}})
    _swap_sharded(shop, orders, cluster.shards)
    if isinstance(cluster, RealCluster):  # the embedded cluster lacks both
        database.items.aggregate([{"$out": "copy"}])
        database.items.aggregate([{"$out": "copy"}])
        database.command("convertToCapped", "items", size=100_000)
        database.items.update_one({"_id": 1}, {"$set": {"n": 2}})
    assert follow(spark, shop, tmp_path) == NO_DIFFERENCE
    assert len(keys_in(tmp_path, "items")) == 5
    assert len(keys_in(tmp_path, "orders")) == 30
    assert rows_of(tmp_path, "quarantine") == []


def _swap_sharded(shop: Shop, namespace: str, shards: Iterable[str]) -> None:
    """Rename a collection with chunks on both shards over another one; both shards report it."""
    built = f"{shop.database}.built"
    admin = shop.client.admin
    admin.command("shardCollection", built, key={"_id": 1})
    admin.command("split", built, middle={"_id": 15})
    for first, shard in zip((0, 15), sorted(shards), strict=False):
        admin.command("moveChunk", built, find={"_id": first}, to=shard)
    fill(shop, "built", 0, 30)
    admin.command("renameCollection", built, to=namespace, dropTarget=True)
    shop.orders.update_many({}, {"$set": {"n": 1}})


def test_a_job_is_set_to_a_later_position(tmp_path: Path, shop: Shop, spark: SparkSession) -> None:
    shop.insert(10)
    fill(shop, "lost", 0)
    assert follow(spark, shop, tmp_path) == NO_DIFFERENCE
    shop.insert(10)
    shop.orders.delete_one({"_id": 3})
    shop.client[shop.database].lost.drop()
    target = shop.now()
    runner, out = CliRunner(), ["--out", str(tmp_path)]
    for to, message in (("2020-01-01T00:00:00Z", "before the job's position"), ("x", "must be")):
        refused = runner.invoke(job, ["seek", *out, "--to", to])
        assert (refused.exit_code, message in refused.output) == (2, True), refused.output
    arguments = ["seek", *out, "--to", f"{target.time},{target.inc + 1}"]
    done = runner.invoke(job, arguments)
    assert done.output.startswith("the job continues at 20")
    assert follow(spark, shop, tmp_path) == NO_DIFFERENCE
    shop.orders.update_many({}, {"$set": {"n": 1}})
    assert follow(spark, shop, tmp_path) == NO_DIFFERENCE
    assert len(keys_in(tmp_path, "orders")) == 19
    assert keys_in(tmp_path, "lost") == set()
    assert rows_of(tmp_path, "quarantine") == []
    [gap] = [row for row in rows_of(tmp_path, "notifications") if row["aggregate_type"] == "Seek"]
    assert gap["type"] == "SKIPPED"
    places = {name: json.loads(text) for name, text in gap["additional_data"]}
    assert places["to"] == position_document(AtTime(Timestamp(target.time, target.inc + 1)))
    assert key_of(position_from(places["from"])) < key_of(AtTime(target))

"""Current tables equal their collections, and verify finds what differs."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_sink import apply_changes, verify
from spark_sink.errors import OptionError
from tests.spark.conftest import Shop
from tests.spark.tables import change_at_random, collections_of, follow, table_of

# One cluster, one Spark, which takes minutes to start on a busy machine.
pytestmark = [pytest.mark.xdist_group("spark_queries"), pytest.mark.timeout(600)]


def test_a_table_follows_its_collections(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    database = shop.client[shop.database]
    shop.insert(60)
    change_at_random(shop, 1, 60)
    database.old.insert_many([{"_id": number} for number in range(4)])
    database.gone.insert_one({"_id": 1})
    follow(spark, shop, tmp_path, maxEventsPerTrigger=40)
    assert table_of(spark, tmp_path) == collections_of(shop)

    change_at_random(shop, 2, 150)
    database.old.rename("new")
    database.old.insert_one({"_id": 9})
    database.gone.drop()
    database.gone.insert_one({"_id": 2})
    follow(spark, shop, tmp_path)
    assert table_of(spark, tmp_path) == collections_of(shop)
    target = str(tmp_path / "table")
    states = [each["mergerouter"] for each in DeltaTable(target).history() if "mergerouter" in each]
    assert states[0]["batch"] > 0
    times = [each.get("clusterTime", "") for each in states]
    assert times == sorted(times, reverse=True)
    options = {"uri": shop.uri, "database": shop.database}
    assert verify(spark, target, **options).collect() == []

    # Applied again, from the beginning: nothing changes.
    created = f"{shop.created.time},{shop.created.inc}"
    again = spark.read.format("mergerouter").options(
        **options, mode="changes", startAtOperationTime=created
    )
    before = table_of(spark, tmp_path)
    apply_changes(again.load(), target)
    assert table_of(spark, tmp_path) == before
    with pytest.raises(OptionError, match="has the keys _id"):
        apply_changes(again.load(), target, keys=("customer", "_id"))

"""A query that is killed during its snapshot reads every document once, and misses no event."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_sink import apply_changes, verify
from tests.spark.conftest import Shop
from tests.spark.test_current_tables import change_at_random, collections_of, table_of
from tests.spark.test_exactly_once import Query

# One cluster, one Spark, which takes minutes to start on a busy machine.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def test_a_killed_snapshot_continues_and_then_the_stream(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    shop.insert(3000)
    query = Query(shop, tmp_path)
    options = ("snapshotMode=initial", "snapshotChunkRows=60")

    try:
        query.start(*options)
        query.wait_for(lambda: len(query.batches("commits")) >= 2)
        (tmp_path / "armed").touch()  # the next batch of chunks is written in part only
        query.wait_for((tmp_path / "held").exists)
        query.kill()
        assert "end" in (query.last_offset().get("snapshot") or {})
        (tmp_path / "armed").unlink()
        before = len(query.rows())
        assert 0 < before < 3000
        change_at_random(shop, 3, 200)

        query.start(*options)
        query.wait_for(lambda: len(query.rows()) > before)
        change_at_random(shop, 4, 200)  # while the rest of the snapshot is read
        query.wait_for(lambda: query.last_offset().get("snapshot") is None)
        shop.orders.insert_one({"_id": 100_000, "customer": 1})
        query.wait_for(lambda: 100_000 in [number for _, number in query.rows()])
    finally:
        query.kill()

    rows = spark.read.parquet(str(tmp_path / "table"))
    reads = [row.documentKey for row in rows.where("op = 'r'").select("documentKey").collect()]
    assert len(reads) == len(set(reads))
    events = [row.token for row in rows.where("op <> 'r'").select("token").collect()]
    assert len(events) == len(set(events))
    target = str(tmp_path / "now" / "table")
    apply_changes(rows, target)
    assert table_of(spark, tmp_path / "now") == collections_of(shop)
    assert verify(spark, target, uri=shop.uri, database=shop.database).collect() == []

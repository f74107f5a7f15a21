"""Snapshots that signals request while the stream continues, in a running Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bson
import pandas
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_sink import apply_changes, verify
from spark_sink.cli import job
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.tables_job import TablesJob, namespace_options
from spark_sink.tables.current_table import CurrentTable
from spark_sink.verification.job import verify_job
from tests.spark.conftest import Shop
from tests.spark.test_current_tables import (
    change_at_random,
    collections_of,
    damage,
    table_of,
)
from tests.spark.test_exactly_once import Query

# One cluster, one Spark, which takes minutes to start on a busy machine.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def execute(*collections: str, **data: Any) -> dict[str, Any]:
    return {"type": "execute-snapshot", "data": {"data-collections": list(collections), **data}}


def test_a_signal_makes_a_table_equal_to_its_collection_again(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    database = shop.client[shop.database]
    shop.insert(60)
    shop.orders.insert_many([{"_id": n, "customer": n % 10} for n in range(1000, 1010)])
    database.items.insert_many([{"_id": number} for number in range(5)])
    scope = {"database": shop.database, "collection.exclude.list": f"{shop.database}[.]signals"}

    def follow() -> None:
        options = {"uri": shop.uri, **scope, "snapshotMode": "initial", "snapshotChunkRows": "10"}
        options["signal.data.collection"] = f"{shop.database}.signals"
        events = spark.readStream.format("mergerouter").options(**options).load()
        writer = apply_changes(events, str(tmp_path / "table"))
        assert writer is not None
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def table() -> dict[tuple[str, str], Any]:
        return table_of(spark, tmp_path)

    follow()
    target = str(tmp_path / "table")
    # Both collections lack rows and have extra ones; the signal is for one of them.
    wrong = {("orders", 1001), ("orders", 1007), ("items", 3)}

    def lose(rows: Any) -> Any:
        places = [*zip(rows["collection"], rows["key"], strict=True)]
        return rows[
            [(name, int(json.loads(key)["$numberInt"])) not in wrong for name, key in places]
        ]

    damage(target, lose)
    ghost = {"_id": 999}

    def haunt(rows: Any) -> Any:
        for name in ("orders", "items"):
            one = rows[rows["collection"] == name].head(1).copy()
            one["key"], one["document"] = '{"$numberInt": "999"}', bson.encode(ghost)
            one["fullDocument"] = json.dumps(ghost)
            rows = pandas.concat([rows, one], ignore_index=True)
        return rows

    damage(target, haunt)
    assert ("orders", '{"$numberInt": "999"}') in table()
    change_at_random(shop, 5, 80)
    database.signals.insert_one({"_id": "repair", **execute(f"{shop.database}.orders")})
    change_at_random(shop, 6, 80)
    follow()
    expected = {key: each for key, each in collections_of(shop).items() if key[0] != "signals"}
    expected.pop(("items", '{"$numberInt": "3"}'))
    expected["items", '{"$numberInt": "999"}'] = ghost
    assert table() == expected
    options = {"uri": shop.uri, **scope}
    found = {(row.key, row.difference) for row in verify(spark, target, **options).collect()}
    assert found == {
        ('{"$numberInt": "3"}', "missing"), ('{"$numberInt": "999"}', "extra"),
    }  # fmt: skip

    # Once more, while the stream waits. The signal with the id that was taken has no effect.
    database.signals.delete_one({"_id": "repair"})
    database.signals.insert_one({"_id": "repair", **execute(f"{shop.database}.nothing")})
    database.signals.insert_one(execute(".*[.]items", type="blocking"))
    change_at_random(shop, 7, 50)
    follow()
    expected = {key: each for key, each in collections_of(shop).items() if key[0] != "signals"}
    assert table() == expected
    assert verify(spark, target, **options).collect() == []


def test_a_snapshot_on_demand_survives_kills(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    shop.insert(3000)
    signals = tmp_path / "signals"
    signals.mkdir()
    query = Query(shop, tmp_path)
    options = ("maxEventsPerTrigger=250", "snapshotChunkRows=60", f"signalFolder={signals}")

    try:
        query.start(*options)
        query.wait_for(lambda: len(query.batches("commits")) >= 1)
        (signals / "all.json").write_text(json.dumps(execute(f"{shop.database}.orders")))
        query.wait_for(lambda: len(query.rows()) >= 250)
        (tmp_path / "armed").touch()  # the next batch is written in part only
        query.wait_for((tmp_path / "held").exists)
        query.kill()
        assert query.last_offset()["signals"]["reading"]
        (tmp_path / "armed").unlink()
        assert len(query.rows()) < 3000
        change_at_random(shop, 3, 150)
        query.start(*options)
        before = len(query.rows())
        query.wait_for(lambda: len(query.rows()) > before)
        change_at_random(shop, 4, 150)  # while the rest of the snapshot is read
        query.wait_for(lambda: not query.last_offset().get("signals", {}).get("requests"))
        shop.orders.insert_one({"_id": 100_000, "customer": 1})
        query.wait_for(lambda: 100_000 in [number for _, number in query.rows()])
        query.wait_for(lambda: not list(signals.glob("*.json")))
    finally:
        query.kill()

    rows = spark.read.parquet(str(tmp_path / "table"))
    reads = [row.documentKey for row in rows.where("op = 'r'").select("documentKey").collect()]
    assert len(reads) == len(set(reads))
    events = rows.where("operationType not in ('read', 'snapshotEnd')").select("token").collect()
    assert len(events) == len({row.token for row in events})
    target = str(tmp_path / "now" / "table")
    apply_changes(rows, target)
    assert table_of(spark, tmp_path / "now") == collections_of(shop)
    assert verify(spark, target, uri=shop.uri, database=shop.database).collect() == []


def test_a_job_processes_signals_and_writes_notifications(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.insert(20)
    where = JobFolder(str(tmp_path))
    names = (shop.database,)
    now = shop.now()
    begin = {"snapshotMode": "no_data", "startAtOperationTime": f"{now.time},{now.inc + 1}"}
    chosen = {**namespace_options(names), **begin}
    record = JobRecord(names, chosen)
    where.begin(record)

    def run() -> None:
        started = TablesJob(where, record, shop.uri).start(spark, None)
        started.awaitTermination()

    def send(*arguments: str) -> str:
        done = CliRunner().invoke(job, ["signal", *arguments, "--out", str(tmp_path)])
        assert done.exit_code == 0, done.output
        return done.output.strip()

    run()
    wanted = f"{shop.database}.orders"
    first = send("execute-snapshot", wanted, "--filter", f'{wanted}={{"customer": {{"$lt": 5}}}}')
    assert send("execute-snapshot", "nothing", "--id", "n") == "n"
    shop.orders.delete_one({"_id": 1, "customer": 1})
    run()
    table = CurrentTable.existing(str(tmp_path / "current")).read(spark)
    numbers = sorted(json.loads(row.fullDocument)["_id"] for row in table.collect())
    assert numbers == [0, 2, 3, 4, 10, 11, 12, 13, 14]
    rows = DeltaTable(tmp_path / "notifications").to_pyarrow_table().to_pylist()
    assert {row["type"] for row in rows if row["aggregate_type"] == "Initial Snapshot"} == {
        "SKIPPED"
    }
    found = [row for row in rows if row["type"] != "SKIPPED"]
    kinds = {(row["id"], row["aggregate_type"], row["type"]) for row in found}
    incremental = "Incremental Snapshot"
    assert kinds == {
        (first, incremental, "STARTED"), (first, incremental, "IN_PROGRESS"),
        (first, incremental, "TABLE_SCAN_COMPLETED"), (first, incremental, "COMPLETED"),
        ("n", incremental, "ABORTED"),
    }  # fmt: skip
    send("execute-snapshot", wanted, "--type", "blocking")
    run()
    outcomes = verify_job(spark, where, shop.uri, shown=100)
    assert {name: (each.count, each.remark) for name, each in outcomes.items()} == {
        "bronze": (0, ""), "current": (0, ""), "notifications": (0, ""),
    }  # fmt: skip

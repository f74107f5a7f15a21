"""Snapshots that signals request while the stream continues, in a running Spark."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_sink.cli import job
from spark_sink.tables.current_table import CurrentTable
from tests.spark.conftest import Shop
from tests.spark.jobs import NO_DIFFERENCE, differences, run_job

# One cluster, one Spark, which takes minutes to start on a busy machine.
pytestmark = [pytest.mark.xdist_group("spark_queries"), pytest.mark.timeout(900)]


def test_a_job_processes_signals_and_writes_notifications(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.insert(20)
    now = shop.now()
    begin = {"snapshotMode": "no_data", "startAtOperationTime": f"{now.time},{now.inc + 1}"}

    def send(*arguments: str) -> str:
        done = CliRunner().invoke(job, ["signal", *arguments, "--out", str(tmp_path)])
        assert done.exit_code == 0, done.output
        return done.output.strip()

    run_job(spark, shop, tmp_path, options=begin)
    wanted = f"{shop.database}.orders"
    first = send("execute-snapshot", wanted, "--filter", f'{wanted}={{"customer": {{"$lt": 5}}}}')
    assert send("execute-snapshot", "nothing", "--id", "n") == "n"
    shop.orders.delete_one({"_id": 1, "customer": 1})
    run_job(spark, shop, tmp_path, options=begin)
    table = CurrentTable.existing(str(tmp_path / "current")).log.read(spark)
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
    run_job(spark, shop, tmp_path, options=begin)
    assert differences(spark, shop, tmp_path) == NO_DIFFERENCE

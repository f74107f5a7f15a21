"""All tables of a job at one time, and current tables that are made again from bronze."""

import json
from pathlib import Path
from typing import Any

import pytest
from bson.timestamp import Timestamp
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from shard_client.bson.resume_token import cluster_time_of
from spark_sink import read_at
from spark_sink.cli import job
from spark_sink.errors import OptionError, StreamError
from spark_sink.jobs.history import restoration
from spark_sink.jobs.history.point_in_time import versions_at
from spark_sink.jobs.job_folder import JobFolder
from tests.spark.conftest import DEPLOYMENTS, Shop
from tests.spark.jobs import rows_of, run_job
from tests.spark.tables import change_at_random, collections_of, documents_in

pytestmark = [pytest.mark.xdist_group("spark_jobs"), pytest.mark.timeout(600)]


def text_of(time: Timestamp) -> str:
    return f"{time.time},{time.inc}"


@pytest.mark.parametrize("shop", DEPLOYMENTS, indirect=True)
def test_all_tables_are_read_as_of_one_time_and_made_again(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    folder = tmp_path / "job"
    before = shop.now()
    shop.insert(20)
    run_job(spark, shop, folder)
    moments: list[tuple[Timestamp, dict[tuple[str, str], dict[str, Any]]]] = []

    def remember() -> None:
        moments.append((shop.now(), collections_of(shop)))

    # A snapshot is read until the tick after the newest write, so the moment is after another one.
    shop.client[f"{shop.database}-elsewhere"].ticks.insert_one({})
    remember()  # the stream has not passed the reads of the snapshot in any version
    for seed in range(2):
        change_at_random(shop, seed, 12)
        remember()  # within a batch
        change_at_random(shop, 10 + seed, 12)
        run_job(spark, shop, folder, options={"maxEventsPerTrigger": "20"})
    shop.written += 5  # some writes at random are upserts
    shop.client[shop.database].items.insert_one({"_id": 1})
    shop.client[shop.database].items.rename("things")
    run_job(spark, shop, folder)
    shop.insert(1)
    with pytest.raises(StreamError, match=r"have reached .* only"):
        versions_at(JobFolder(str(folder)), shop.now())
    run_job(spark, shop, folder)
    where = JobFolder(str(folder))

    for time, documents in moments:
        found = read_at(spark, str(folder), text_of(time))
        assert documents_in(found["current"]) == documents
        assert all(cluster_time_of(token) <= time for token in events_of(found["bronze"]))
    with pytest.raises(StreamError, match="begins with a snapshot that was read"):
        read_at(spark, str(folder), text_of(before))
    with pytest.raises(OptionError, match="time: "):
        read_at(spark, str(folder), "yesterday")

    # The versions for other readers have nothing that is younger, and all that is older.
    newest = moments[-1][0]
    printed = CliRunner().invoke(job, ["at", text_of(newest), "--out", str(folder), "--json"])
    versions = json.loads(printed.output)
    assert tuple(versions["before"]) <= (newest.time, newest.inc + 1)
    table = DeltaTable(folder / "current", version=versions["versions"]["current"])
    replayed = read_at(spark, str(folder), f"{versions['before'][0]},{versions['before'][1] - 1}")
    rows = {row["key"]: row["document"] for row in table.to_pyarrow_table().to_pylist()}
    assert rows == {row.key: bytes(row.document) for row in replayed["current"].collect()}

    # Once the files of these versions have been deleted, bronze alone has the history.
    DeltaTable(folder / "current").vacuum(0, enforce_retention_duration=False, dry_run=False)
    refused = CliRunner().invoke(job, ["at", text_of(newest), "--out", str(folder)])
    assert refused.exit_code == 1
    assert "have been deleted" in refused.output
    assert documents_in(read_at(spark, str(folder), text_of(newest))["current"]) == moments[-1][1]
    for number, (time, documents) in enumerate(moments[:2]):
        into = str(tmp_path / f"at{number}")
        made = restoration.rebuild_table(spark, where, time, into)
        assert documents_in(made.log.read(spark)) == documents
        with pytest.raises(OptionError, match="there is a table in"):
            restoration.rebuild_table(spark, where, time, into)
    assert not rows_of(folder, "quarantine")


def events_of(bronze: DataFrame) -> list[str]:
    rows = bronze.where("op is not null and not snapshot").select("token").collect()
    return [row.token for row in rows]

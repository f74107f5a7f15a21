"""A query that is killed at critical moments writes each document and event exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import bson
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_sink import apply_changes
from spark_sink.signals.channels import send
from tests.spark.conftest import DEPLOYMENTS, Shop
from tests.spark.jobs import forget_last_commit
from tests.spark.parquet_query import parquet_writer
from tests.spark.test_current_tables import change_at_random, collections_of, table_of

pytestmark = pytest.mark.xdist_group("spark_queries")  # one cluster, one Spark

REPOSITORY = Path(__file__).parents[2]
WAIT = 240.0


class Query:
    """A process of parquet_query, and its committed batches and rows."""

    def __init__(self, shop: Shop, folder: Path) -> None:
        self.target = [shop.uri, shop.database, str(folder)]
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.spark.parquet_query", *self.target]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *arguments],
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the process and its JVM with SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(WAIT)

    def wait_for(self, what: Callable[[], bool]) -> None:
        assert self.process is not None
        until = time.monotonic() + WAIT
        while not what():
            log = (self.folder / "log").read_text()
            assert self.process.poll() is None, log
            assert time.monotonic() < until, log
            time.sleep(0.05)

    def batches(self, log: str) -> list[int]:
        """Return the batch ids in "offsets" or "commits" of the checkpoint."""
        files = (self.folder / "checkpoint" / log).glob("[0-9]*")
        return sorted(int(file.name) for file in files)

    def last_offset(self) -> dict[str, Any]:
        """Return the source's offset of the latest planned batch."""
        file = self.folder / "checkpoint" / "offsets" / str(self.batches("offsets")[-1])
        found: dict[str, Any] = json.loads(file.read_text().splitlines()[-1])
        return found

    def rows(self) -> list[tuple[str, int]]:
        """Return (token, document id) of all documents' rows that readers of the table see."""
        files: set[str] = set()
        for log in (self.folder / "table" / "_spark_metadata").glob("[0-9]*"):
            for line in log.read_text().splitlines()[1:]:
                files.add(urlparse(json.loads(line)["path"]).path)
        rows: list[tuple[str, str]] = []
        for file in files:
            table = pq.read_table(file, columns=["token", "documentKey"])
            found = [(row["token"], row["documentKey"]) for row in table.to_pylist()]
            rows += [(token, key) for token, key in found if key is not None]
        return sorted((token, json.loads(key)["_id"]) for token, key in rows)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shop", DEPLOYMENTS, indirect=True)
def test_a_killed_query_writes_every_event_exactly_once(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    """Killed within a snapshot, a batch of events, a requested snapshot, and between batches."""
    shop.insert(2000)
    signals = tmp_path / "signals"
    signals.mkdir()
    query = Query(shop, tmp_path)
    options = {"snapshotMode": "initial", "maxEventsPerTrigger": "250"}
    options |= {"snapshotChunkRows": "60", "snapshotTasks": "4"}
    options["signalFolder"] = str(signals)

    def start(*more: str) -> None:
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
        assert query.last_offset()["signals"]["reading"]
        before = len(query.rows())
        assert 0 < before < 2000
        change(3)

        start("bundled-java")
        query.wait_for(lambda: len(query.rows()) > before)
        change(4)  # while the rest of the snapshot is read
        query.wait_for(lambda: not query.last_offset().get("signals", {}).get("requests"))
        insert_one(100_000)
        shop.insert(500)
        kill_within_a_batch()

        start()
        insert_one(100_001)
        wanted = {"data-collections": [f"{shop.database}.orders"]}
        send(str(signals), {"type": "execute-snapshot", "data": wanted})
        query.wait_for(lambda: bool(query.last_offset().get("signals", {}).get("reading")))
        kill_within_a_batch()
        assert query.last_offset()["signals"]["reading"]
        change(5)

        start()
        query.wait_for(lambda: not list(signals.glob("*.json")))
        query.wait_for(lambda: not query.last_offset().get("signals", {}).get("requests"))
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
        told = [watch.next()["_id"]["_data"] for _ in range(2000 + len(events))]
        assert watch.try_next() is None
    assert sorted(row.token for row in events) == told[2000:]
    apply_changes(rows, str(tmp_path / "now" / "table"))
    assert table_of(spark, tmp_path / "now") == collections_of(shop)

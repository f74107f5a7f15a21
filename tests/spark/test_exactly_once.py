"""A query that is killed at critical moments writes every event to Parquet exactly once."""

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

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Shop
from tests.spark.parquet_query import parquet_writer

pytestmark = pytest.mark.xdist_group("spark")  # one cluster, one Spark

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
def test_a_killed_query_writes_every_event_exactly_once(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    query = Query(shop, tmp_path)
    try:
        query.start()
        query.wait_for(lambda: query.batches("commits") == [0])
        shop.insert(300)
        query.wait_for(lambda: len(query.rows()) == 300)

        # In the middle of a batch: some of its rows are in files that are not visible yet.
        (tmp_path / "armed").touch()
        shop.insert(2500)
        query.wait_for((tmp_path / "held").exists)
        query.kill()
        assert len(query.rows()) == 300
        assert query.batches("offsets")[-1] == query.batches("commits")[-1] + 1
        (tmp_path / "armed").unlink()
        shop.insert(100)

        # Between batches, on the bundled Java.
        query.start("bundled-java")
        query.wait_for(lambda: len(query.rows()) == 2900)
        query.wait_for(lambda: query.batches("offsets") == query.batches("commits"))
        query.kill()
        shop.insert(100)
    finally:
        query.kill()

    # As if killed after the sink has committed a batch but before the checkpoint has.
    commits = tmp_path / "checkpoint" / "commits"
    last = query.batches("commits")[-1]
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    writer = parquet_writer(spark, shop.uri, shop.database, tmp_path)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert query.batches("commits") == query.batches("offsets")

    rows = query.rows()
    assert sorted(number for _, number in rows) == list(range(3000))
    with shop.client[shop.database].watch(start_at_operation_time=shop.created) as watch:
        assert [token for token, _ in rows] == [watch.next()["_id"]["_data"] for _ in rows]

"""A query that is killed at bad moments writes every event to Parquet exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlparse

import pyarrow.parquet as pq
import pytest

from tests.spark.fake_router import FakeRouter

REPOSITORY = Path(__file__).parents[2]
WAIT = 60.0


class Query:
    """The process of parquet_query, and what it has committed."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri = uri
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.spark.parquet_query", self.uri, str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *arguments],
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9, the JVM included."""
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
        """The batch ids in "offsets" or "commits" of the checkpoint."""
        files = (self.folder / "checkpoint" / log).glob("[0-9]*")
        return sorted(int(file.name) for file in files)

    def rows(self) -> list[tuple[str, int]]:
        """(token, document id) of all rows that readers of the table see."""
        files: set[str] = set()
        for log in (self.folder / "table" / "_spark_metadata").glob("[0-9]*"):
            for line in log.read_text().splitlines()[1:]:
                files.add(urlparse(json.loads(line)["path"]).path)
        rows: list[tuple[str, str]] = []
        for file in files:
            table = pq.read_table(file, columns=["token", "documentKey"])
            rows += [(row["token"], row["documentKey"]) for row in table.to_pylist()]
        return sorted((token, json.loads(key)["_id"]) for token, key in rows)


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    router = FakeRouter()
    yield router
    router.close()


@pytest.mark.timeout(240)
def test_kill_and_restart(tmp_path: Path, router: FakeRouter) -> None:
    query = Query(router.uri, tmp_path)
    try:
        query.start()
        query.wait_for(lambda: query.batches("commits") == [0])
        router.insert(300)
        query.wait_for(lambda: len(query.rows()) == 300)

        # In the middle of a batch: some of its rows are written to files that nobody sees yet.
        (tmp_path / "armed").touch()
        router.insert(2500)
        query.wait_for((tmp_path / "held").exists)
        query.kill()
        assert len(query.rows()) == 300
        assert query.batches("offsets")[-1] == query.batches("commits")[-1] + 1
        (tmp_path / "armed").unlink()
        router.insert(100)

        # Between batches, on the Java that comes with the install.
        query.start("bundled-java")
        query.wait_for(lambda: len(query.rows()) == 2900)
        query.wait_for(lambda: query.batches("offsets") == query.batches("commits"))
        query.kill()
        router.insert(100)

        # After the sink has committed a batch, but before the checkpoint knows.
        last = query.batches("commits")[-1]
        (tmp_path / "checkpoint" / "commits" / str(last)).unlink()
        (tmp_path / "checkpoint" / "commits" / f".{last}.crc").unlink()
        query.start("available-now")
        assert query.process is not None
        assert query.process.wait(WAIT) == 0, (tmp_path / "log").read_text()
    finally:
        query.kill()
    assert [number for _, number in query.rows()] == list(range(3000))

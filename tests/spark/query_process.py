"""A process of parquet_query, which tests kill."""

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

from tests.harness.until import Deadline
from tests.spark.conftest import Shop

REPOSITORY = Path(__file__).parents[2]


WAIT = 240.0


class QueryProcess:
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
        deadline = Deadline(WAIT)
        while not what():
            log = (self.folder / "log").read_text()
            assert self.process.poll() is None, log
            deadline.check("the query", log)
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

"""A standalone cluster of Spark with two workers runs the job, submitted as it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_sink.jobs.job_folder import JobFolder
from spark_sink.session.java_runtime import find_java
from spark_sink.verification.job import verify_job
from tests.spark.conftest import Shop
from tests.spark.jobs import rows_of
from tests.spark.test_exactly_once import REPOSITORY, WAIT, Query

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

HOME = Path(pyspark.__file__).parent
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def environment() -> dict[str, str]:
    given = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    java = {"JAVA_HOME": str(find_java(os.environ).home), "SPARK_HOME": str(HOME)}
    python = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {
        **given,
        **java,
        **python,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SMALL,
    }


@contextmanager
def daemon(kind: str, *arguments: str, ready: str) -> Iterator[str]:
    """Run a daemon of Spark's until the block ends; give what `ready` matches in its log."""
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
    process = subprocess.Popen(
        [*command, *arguments, "--host", "127.0.0.1", "--webui-port", "0"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    guard = threading.Timer(WAIT, process.kill)
    guard.start()
    try:
        for line in process.stdout:
            lines.append(line)
            if found := re.search(ready, line):
                break
        else:
            raise AssertionError("".join(lines))
        guard.cancel()
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield found[0]
    finally:
        guard.cancel()
        process.terminate()
        process.wait(WAIT)


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Run a master and two workers; give the master's address."""
    with ExitStack() as stack:
        master = stack.enter_context(
            daemon("master.Master", "--port", "0", ready=r"spark://127\.0\.0\.1:\d+")
        )
        for number in range(2):
            size = ["--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"w{number}")]
            stack.enter_context(
                daemon("worker.Worker", *size, master, ready="Successfully registered")
            )
        yield master


@pytest.mark.timeout(900)
def test_a_cluster_of_two_workers_runs_the_job(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    archive = tmp_path / "spark_sink.zip"
    subprocess.run(["make", "spark-zip", f"SPARK_ZIP={archive}"], cwd=REPOSITORY, check=True)
    shop.insert(200)
    folder = tmp_path / "job"
    folder.mkdir()
    query = Query(shop, folder)
    settings = {
        "spark.executor.memory": "500m",
        "spark.executor.extraJavaOptions": SMALL,
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    with standalone(tmp_path) as master, (folder / "log").open("wb") as log:
        command = [str(HOME / "bin" / "spark-submit"), "--master", master]
        command += [text for each in settings.items() for text in ("--conf", "=".join(each))]
        command += ["--py-files", str(archive), str(REPOSITORY / "spark_sink" / "cli.py")]
        command += ["run", shop.database, "--uri", shop.uri, "--out", str(folder)]
        command += ["--trigger", "0 seconds"]
        command += ["--option", "snapshotChunkRows=50"]
        query.process = subprocess.Popen(
            command, env=environment(), stdout=log, stderr=log, start_new_session=True
        )
        try:
            query.wait_for(lambda: len(query.batches("commits")) > 1)
            shop.insert(100)
            shop.orders.delete_many({"_id": {"$lt": 10}})
            changes = 200 + 1 + 100 + 10  # with the snapshot's end
            query.wait_for(lambda: len(rows_of(folder)) >= changes)
            query.wait_for(lambda: query.batches("commits") == query.batches("offsets"))
            os.killpg(query.process.pid, signal.SIGTERM)
            query.process.wait(WAIT)
        finally:
            query.kill()
    executors = [list(tmp_path.glob(f"w{number}/app-*/*")) for number in range(2)]
    assert all(executors)  # both workers have run tasks
    found = verify_job(spark, JobFolder(str(folder)), shop.uri)
    assert {name: (each.count, each.remark) for name, each in found.items()} == {
        "bronze": (0, ""),
        "current": (0, ""),
        "notifications": (0, ""),
    }

"""Jobs and queries on a cluster of Spark, as docs/on-a-cluster.md prints them."""

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_tables import DEFAULT_TABLES
from spark_sink.verification.verify_job import verify_job
from tests.harness.object_store import BUCKET, object_store
from tests.harness.until import wait_for
from tests.spark.cluster.nodes import (
    REPOSITORY,
    SETTINGS,
    SparkNodes,
    command_in_docs,
    make_python,
    packages_in_docs,
    query_in_docs,
    spark_nodes,
)
from tests.spark.conftest import Shop
from tests.spark.kills.job_process import JobProcess

pytestmark = [pytest.mark.xdist_group("spark_nodes"), pytest.mark.timeout(600)]
pytest.importorskip("moto", reason="it stands in for S3")

_SECONDS = 240.0
_BATCHES = 12


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkNodes]:
    with spark_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Iterator[None]:
    with object_store() as store:
        for name, text in store.environment.items():
            monkeypatch.setenv(name, text)
            # Of the session's Python workers, which verify the tables.
            monkeypatch.setitem(spark.sparkContext.environment, name, text)
        yield


class ClusterJob(JobProcess):
    """A command of the page on a host of its own: `mergerouter` or `spark-submit`."""

    def __init__(self, nodes: SparkNodes, host: Path, shop: Shop, program: str) -> None:
        host.mkdir()
        out, checkpoint = f"s3://{BUCKET}/job", host / "checkpoint"
        environment = nodes.driver(host.name)
        super().__init__(shop.uri, checkpoint, [], {}, out, SETTINGS, environment)
        replaced = {
            "/opt/executors/bin/python": str(nodes.python),
            "spark://spark:7077": nodes.master,
            "mongodb://router:27020": shop.uri,
            "shop.orders": f"{shop.database}.orders",
            "s3://lake/orders": out,
            "/var/lib/orders": str(checkpoint),
        }
        settings = [f"--conf={name}={text}" for name, text in SETTINGS.items()]
        # Tasks read each batch: otherwise the driver reads small ones by itself.
        options = ["--trigger=0 seconds", "--option=maxBytesPerTrigger=1g", "--keep-files=6h"]
        options += ["--option=snapshotChunkRows=50"]
        if program == "spark-submit":
            archive, python = host / "spark_sink.zip", host / "driver"
            command = ["make", "spark-zip", f"SPARK_ZIP={archive}"]
            subprocess.run(command, cwd=REPOSITORY, check=True)
            replaced |= {
                "/opt/driver/bin/python": str(make_python(python, packages_in_docs("driver"))),
                "build/spark_sink.zip": str(archive),
                "spark_sink/cli.py": str(REPOSITORY / "spark_sink" / "cli.py"),
            }
            found = command_in_docs(program, replaced)
            place = found.index(program) + 1
            self._command = [*found[:place], *settings, *found[place:], *options]
        else:
            self._command = [*command_in_docs(program, replaced), *options, *settings]

    most_ends = 0
    """How many starts may end by themselves."""

    def tokens(self) -> Counter[str]:
        table = self.folder.table("bronze")
        if not DeltaTable.is_deltatable(table):
            return Counter()
        rows = DeltaTable(table).to_pyarrow_table(columns=["token", "op", "snapshot"]).to_pylist()
        return Counter(row["token"] for row in rows if row["op"] and not row["snapshot"])

    def wait_for(self, events: int) -> None:
        """Wait until the table has as many events."""
        self._wait_until(lambda: len(self.tokens()) >= events, f"{events} events")

    def wait_for_batch(self, number: int) -> None:
        """Wait until the job has committed a batch."""
        self._wait_until(lambda: self.committed >= number, f"batch {number}")

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition. The job may end once for each time that it was killed."""

        def holds() -> bool:
            self.keep_running()
            assert len(self.ends) <= self.most_ends, self.last_output()
            return condition()

        try:
            wait_for(holds, what, _SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}; the job: {self.last_output()}") from None


def test_a_job_on_a_cluster_loses_nothing_when_its_processes_are_killed(
    nodes: SparkNodes, shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    chance = random.Random(1)
    shop.insert(300)
    job = ClusterJob(nodes, tmp_path / "driver-1", shop, "mergerouter job")
    other = ClusterJob(nodes, tmp_path / "driver-2", shop, "mergerouter job")
    try:
        job.wait_for_batch(1)
        shop.insert(20)
        job.wait_for(20)
        for kill in (
            lambda: nodes.kill_executor(chance),
            lambda: nodes.kill_worker(chance),
            job.kill,
        ):
            kill()
            events = sum(job.tokens().values())
            shop.insert(20)
            job.wait_for(events + 20)
        assert job.ends == []
        other.keep_running()

        def has_ended() -> bool:
            shop.insert(1)  # which the first host would commit
            time.sleep(0.5)
            return job.has_ended

        wait_for(has_ended, "the end of the first host's job", _SECONDS)
        assert "another start" in job.last_output()
        other.wait_for(shop.written - 300)
        assert other.end() == 0
    finally:
        job.kill()
        other.kill()
    assert all(map(nodes.has_run, nodes.workers))
    assert set(other.tokens().values()) == {1}
    assert differences(spark, shop) == {}


def differences(spark: SparkSession, shop: Shop) -> dict[str, Any]:
    """Return what verify finds in the tables of the job, by name."""
    folder = JobFolder(f"s3://{BUCKET}/job")
    for name in DEFAULT_TABLES:
        kept = DeltaTable(folder.table(name)).metadata().configuration
        assert kept["delta.deletedFileRetentionDuration"] == "interval 21600 seconds"
    found = verify_job(spark, folder, shop.uri)
    assert {*DEFAULT_TABLES} <= {*found}
    return {name: each for name, each in found.items() if each.count or each.remark}


def test_a_submitted_job_goes_on_after_the_snapshot_and_does_not_grow(
    nodes: SparkNodes, shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    shop.insert(100)
    job = ClusterJob(nodes, tmp_path / "driver-3", shop, "spark-submit")
    try:
        job.wait_for_batch(1)
        figures = []
        for _ in range(3):
            for _ in range(_BATCHES):
                number = job.committed
                shop.insert(5)
                job.wait_for_batch(number + 1)
            figures.append(job.memory())
        job.wait_for(15 * _BATCHES)
        assert job.starts == 1
    finally:
        job.kill()
    _, (python, java), (later_python, later_java) = figures
    assert later_python < python + _BATCHES, figures  # a MB a batch would be a leak
    assert later_java < java + _BATCHES, figures
    assert differences(spark, shop) == {}


def test_a_query_on_a_cluster_follows_a_collection(
    nodes: SparkNodes, shop: Shop, tmp_path: Path
) -> None:
    shop.insert(100)
    target = f"s3://{BUCKET}/now"
    replaced = {
        "spark://spark:7077": nodes.master,
        "mongodb://router:27020": shop.uri,
        '"shop"': f'"{shop.database}"',
        "s3://lake/orders-now": target,
        "/var/lib/orders-now": str(tmp_path / "checkpoint"),
    }
    log, settings = tmp_path / "log", [f"{name}={text}" for name, text in SETTINGS.items()]
    submit = "".join(f"--conf {shlex.quote(each)} " for each in settings)
    with log.open("wb") as output:
        query = subprocess.Popen(
            [sys.executable, "-c", query_in_docs(replaced)],
            env={**nodes.driver("driver-4"), "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell"},
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def has(documents: int) -> bool:
        assert query.poll() is None, log.read_text()[-4000:]
        if not DeltaTable.is_deltatable(target):
            return False
        return len(DeltaTable(target).to_pyarrow_table(columns=["key"])) == documents

    try:
        wait_for(lambda: has(100), "the snapshot", _SECONDS)
        shop.insert(10)
        wait_for(lambda: has(110), "the changes", _SECONDS)
    finally:
        os.killpg(query.pid, signal.SIGKILL)
        query.wait(_SECONDS)

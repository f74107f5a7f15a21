"""One seed of the jobs that are killed, or stall: tables lack nothing, and have nothing twice."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import DEPLOYMENTS
from tests.spark.kills.run import run_seed

ROOT = Path(__file__).parents[2]
# `make spark-kills` has the other kinds of faults, too.
KINDS = ("router", "primary", "driver", "executor", "swap", "scope", "seek")

# One cluster, one Spark, which takes minutes to start on a busy machine.
pytestmark = [pytest.mark.xdist_group("spark_cluster"), pytest.mark.timeout(900)]


@pytest.mark.parametrize("reads", DEPLOYMENTS)
def test_a_job_that_is_killed_keeps_its_tables_equal(
    spark: SparkSession, tmp_path: Path, reads: str
) -> None:
    folder = tmp_path / "seed"
    folder.mkdir()
    outcome = run_seed(0, folder, spark, extra=0, kinds=KINDS, reads=reads)
    assert outcome.problems == []
    assert {*outcome.faults} >= {"driver", "executor", "swap", "scope", "seek"}
    assert outcome.events > 0
    assert outcome.starts > outcome.faults.count("driver")


def test_a_job_that_stalls_ends_after_another_host_has_taken_over() -> None:
    pytest.importorskip("moto", reason="it stands in for S3")
    # A process of its own: the session that verifies is stopped, and knows the store.
    command = [sys.executable, "-m", "tests.spark.kills", "--store", "--kinds=stall"]
    command += ["--seeds=1", "--extra=0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]

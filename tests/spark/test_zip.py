"""Executors need only the zip, with neither the router nor its client, orjson and deltalake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
for name in "router embedded orjson motor deltalake typer".split():
    sys.modules[name] = None
for name in "errors error_codes wire remote_cursor replica_set".split():
    sys.modules[f"shard_client.{name}"] = None
import spark_sink.source.data_source
import spark_sink.jobs.job_source, spark_sink.tables.range_merge, spark_sink.tables.table_scan
import spark_sink.tables.advance, spark_sink.verification.ranges, spark_sink.verification.stream
print(spark_sink.source.data_source.__file__)
"""


def test_tasks_run_from_a_zip_without_the_router(tmp_path: Path) -> None:
    archive = tmp_path / "spark_sink.zip"
    subprocess.run(["make", "spark-zip", f"SPARK_ZIP={archive}"], cwd=REPOSITORY, check=True)
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, str(archive)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().startswith(str(archive))

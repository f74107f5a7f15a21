"""Executors need only the package as a zip, without the router, orjson and deltalake.

Those that write no tables need no numpy.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
for name in "router shard_client embedded orjson numpy motor deltalake typer".split():
    sys.modules[name] = None
import spark_sink.source.data_source
del sys.modules["numpy"]
import spark_sink.jobs.job_source, spark_sink.tables.range_merge, spark_sink.tables.tasks
print(spark_sink.source.data_source.__file__)
"""


def test_tasks_run_from_a_zip_without_the_router(tmp_path: Path) -> None:
    subprocess.run(
        ["make", "--directory", REPOSITORY, "--no-print-directory", "--dry-run", "spark-zip"],
        check=True,
        capture_output=True,
    )
    archive = tmp_path / "spark_sink.zip"
    command = [sys.executable, "-m", "zipfile", "-c", str(archive), "spark_sink"]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, str(archive)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().startswith(str(archive))

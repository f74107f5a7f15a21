"""What tasks run with: the Java runtime, and the packages in a zip."""

import subprocess
import sys
from pathlib import Path

import pytest

from spark_sink import spark_session
from spark_sink.errors import SourceError
from spark_sink.spark_session import bundled_java, find_java


def fake_java(folder, version):
    """Create a `java` program that reports this version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(("of_home", "chosen"), [("17.0.1", "home"), ("1.8.0_392", "other")])
def test_java_home_comes_first_and_the_path_if_it_is_too_old(of_home, chosen, tmp_path):
    home, other = fake_java(tmp_path / "home", of_home), fake_java(tmp_path / "other", "21")
    environment = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert find_java(environment) == tmp_path / chosen


def test_the_bundled_java_is_used_if_there_is_no_other(tmp_path):
    home = find_java({"JAVA_HOME": str(tmp_path / "missing"), "PATH": str(tmp_path)})
    assert home.name.startswith("mergerouter-java-")


def test_the_bundled_java_is_not_stopped_by_the_vector_module():
    home = bundled_java()
    assert home is not None
    done = subprocess.run(
        [
            home / "bin" / "java",
            "--add-modules=jdk.incubator.vector",
            "-Dname=two words",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "name = two words" in done.stderr


def test_the_error_without_java_lists_the_searched_places(tmp_path, monkeypatch):
    old = fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setattr(spark_session, "bundled_java", lambda: None)
    with pytest.raises(SourceError, match=r"Java 17 or newer.*old/bin/java \(version 11\)"):
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})


REPOSITORY = Path(__file__).parents[2]
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
for name in "router embedded orjson motor deltalake typer".split():
    sys.modules[name] = None
for name in "errors wire remote_cursor replica_set".split():
    sys.modules[f"shard_client.{name}"] = None
import spark_sink.source.data_source
import spark_sink.jobs.job_source, spark_sink.tables.merge_task, spark_sink.tables.parquet_parts
import spark_sink.tables.frame_fold, spark_sink.verification.comparison_tasks
import spark_sink.verification.stream_comparison
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

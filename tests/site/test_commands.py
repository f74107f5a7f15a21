"""Every command in README.md and docs runs in a test: this finds those that escape."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
_MARKED = re.compile(r"<!-- (?:test: \w+|quickstart) -->\n\n((?:    .*\n)+)")
_PROGRAMS = (
    "cat", "chmod", "cp", "curl", "docker", "echo", "helm", "kill", "kubectl", "make",
    "mergerouter", "mongod", "mongos", "mongosh", "nc", "npm", "openssl", "pip", "python",
    "spark-submit", "sudo", "systemctl",
)  # fmt: skip
_PROGRAM = re.compile(rf"    (?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?({'|'.join(_PROGRAMS)}) ")
_ELSEWHERE = {
    ("README.md", ".venv/bin/mergerouter job run"): "tests/spark/test_job.py",
    ("spark.md", "mergerouter job at"): "tests/spark/test_point_in_time.py",
    ("spark.md", "mergerouter job wait"): "tests/spark/test_job.py",
    ("spark.md", "mergerouter job check"): "tests/unit/spark_sink/jobs/test_job_settings.py",
    ("spark.md", "mergerouter job rebuild"): "tests/spark/test_point_in_time.py",
    ("spark.md", "mergerouter job run"): "tests/spark/test_job.py",
    ("spark.md", "mergerouter job signal"): "tests/spark/test_signal_queries.py",
    ("spark.md", "mergerouter job verify"): "tests/spark/test_verification.py",
    ("spark.md", "mergerouter job seek"): "tests/spark/test_collections_change.py",
    ("spark-reference.md", "mergerouter job run"): "tests/spark/test_typed_job.py",
    ("debezium.md", "mergerouter job run"): "tests/spark/test_kills.py",
    ("on-a-cluster.md", "PYSPARK_PYTHON="): "tests/spark/cluster/test_cluster.py",
    ("deployment.md", "helm install"): "tests/unit/deploy/test_kubernetes.py",
    ("deployment.md", "helm upgrade"): "tests/unit/deploy/test_kubernetes.py",
    ("deployment.md", "kubectl create secret"): "tests/unit/deploy/test_kubernetes.py",
    ("clients.md", "mergerouter serve --replicaSet"): "tests/integration/test_replica_set.py",
    ("install.md", ".venv/bin/pip install"): "tests/packaging/test_distribution.py",
}
"""Commands that other tests run, or what is left of them without Kubernetes or a second machine."""


class Command(NamedTuple):
    page: str
    text: str


def unmarked() -> list[Command]:
    """Return the commands that neither test_docs_commands.py nor test_quickstart.py runs."""
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = re.sub(r"\\\n\s*", "", _MARKED.sub("", page.read_text()))
        found += [
            Command(page.name, line.strip()) for line in text.splitlines() if _PROGRAM.match(line)
        ]
    return found


def of_make() -> list[Command]:
    return [each for each in unmarked() if re.match(r"([A-Z_]+=\S+ )*make ", each.text)]


def test_no_command_escapes() -> None:
    others = [each for each in unmarked() if each not in of_make()]
    listed = {
        each: [key for key in _ELSEWHERE if key[0] == each.page and each.text.startswith(key[1])]
        for each in others
    }
    escaped = [each for each, keys in listed.items() if not keys]
    assert escaped == [], "mark them for test_docs_commands.py, or name the test that runs them"
    assert {key for keys in listed.values() for key in keys} == set(_ELSEWHERE)
    for (page, command), test in _ELSEWHERE.items():
        subject = command.split()[-1].strip("-=")
        assert subject in (ROOT / test).read_text() or page in (ROOT / test).read_text(), test


@pytest.mark.parametrize("command", of_make(), ids=lambda each: f"{each.page}: {each.text}")
def test_make_knows_its_targets(command: Command) -> None:
    arguments = shlex.split(command.text.partition("make ")[2], comments=True)
    tried = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stderr
    assigned = [each.partition("=")[0] for each in arguments if "=" in each]
    makefile = (ROOT / "Makefile").read_text()
    assert [name for name in assigned if name not in makefile] == []

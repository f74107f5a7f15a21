"""Running pymongo's own change stream tests, from its source distribution.

This repository has no copy of them: pip downloads the source distribution of the installed
pymongo, whose ``test`` folder also has the drivers' specification tests.
"""

import json
import os
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pymongo

from tests.drivers.download_cache import DownloadError, cached, run
from tests.harness.clusters import start_cluster, start_real_set
from tests.harness.routers import RouterProcess, start_router
from tests.harness.server_settings import ServerSettings

SYNCHRONOUS = "test/test_change_stream.py"
ASYNCHRONOUS = "test/asynchronous/test_change_stream.py"
TRANSACTIONS = "test/test_transactions_unified.py"
WIDENED = "change-streams-on-sharded-clusters"
"""The specification's tests for replica sets that also pass on a sharded cluster."""

_DOWNLOAD_SECONDS = 110.0
_ALL_TESTS_SECONDS = 900.0
_ONE_TEST_SECONDS = 60
# Two documents of 10 MB with images and oplog entries would fill much of the harness's small cache.
_SERVERS = ServerSettings(noop_interval=1, cache_gb=1.0)
# It once waited for a minute on real servers, and 97 further runs did not show why. Events that are
# split are tested on them by tests/recordings/test_workload.py.
_LEFT_OUT = "test_split_large_change"
_OF_SHARDED_COLLECTIONS = "shardCollection_events"
"""The tests that shard a collection, which a replica set cannot."""
_SPECIFICATION = Path("test/change_streams/unified")


@dataclass(frozen=True)
class Outcome:
    """Each test's result by id (passed, failed or skipped), and the total ``seconds``."""

    tests: dict[str, str]
    seconds: float
    output: str

    def count(self) -> Counter[str]:
        """Return the numbers of passed, failed and skipped tests, without those of WIDENED."""
        return Counter(became for test, became in self.tests.items() if not is_widened(test))

    def count_widened(self) -> Counter[str]:
        """Return the numbers of passed, failed and skipped tests of WIDENED."""
        return Counter(became for test, became in self.tests.items() if is_widened(test))

    @property
    def failed(self) -> list[str]:
        """The ids of the tests that failed."""
        return [test for test, became in self.tests.items() if became == "failed"]


def is_widened(test: str) -> bool:
    """Return whether a test comes from WIDENED."""
    return "OnShardedClusters" in test


def pymongo_tests(timeout: float = _DOWNLOAD_SECONDS) -> Path:
    """Return the folder with pymongo's tests; download it if necessary.

    Args:
        timeout: seconds for the download, in which pip also prepares a build.

    Raises:
        DownloadError: the source distribution is not available.
    """
    return cached(f"pymongo-{pymongo.version}", lambda folder: _fill(folder, timeout))


def run_tests(
    folder: Path,
    file: str,
    port: int,
    timeout: float = _ALL_TESTS_SECONDS,
    left_out: str = _LEFT_OUT,
) -> Outcome:
    """Run one file of pymongo's tests against the server at ``port`` of this machine.

    Args:
        folder: the folder from ``pymongo_tests``.
        file: SYNCHRONOUS or ASYNCHRONOUS.
        port: the server's port.
        timeout: seconds for all tests.
        left_out: which tests are not run, as an expression of pytest's.

    Raises:
        RuntimeError: the tests failed to run or took too long.
    """
    report = folder / f"report-{port}.xml"
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    environment |= {"DB_IP": "127.0.0.1", "DB_PORT": str(port)}
    command = [
        sys.executable, "-m", "pytest", file, "-q", "--tb=short", "-p", "no:cacheprovider",
        "-k", f"not ({left_out})", f"--timeout={_ONE_TEST_SECONDS}", f"--junitxml={report}",
    ]  # fmt: skip
    start = time.monotonic()
    try:
        finished = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not report.exists():
            raise RuntimeError(f"pymongo's tests did not run:\n{finished.stdout}{finished.stderr}")
        tests = _read_report(report)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"pymongo's tests took longer than {timeout:g} s") from error
    finally:
        report.unlink(missing_ok=True)
    return Outcome(tests, time.monotonic() - start, finished.stdout)


def through_router(
    folder: Path, file: str, server_version: str, *, mongos_too: bool = False
) -> tuple[Outcome, Outcome | None]:
    """Run one file of pymongo's tests through a router over two shards.

    Returns the outcome and, with ``mongos_too`` on real servers, also the outcome on their mongos,
    which takes several times as long.
    """
    parameters = {"enableTestCommands": 1}
    with (
        start_cluster(shards=2, server_version=server_version, settings=_SERVERS) as cluster,
        start_router(cluster.configdb, cluster.mongos_uri, set_parameter=parameters) as router,
    ):
        outcome = run_tests(folder, file, router.port)
        if outcome.failed:
            outcome = replace(outcome, output="\n".join([outcome.output, *router.lines]))
        if not (cluster.real and mongos_too):
            return outcome, None
        return outcome, run_tests(folder, file, int(cluster.mongos.rpartition(":")[2]))


def before_replica_set(folder: Path, file: str, left_out: str = "") -> Outcome:
    """Run one file of pymongo's tests through a router in front of a replica set.

    ``left_out`` is as for ``run_tests``, by default the tests that need shards.
    """
    with (
        start_real_set("rs0", settings=_SERVERS) as servers,
        RouterProcess(
            ["--replicaSet", servers.host_string, "--port=0", "--setParameter=enableTestCommands=1"]
        ) as router,
    ):
        needing_shards = f"{_LEFT_OUT} or {_OF_SHARDED_COLLECTIONS}"
        return run_tests(folder, file, router.port, left_out=left_out or needing_shards)


def _fill(folder: Path, timeout: float) -> None:
    downloaded = folder / "download"
    run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
            "--timeout", "20", "--retries", "1", "--dest", str(downloaded),
            f"pymongo=={pymongo.version}",
        ],
        folder=folder,
        timeout=timeout,
    )  # fmt: skip
    archives = list(downloaded.glob("*.tar.gz"))
    if not archives:
        raise DownloadError("pip downloaded no source distribution of pymongo")
    with tarfile.open(archives[0]) as archive:
        for member in archive.getmembers():
            _top, _slash, member.name = member.name.partition("/")
            # Without the packages next to the tests, the tests import the installed pymongo.
            if member.name == "pyproject.toml" or member.name.startswith("test/"):
                archive.extract(member, folder, filter="data")
    archives[0].unlink()
    downloaded.rmdir()
    _widen(folder / _SPECIFICATION)


def _widen(specification: Path) -> None:
    tests = json.loads((specification / "change-streams.json").read_text())
    tests["description"] = WIDENED
    for requirement in tests["runOnRequirements"]:
        requirement["topologies"] = ["sharded"]
    (specification / f"{WIDENED}.json").write_text(json.dumps(tests, indent=2))


def _read_report(report: Path) -> dict[str, str]:
    # The file is trusted, since pytest has just written it.
    tests = {}
    for case in ElementTree.parse(report).iter("testcase"):
        became = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            became = "failed"
        elif case.find("skipped") is not None:
            became = "skipped"
        tests[f"{case.get('classname')}.{case.get('name')}"] = became
    return tests

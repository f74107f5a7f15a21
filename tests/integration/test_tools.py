"""``tail`` and ``check-config`` on a running cluster."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.clusters import Client, TestCluster
from tests.harness.ports import free_port
from tests.harness.routers import RouterProcess, run_command, start_router


@pytest.fixture(scope="module")
def router(cluster: TestCluster) -> Iterator[RouterProcess]:
    with start_router(cluster.configdb, cluster.mongos_uri) as started:
        yield started


def test_tail_resumes_where_it_ended(router: RouterProcess, tmp_path: Path) -> None:
    place = tmp_path / "place"
    with Client(router.uri) as client:
        collection = client.tools.tail
        with collection.watch() as stream:
            collection.insert_one({"_id": 0})
            place.write_text(json.dumps(next(stream)["_id"]))
        collection.insert_many([{"_id": number, "n": number} for number in range(1, 6)])
    arguments = ("tail", "tools.tail", "--uri", router.uri, "--resume-file", str(place), "-n")
    first, second = run_command(*arguments, "2"), run_command(*arguments, "3")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    keys = [
        [json.loads(line)["documentKey"]["_id"] for line in each.stdout.splitlines()]
        for each in (first, second)
    ]
    assert keys == [[1, 2], [3, 4, 5]]


def test_the_configuration_of_a_good_router_is_found_good(
    cluster: TestCluster, tmp_path: Path
) -> None:
    config = tmp_path / "router.yaml"
    config.write_text(
        f"sharding:\n  configDB: {cluster.configdb}\nnet:\n  port: 0\n"
        f"upstream: {cluster.mongos_uri.rstrip('/')}\n"
    )
    result = run_command("check-config", "--config", str(config))
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    for subject in ("settings", "config server", "shard shard0", "shard shard1", "upstream"):
        assert any(subject in line for line in lines), subject


def test_check_config_reports_what_fails(cluster: TestCluster, router: RouterProcess) -> None:
    member = cluster.configdb.partition("/")[2].split(",")[0]
    nowhere = f"127.0.0.1:{free_port()}"
    result = run_command(
        "check-config", "--configdb", f"cfg/{nowhere}", "--upstream", f"mongodb://{member}"
    )
    assert result.returncode == 1
    failures = [line for line in result.stdout.splitlines() if line.startswith("FAIL")]
    (config,) = [line for line in failures if "config server" in line]
    assert "rs.conf()" in config
    (upstream,) = [line for line in failures if "upstream" in line]
    assert "no mongos" in upstream

"""Starts and ends of a router, also of one that runs for a block of Python."""

import subprocess
import sys
from pathlib import Path

import pytest
from pymongo.errors import OperationFailure

from spark_sink.errors import OptionError, SourceError
from spark_sink.jobs.job_settings import JobSettings
from spark_sink.jobs.router_beside import router_beside
from spark_sink.stream.router_client import require_cluster
from tests.harness.clusters import Client, TestCluster
from tests.harness.ports import free_port
from tests.harness.routers import start_router
from tests.harness.switched_port import SwitchedPort
from tests.harness.until import PATIENCE, wait_for


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_ends_a_router_with_a_closed_output_pipe(
    cluster: TestCluster, workers: str
) -> None:
    arguments = ["--configdb", cluster.configdb, "--port", "0", "--workers", workers]
    with subprocess.Popen(
        [sys.executable, "-m", "router.cli", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as router:
        try:
            assert router.stdout is not None
            for line in router.stdout:
                if "Waiting for connections" in line:
                    break
            router.stdout.close()
            router.terminate()
            assert router.wait(PATIENCE) == 0
        finally:
            router.kill()


def test_an_unreachable_cluster_is_a_retriable_error_until_it_starts(cluster: TestCluster) -> None:
    name, _, address = cluster.configdb.partition("/")
    limits = {"openTimeoutMs": 300, "connectTimeoutMs": 300, "failureTimeoutMs": 300}
    with (
        SwitchedPort() as port,
        start_router(f"{name}/{port.address}", set_parameter=limits) as router,
        Client(router.uri) as client,
    ):
        assert client.admin.command("ping")["ok"] == 1
        with pytest.raises(OperationFailure) as raised:
            client.life.watch()
        assert raised.value.has_error_label("ResumableChangeStreamError")
        assert any("trying on" in line["msg"] for line in router.logs())
        port.exchange(address)

        def watched() -> bool:
            try:
                client.life.watch().close()
            except OperationFailure:
                return False
            return True

        wait_for(watched, "the cluster to be found")
        wait_for(
            lambda: any(line["msg"] == "Speaking for a cluster" for line in router.logs()),
            "the version",
        )


def settings_of(folder: Path, uri: str, **more: str) -> JobSettings:
    return JobSettings.model_validate({"out": str(folder), "uri": uri, **more})


def test_a_router_runs_for_the_block(cluster: TestCluster, tmp_path: Path) -> None:
    uri = f"mongodb://127.0.0.1:{free_port()}/"
    upstream = cluster.mongos_uri.rstrip("/")
    with router_beside(settings_of(tmp_path, uri, configdb=cluster.configdb, upstream=upstream)):
        require_cluster({"uri": uri})
        with router_beside(settings_of(tmp_path, uri, configdb="cfg/127.0.0.1:1")):
            require_cluster({"uri": uri})
        require_cluster({"uri": uri})
    with pytest.raises(SourceError, match="cannot be reached"):
        require_cluster({"uri": uri})


def test_it_is_for_this_machine(tmp_path: Path) -> None:
    with (
        pytest.raises(OptionError, match=r"--uri must name one port of 127\.0\.0\.1"),
        router_beside(
            settings_of(tmp_path, "mongodb://127.0.0.1:1,127.0.0.1:2", configdb="cfg/h:1")
        ),
    ):
        pass

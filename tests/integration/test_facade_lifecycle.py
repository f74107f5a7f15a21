"""The router's lifecycle: unreachable clusters, restarts, shutdown, clients that disconnect."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure

from tests.harness.clusters import TestCluster
from tests.harness.ports import free_port
from tests.harness.routers import RouterProcess, start_router
from tests.harness.until import PATIENCE, wait_for


@contextmanager
def watcher(uri: str, wanted: int) -> Iterator[tuple[list[Any], threading.Thread]]:
    """Watch ``life.c`` in a thread until ``wanted`` events have arrived; yield the list of them."""
    seen: list[Any] = []
    opened = threading.Event()

    def watch() -> None:
        with (
            pymongo.MongoClient[dict[str, Any]](uri) as client,
            client.life.c.watch(max_await_time_ms=500) as stream,
        ):
            opened.set()
            while len(seen) < wanted:
                event = stream.try_next()
                if event is not None:
                    seen.append(event["documentKey"]["_id"])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    assert opened.wait(PATIENCE)
    yield seen, thread
    thread.join(PATIENCE)
    assert not thread.is_alive(), f"only {len(seen)} of {wanted} events arrived"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_watchers_resume_after_a_restart(cluster: TestCluster, end: signal.Signals) -> None:
    port = free_port()
    with pymongo.MongoClient[dict[str, Any]](cluster.mongos_uri) as direct:
        direct.life.c.drop()
        direct.life.create_collection("c")
        router = start_router(cluster.configdb, cluster.mongos_uri, port=port)
        try:
            with watcher(router.uri, 60) as (seen, _thread):
                direct.life.c.insert_many([{"_id": number} for number in range(30)])
                wait_for(lambda: len(seen) >= 5, "the first events")
                os.kill(router.process.pid, end)
                router.process.wait(PATIENCE)
                direct.life.c.insert_many([{"_id": number} for number in range(30, 60)])
                router = start_router(cluster.configdb, cluster.mongos_uri, port=port)
            assert seen == list(range(60))
        finally:
            router.stop()


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


@contextmanager
def forwarder(port: int, target: tuple[str, int]) -> Iterator[None]:
    """Forward a port to a server on another port."""
    listening = socket.create_server(("127.0.0.1", port))
    ends: list[socket.socket] = []

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()

    def accept() -> None:
        while True:
            try:
                near, _address = listening.accept()
            except OSError:
                return
            far = socket.create_connection(target)
            ends.extend((near, far))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        listening.close()
        for end in ends:
            end.close()


def test_an_unreachable_cluster_is_a_retriable_error_until_it_starts(
    cluster: TestCluster,
) -> None:
    port = free_port()
    name, _slash, hosts = cluster.configdb.partition("/")
    host, _colon, config_port = hosts.partition(":")
    limits = {"openTimeoutMs": 300, "connectTimeoutMs": 300, "failureTimeoutMs": 300}
    with (
        start_router(f"{name}/127.0.0.1:{port}", set_parameter=limits) as router,
        pymongo.MongoClient[dict[str, Any]](router.uri) as client,
    ):
        assert client.admin.command("ping")["ok"] == 1
        with pytest.raises(OperationFailure) as raised:
            client.life.watch()
        assert raised.value.has_error_label("ResumableChangeStreamError")
        assert any("trying on" in line["msg"] for line in router.logs())
        with forwarder(port, (host, int(config_port))):

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


def test_a_settings_file_suffices_to_start(cluster: TestCluster, tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(
        f"sharding:\n  configDB: {cluster.configdb}\nnet:\n  port: 0\n"
        f"upstream: {cluster.mongos_uri}\nsetParameter:\n  maxCursors: 3\n"
    )
    with (
        RouterProcess(["--config", str(file)]) as router,
        pymongo.MongoClient[dict[str, Any]](router.uri) as client,
    ):
        options = client.admin.command("getCmdLineOpts")["parsed"]
        assert options["sharding"]["configDB"] == cluster.configdb
        assert client.admin.command({"getParameter": 1, "maxCursors": 1})["maxCursors"] == 3
        assert client.admin.command("listShards")["shards"]

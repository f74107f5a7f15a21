"""The router's lifecycle: unreachable clusters, restarts, shutdown, clients that disconnect."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure, PyMongoError

from tests.harness.clusters import TestCluster
from tests.harness.ports import free_port
from tests.harness.routers import RouterProcess, run_router, start_router
from tests.harness.until import PATIENCE, wait_for

BOUND = 20.0
"""Seconds in which a router must end on a busy machine; its clients' getMores wait for a minute."""


def open_cursors(client: pymongo.MongoClient[dict[str, Any]]) -> int:
    status = client.admin.command("serverStatus")
    return int(status["metrics"]["cursor"]["open"]["total"])


def get_mores(client: pymongo.MongoClient[dict[str, Any]]) -> int:
    return int(client.admin.command("serverStatus")["opcounters"]["getmore"])


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


def test_sigterm_ends_a_router_with_open_streams_in_bounded_time(cluster: TestCluster) -> None:
    drain = {"mongosShutdownTimeoutMillisForSignaledShutdown": 300}
    router = start_router(cluster.configdb, cluster.mongos_uri, feed=True, set_parameter=drain)
    feed = socket.create_connection(("127.0.0.1", router.feed_port or 0))
    with pymongo.MongoClient[dict[str, Any]](
        router.uri, retryReads=False, serverSelectionTimeoutMS=500
    ) as client:
        stream = client.life.watch(max_await_time_ms=60_000)
        failed: list[PyMongoError] = []

        def wait() -> None:
            try:
                stream.next()
            except PyMongoError as error:
                failed.append(error)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        wait_for(lambda: open_cursors(client) == 2, "both cursors")
        begun = time.monotonic()
        assert router.stop() == 0
        assert time.monotonic() - begun < BOUND
        assert feed.recv(1) == b""
        feed.close()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", router.port)) != 0
    messages = [line["msg"] for line in router.logs()]
    assert messages[-1] == "Shut down"
    assert not [line for line in router.logs() if line.get("s") in ("E", "F")]


def test_a_client_killed_during_a_get_more_leaves_no_cursor(cluster: TestCluster) -> None:
    program = (
        "import pymongo, sys\n"
        "stream = pymongo.MongoClient(sys.argv[1]).life.watch(max_await_time_ms=60000)\n"
        "print('open', flush=True)\n"
        "stream.next()\n"
    )
    with (
        start_router(cluster.configdb, cluster.mongos_uri) as router,
        pymongo.MongoClient[dict[str, Any]](router.uri) as client,
    ):
        before = get_mores(client)
        victim = subprocess.Popen(
            [sys.executable, "-c", program, router.uri], stdout=subprocess.PIPE, text=True
        )
        assert victim.stdout is not None
        assert victim.stdout.readline() == "open\n"
        wait_for(lambda: get_mores(client) > before, "the getMore")
        victim.kill()
        victim.wait()
        wait_for(lambda: open_cursors(client) == 0, "the cursor to be freed")


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


def test_the_start_fails_if_the_port_is_in_use(cluster: TestCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finished = run_router("--configdb", cluster.configdb, "--port", str(port))
    assert finished.returncode == 48
    assert "in use" in finished.stdout
    assert "Traceback" not in finished.stderr


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

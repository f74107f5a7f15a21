"""Several workers on one port appear to drivers as one server, even if a worker dies."""

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64, json_util
from pymongo.errors import AutoReconnect, PyMongoError

from tests.harness.clusters import Client, TestCluster
from tests.harness.raw_client import RawClient, get_more_in_flight
from tests.harness.routers import RouterProcess, start_router
from tests.harness.until import PATIENCE, wait_for

WATCH: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}


@pytest.fixture(scope="module")
def router(cluster: TestCluster) -> Iterator[RouterProcess]:
    with start_router(cluster.configdb, cluster.mongos_uri, workers=2, feed=True) as started:
        yield started


@pytest.fixture
def client(router: RouterProcess) -> Iterator[Client]:
    with Client(router.uri) as connected:
        yield connected


def workers(client: Client) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = client.admin.command("serverStatus")["mergerouter"]["workers"]
    return listed


def answering(router: RouterProcess, seconds: float) -> set[int]:
    """Return the workers that a new client sees; none if it is not answered within ``seconds``."""
    limits = ("serverSelectionTimeoutMS", "connectTimeoutMS", "socketTimeoutMS")
    try:
        with Client(router.uri, **{limit: int(seconds * 1000) for limit in limits}) as client:
            return {each["worker"] for each in workers(client)}
    except PyMongoError:
        return set()


def messages(router: RouterProcess, text: str) -> list[dict[str, Any]]:
    return [line for line in router.logs() if line["msg"] == text]


def test_the_router_logs_once_that_it_is_ready(router: RouterProcess) -> None:
    (ready,) = messages(router, "Waiting for connections")
    assert ready["attr"]["port"] == router.port
    assert len(set(ready["attr"]["workers"])) == 2
    assert {line["ctx"] for line in router.logs()} >= {"main", "worker1", "worker2"}


def test_get_log_returns_the_lines_of_all_workers(client: Client) -> None:
    lines = [json.loads(line) for line in client.admin.command("getLog", "global")["log"]]
    assert {line["ctx"] for line in lines} == {"worker1", "worker2"}
    times = [line["t"]["$date"] for line in lines]
    assert times == sorted(times)


def test_streams_of_many_clients_are_spread_over_the_workers(
    cluster: TestCluster, router: RouterProcess, client: Client
) -> None:
    watchers = [Client(router.uri) for _ in range(8)]
    streams = [each.many.c.watch(max_await_time_ms=500) for each in watchers]
    try:
        spread = [each["cursors"] for each in workers(client)]
        assert sum(spread) == 8
        listed = client.admin.command("serverStatus")["mergerouter"]["streams"]
        assert sorted({stream["worker"] for stream in listed}) == [1, 2]
        assert min(spread) >= 2
        client.many.c.insert_many([{"_id": number} for number in range(100)])
        for stream in streams:
            seen = [next(stream)["documentKey"]["_id"] for _ in range(100)]
            assert seen == list(range(100))
    finally:
        for stream, each in zip(streams, watchers, strict=True):
            stream.close()
            each.close()
    wait_for(lambda: not any(each["cursors"] for each in workers(client)), "the cursors to go")


async def on_both(router: RouterProcess) -> tuple[RawClient, RawClient]:
    """Return one connection to each worker, identified by the ids of its cursors."""
    found: dict[int, RawClient] = {}
    while len(found) < 2:
        client = await RawClient.connect(router.port)
        cursor_id = (await client.command("cross", WATCH))["cursor"]["id"]
        worker = cursor_id >> 40 & 0xFF
        if worker in found:
            client.writer.close()
        else:
            found[worker] = client
    return found[1], found[2]


async def test_cursors_sessions_and_kills_work_across_workers(router: RouterProcess) -> None:
    one, two = await on_both(router)
    async with one, two:
        hellos = [await each.command("admin", {"hello": 1}) for each in (one, two)]
        assert hellos[0]["topologyVersion"] == hellos[1]["topologyVersion"]
        assert hellos[0]["connectionId"] != hellos[1]["connectionId"]

        async def passed_on() -> int:
            status = await one.command("admin", {"serverStatus": 1})
            return sum(each["passedOn"] for each in status["mergerouter"]["workers"])

        before = await passed_on()
        mine = {"lsid": {"id": Binary(b"m" * 16, 4)}}
        cursor_id = (await one.command("cross", {**WATCH, **mine}))["cursor"]["id"]
        get_more = {"getMore": cursor_id, "collection": "c", "maxTimeMS": 10}
        for unusual in ({}, {"term": Int64(1)}):  # which only the upstream can check
            assert (await two.command("cross", {**get_more, **mine, **unusual}))["ok"] == 1
        assert await passed_on() == before + 2
        assert (await two.command("cross", get_more))["code"] == 50800
        await two.command("admin", {"endSessions": [mine["lsid"]]})
        assert (await one.command("cross", {**get_more, **mine}))["code"] == 43
        ids = [(await each.command("cross", WATCH))["cursor"]["id"] for each in (one, two)]
        answer = await get_more_in_flight(one, two, "cross", ids[1])
        killed = await two.command("cross", {"killCursors": "c", "cursors": [*ids, Int64(5)]})
        assert sorted(killed["cursorsKilled"]) == sorted(ids)
        assert killed["cursorsNotFound"] == [5]
        assert (await answer)["code"] == 237


def test_all_workers_serve_the_feed(router: RouterProcess, client: Client) -> None:
    """Each feed starts at a time before the insert, so that it may be opened after it."""
    start = client.admin.command("ping")["$clusterTime"]["clusterTime"]
    asked = json_util.dumps({"database": "fed", "startAtOperationTime": start})
    feeds = [socket.create_connection(("127.0.0.1", router.feed_port or 0)) for _ in range(4)]
    with ExitStack() as owned:
        for feed in feeds:
            owned.enter_context(feed).settimeout(PATIENCE)
            feed.sendall(asked.encode() + b"\n")
        client.fed.c.insert_one({"_id": 1})
        for feed in feeds:
            lines = owned.enter_context(feed.makefile())
            assert json.loads(lines.readline())["operationType"] == "insert"
        assert all(each["cursors"] for each in workers(client))


def test_a_killed_worker_restarts_and_its_watchers_resume(cluster: TestCluster) -> None:
    with (
        start_router(cluster.configdb, cluster.mongos_uri, workers=2) as router,
        Client(router.uri, retryWrites=True) as client,
    ):
        watching = [Client(router.uri) for _ in range(4)]
        streams = [each.dies.c.watch(max_await_time_ms=200) for each in watching]
        client.dies.c.insert_many([{"_id": number} for number in range(50)])
        seen = [[next(stream)["documentKey"]["_id"] for _ in range(20)] for stream in streams]
        client.admin.command({"setParameter": 1, "logLevel": 1})
        victim = next(each for each in workers(client) if each["cursors"])
        os.kill(victim["pid"], signal.SIGKILL)
        with Client(cluster.mongos_uri) as direct:
            direct.dies.c.insert_many([{"_id": number} for number in range(50, 100)])
        for number, stream in enumerate(streams):
            while len(seen[number]) < 100:
                seen[number].append(next(stream)["documentKey"]["_id"])
        assert seen == [list(range(100))] * 4
        wait_for(lambda: len(messages(router, "A worker is ready")) == 3, "the new worker")
        (ended,) = messages(router, "A worker has ended; restarting it")
        assert ended["attr"]["worker"] == victim["worker"]
        assert ended["attr"]["status"] == -signal.SIGKILL
        with suppress(AutoReconnect):
            client.admin.command("ping")  # its connection may be the killed worker's
        wait_for(lambda: len(workers(client)) == 2, "both workers")
        assert victim["pid"] not in [each["pid"] for each in workers(client)]
        fresh = [Client(router.uri) for _ in range(4)]
        for each in fresh:
            assert each.admin.command("hello")["topologyVersion"]["counter"] == 1
            assert each.admin.command({"getParameter": 1, "logLevel": 1})["logLevel"] == 1
        for each in (*watching, *fresh):
            each.close()


def test_sigterm_ends_all_workers_in_bounded_time(cluster: TestCluster) -> None:
    drain = {"mongosShutdownTimeoutMillisForSignaledShutdown": 300}
    router = start_router(cluster.configdb, workers=3, feed=True, set_parameter=drain)
    feed = socket.create_connection(("127.0.0.1", router.feed_port or 0))
    failed: list[PyMongoError] = []
    threads: list[threading.Thread] = []
    clients = [
        Client(router.uri, retryReads=False, serverSelectionTimeoutMS=5000) for _ in range(4)
    ]

    def wait(client: Client) -> None:
        try:
            with client.life.watch(max_await_time_ms=60_000) as stream:
                stream.next()
        except PyMongoError as error:
            failed.append(error)

    for client in clients:
        threads.append(threading.Thread(target=wait, args=(client,), daemon=True))
        threads[-1].start()
    wait_for(lambda: sum(each["cursors"] for each in workers(clients[0])) == 5, "all streams")
    pids = [each["pid"] for each in workers(clients[0])]
    # A service manager signals every process; the workers leave the shutdown to the parent.
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    assert router.stop(PATIENCE) == 0
    for thread in threads:
        thread.join(PATIENCE)
    assert len(failed) == 4
    assert feed.recv(1) == b""
    feed.close()
    for client in clients:
        client.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert router.logs()[-1]["msg"] == "Shut down"
    assert not [line for line in router.logs() if line.get("s") in ("E", "F")]


def test_workers_end_when_the_parent_is_killed(cluster: TestCluster) -> None:
    with start_router(cluster.configdb, workers=2) as router:
        with Client(router.uri) as client:
            pids = [each["pid"] for each in workers(client)]
        router.process.kill()
        router.process.wait(PATIENCE)
        wait_for(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the workers to end"
        )


def test_a_hanging_worker_does_not_delay_other_clients(cluster: TestCluster) -> None:
    drain = {"mongosShutdownTimeoutMillisForSignaledShutdown": 300}
    router = start_router(cluster.configdb, workers=2, set_parameter=drain)
    with Client(router.uri) as client:
        pids = {each["worker"]: each["pid"] for each in workers(client)}
    os.kill(pids[1], signal.SIGSTOP)
    try:
        # The hanging worker gets connections until it is known to hang.
        wait_for(lambda: answering(router, 5.0) == {2}, "the other worker's replies")
        assert {worker for _ in range(4) for worker in answering(router, PATIENCE)} == {2}
        assert router.stop(PATIENCE) == 0
        assert messages(router, "A worker hangs; killing it")
    finally:
        if Path(f"/proc/{pids[1]}").exists():
            os.kill(pids[1], signal.SIGKILL)
        router.stop()

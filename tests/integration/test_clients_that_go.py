"""Clients that disconnect, fall silent or stop reading, and the router's shutdown."""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from bson import Int64
from pymongo.errors import PyMongoError

from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess, start_router
from tests.harness.until import PATIENCE, wait_for
from tests.soak import PARAMETERS, Soak

_MIB = 1024 * 1024
BUDGET = 2 * _MIB
STATUS = {"serverStatus": 1}
LIMITS: dict[str, int] = {
    **PARAMETERS,
    "remoteBufferBytes": BUDGET,
    "streamBufferBytes": BUDGET,
    "batchTargetBytes": BUDGET // 8,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with start_cluster(2) as running:
        yield running


@pytest.fixture(scope="module")
def router(cluster: TestCluster) -> Iterator[RouterProcess]:
    with start_router(
        cluster.configdb, cluster.mongos_uri, feed=True, set_parameter=LIMITS
    ) as running:
        yield running


def test_disconnected_clients_leave_nothing_behind(
    cluster: TestCluster, router: RouterProcess
) -> None:
    """``python -m tests.soak`` does the same with 10,000 clients."""
    soak = Soak(cluster, router)
    asyncio.run(soak.round(60))
    wait_for(lambda: not soak.holdings().cursors, "idle cursors to end")
    wait_for(lambda: not soak.holdings().shard_cursors, "their remotes to end")
    before = soak.holdings()
    asyncio.run(soak.round(240, seed=1))
    assert len(soak.made) == 15
    assert soak.settled(before) == {}
    soak.close()


def test_a_stream_closed_while_a_shard_hangs_leaves_no_cursor(
    cluster: TestCluster, router: RouterProcess
) -> None:
    soak = Soak(cluster, router)
    shard = next(iter(cluster.shards))
    client: Client
    with (
        pymongo.MongoClient(router.uri) as client,
        client.life.watch(max_await_time_ms=100) as stream,
    ):
        stream.try_next()
        wait_for(lambda: soak.holdings().shard_cursors >= 3, "the stream's remotes")
        cluster.hang_member(shard)
        try:
            stream.close()
            # The router closes its remotes after the reply to killCursors.
            wait_for(lambda: "cursors left on a member" in messages(router), "the failed kill")
        finally:
            cluster.wake_member(shard)
    wait_for(lambda: not soak.holdings().shard_cursors, "the kill once the shard answers")
    soak.close()


def messages(router: RouterProcess) -> set[str]:
    return {line["msg"] for line in router.logs()}


def test_keepalive_probes_silent_clients(router: RouterProcess) -> None:
    """The kernel sends the keepalive probes; /proc/net/tcp shows that the timer runs."""
    table = Path("/proc/net/tcp")
    if not table.exists():
        pytest.skip("needs Linux's table of connections")

    def timer(near: int, far: int) -> str:
        """Return the kind of the connection's active timer, as in /proc/net/tcp."""
        for row in table.read_text().splitlines():
            fields = row.split()
            if fields[1].endswith(f":{near:04X}") and fields[2].endswith(f":{far:04X}"):
                return fields[5].partition(":")[0]
        return ""

    assert router.feed_port is not None
    for port in (router.port, router.feed_port):
        with socket.create_connection(("127.0.0.1", port)) as silent:
            own_port = silent.getsockname()[1]
            wait_for(lambda: timer(port, own_port) == "02", "the timer of probes")  # noqa: B023


def test_a_client_that_stops_reading_blocks_only_its_own_stream(
    cluster: TestCluster, router: RouterProcess
) -> None:
    client: Client
    with pymongo.MongoClient(cluster.mongos_uri) as client:
        client.stopped.create_collection("c")
    soak = Soak(cluster, router)
    write_and_watch(router, 0)
    before = soak.resident_kib

    async def run() -> None:
        async with await RawClient.connect(router.port) as deaf:
            # A small receive buffer, so that the router has to keep the replies.
            deaf.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
            )
            deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
            watch = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
            async with await RawClient.connect(router.port) as opener:
                cursor_id = (await opener.command("stopped", watch))["cursor"]["id"]
            for _ in range(40):
                deaf.send("stopped", {"getMore": cursor_id, "collection": "c", "batchSize": 50})
            await asyncio.to_thread(write_and_watch, router, 1500)
            grown = (soak.resident_kib - before) * 1024
            # Of 30 MB, the stopped stream keeps its budget and one reply that is being sent.
            assert grown < 10 * _MIB, f"{grown / _MIB:.1f} MiB"

    asyncio.run(run())
    wait_for(lambda: not soak.holdings().cursors, "the abandoned cursor to end")
    wait_for(lambda: not soak.holdings().shard_cursors, "its remotes to end")
    soak.close()


def write_and_watch(router: RouterProcess, first: int) -> None:
    """Write 30 MB through the router and check that all events arrive."""
    client: Client
    filler = "x" * 20_000
    with (
        pymongo.MongoClient(router.uri) as client,
        client.stopped.c.watch(max_await_time_ms=500) as stream,
    ):
        for start in range(first, first + 1500, 100):
            numbers = range(start, start + 100)
            client.stopped.c.insert_many([{"_id": n, "filler": filler} for n in numbers])
        seen = [stream.next()["documentKey"]["_id"] for _ in range(1500)]
    assert seen == list(range(first, first + 1500))


async def test_errors_at_shutdown_make_drivers_resume_elsewhere(cluster: TestCluster) -> None:
    """A getMore in flight is answered; new commands fail, change streams with the label."""
    direct = [cluster.direct(name) for name in [*cluster.shards, "config"]]

    def open_cursors() -> int:
        statuses = [client.admin.command("serverStatus") for client in direct]
        return sum(status["metrics"]["cursor"]["open"]["total"] for status in statuses)

    # Cursors that could not be killed while their member was stopped.
    before = open_cursors()
    drain = {"mongosShutdownTimeoutMillisForSignaledShutdown": 6000}
    watch = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}}
    router = await asyncio.to_thread(
        start_router, cluster.configdb, cluster.mongos_uri, set_parameter=drain
    )
    async with (
        await RawClient.connect(router.port) as waiting,
        await RawClient.connect(router.port) as later,
        await RawClient.connect(router.port) as longer,
    ):
        ids = [(await each.command("ending", watch))["cursor"]["id"] for each in (waiting, longer)]
        waiting.send("ending", _get_more(ids[0], 4000))
        longer.send("ending", _get_more(ids[1], 60_000))
        async with asyncio.timeout(PATIENCE):
            while (await later.command("admin", STATUS))["opcounters"]["getmore"] < 2:
                pass
            os.kill(router.process.pid, signal.SIGTERM)
            while (await later.command("admin", {"ping": 1}))["ok"]:
                pass
        refused = await later.command("ending", watch)
        assert (refused["code"], refused["codeName"]) == (91, "ShutdownInProgress")
        assert refused["errorLabels"] == ["ResumableChangeStreamError"]
        assert (await later.command("admin", {"ping": 1}))["code"] == 91
        answered = await waiting.receive()
        assert (answered["ok"], answered["cursor"]["nextBatch"]) == (1, [])
        interrupted = await longer.receive()
        assert (interrupted["code"], interrupted["ok"]) == (11600, 0)
        assert interrupted["errorLabels"] == ["ResumableChangeStreamError"]
        assert await longer.closed()
    assert await asyncio.to_thread(router.process.wait, 20) == 0
    await asyncio.to_thread(
        wait_for, lambda: open_cursors() <= before, "all cursors of the router to be killed"
    )
    for client in direct:
        client.close()


def test_the_router_ends_in_bounded_time_when_all_members_hang(cluster: TestCluster) -> None:
    drain = {"mongosShutdownTimeoutMillisForSignaledShutdown": 300}
    client: Client
    with (
        start_router(cluster.configdb, cluster.mongos_uri, set_parameter=drain) as router,
        pymongo.MongoClient(router.uri, serverSelectionTimeoutMS=500) as client,
    ):
        stream = client.hanging.watch(max_await_time_ms=60_000)
        failures: list[PyMongoError] = []

        def wait() -> None:
            try:
                stream.next()
            except PyMongoError as error:
                failures.append(error)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        members = [*cluster.shards, "config"]
        for member in members:
            cluster.hang_member(member)
        try:
            begun = time.monotonic()
            os.kill(router.process.pid, signal.SIGTERM)
            assert router.process.wait(PATIENCE) == 0
            assert time.monotonic() - begun < 20
        finally:
            for member in members:
                cluster.wake_member(member)
        waiting.join(PATIENCE)
        assert failures, "the driver reports that it could not resume"


def _get_more(cursor_id: Int64, milliseconds: int) -> dict[str, Any]:
    return {"getMore": cursor_id, "collection": "c", "maxTimeMS": milliseconds}

"""Clients that disconnect, fall silent or stop reading, and the router's shutdown."""

import asyncio
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Int64
from pymongo.errors import PyMongoError

from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess, start_router
from tests.harness.until import PATIENCE, wait_for
from tests.soak import AT_ONCE, PARAMETERS, Soak

_MIB = 1024 * 1024
BUDGET = 2 * _MIB
STATUS = {"serverStatus": 1}
CLIENTS, MOST_IN_A_ROUND = int(os.environ.get("MERGEROUTER_SOAK", "120")), 1000
MOST_GROWTH_KIB = 50 * 1024
"""Resident memory that a router may have more than before once all clients have left."""
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


@pytest.mark.timeout(300 + CLIENTS)
def test_disconnected_clients_leave_nothing_behind(
    cluster: TestCluster, router: RouterProcess
) -> None:
    """``make soak`` does the same with 10,000 clients."""
    soak = Soak(cluster, router)
    asyncio.run(soak.round(AT_ONCE))
    wait_for(lambda: not soak.holdings().cursors, "idle cursors to end")
    wait_for(lambda: not soak.holdings().shard_cursors, "their remotes to end")
    before, memory = soak.holdings(), soak.resident_kib
    for seed, first in enumerate(range(0, CLIENTS, MOST_IN_A_ROUND), start=1):
        asyncio.run(soak.round(min(CLIENTS - first, MOST_IN_A_ROUND), seed))
        assert soak.settled(before) == {}
        assert soak.resident_kib - memory < MOST_GROWTH_KIB
    assert len(soak.made) == 16
    soak.close()


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
            # Its close resets the connection: after a plain one, which may be the end of a client's
            # input alone, the feed would read its stream for a minute more.
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            own_port = silent.getsockname()[1]
            wait_for(lambda: timer(port, own_port) == "02", "the timer of probes")  # noqa: B023


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
    with (
        start_router(cluster.configdb, cluster.mongos_uri, set_parameter=drain) as router,
        Client(router.uri, serverSelectionTimeoutMS=500) as client,
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
            os.kill(router.process.pid, signal.SIGTERM)
            assert router.process.wait(PATIENCE) == 0
        finally:
            for member in members:
                cluster.wake_member(member)
        waiting.join(PATIENCE)
        assert failures, "the driver reports that it could not resume"


def _get_more(cursor_id: Int64, milliseconds: int) -> dict[str, Any]:
    return {"getMore": cursor_id, "collection": "c", "maxTimeMS": milliseconds}

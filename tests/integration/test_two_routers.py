"""Two routers in one connection string serve a driver's pool as two mongoses do."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from pymongo.change_stream import ChangeStream

from tests.harness.clusters import Client, TestCluster, shard
from tests.harness.ports import free_port
from tests.harness.routers import RouterProcess, start_router
from tests.harness.until import PATIENCE, wait_for

LAST = -1
Routers = dict[int, RouterProcess]
"""Two routers by their ports, which stay the same."""


def started(cluster: TestCluster, port: int) -> RouterProcess:
    drain = {"mongosShutdownTimeoutMillisForSignaledShutdown": 500}
    return start_router(cluster.configdb, cluster.mongos_uri, port=port, set_parameter=drain)


@pytest.fixture(scope="module")
def pair(cluster: TestCluster) -> Iterator[Routers]:
    with Client(cluster.mongos_uri) as client:
        shard(client, "pair.c", {"region": 1}, "shard0", {"m": "shard1"})
    routers = {port: started(cluster, port) for port in (free_port(), free_port())}
    try:
        yield routers
    finally:
        for router in routers.values():
            router.stop()


@pytest.fixture
def client(pair: Routers) -> Iterator[Client]:
    hosts = ",".join(f"127.0.0.1:{port}" for port in pair)
    # Before pymongo resumes, it tries for that long to kill the cursor on the ended server.
    options = "heartbeatFrequencyMS=500&serverSelectionTimeoutMS=3000"
    with Client(f"mongodb://{hosts}/?{options}") as connected:
        wait_for(lambda: len(connected.nodes) == 2, "both routers")
        yield connected


def test_restarts_of_one_router_after_the_other_lose_nothing(
    cluster: TestCluster, pair: Routers, client: Client
) -> None:
    watches: list[Callable[[], ChangeStream[dict[str, Any]]]] = [
        client.watch,
        client.pair.watch,
        client.pair.c.watch,
        lambda: client.pair.c.watch([{"$match": {"operationType": "insert"}}]),
    ]
    opened = threading.Barrier(len(watches) + 1)
    stop = threading.Event()

    def watch(opening: Callable[[], ChangeStream[dict[str, Any]]]) -> list[dict[str, Any]]:
        seen = []
        with opening() as stream:
            opened.wait(PATIENCE)
            for event in stream:
                if event["ns"] == {"db": "pair", "coll": "c"}:
                    seen.append(dict(event))
                    if event["documentKey"]["_id"] == LAST:
                        break
        return seen

    def write() -> int:
        number = 0
        while not stop.wait(0.005):
            client.pair.c.insert_one({"_id": number, "region": "az"[number % 2]})
            number += 1
        client.pair.c.insert_one({"_id": LAST, "region": "a"})
        return number

    with ThreadPoolExecutor(len(watches) + 1) as threads:
        watching = [threads.submit(watch, opening) for opening in watches]
        opened.wait(PATIENCE)
        writing: Future[int] = threads.submit(write)
        try:
            for port, how in zip(list(pair), (signal.SIGTERM, signal.SIGKILL), strict=True):
                os.kill(pair[port].process.pid, how)
                pair[port].process.wait(PATIENCE)
                pair[port] = started(cluster, port)
        finally:
            stop.set()
        written = writing.result(PATIENCE)
        whole, *others = [future.result(2 * PATIENCE) for future in watching]
    assert written > 20
    ids = [event["documentKey"]["_id"] for event in whole]
    assert sorted(ids) == [LAST, *range(written)]
    tokens = [event["_id"]["_data"] for event in whole]
    assert tokens == sorted(tokens)
    for each in others:
        assert [event["_id"] for event in each] == [event["_id"] for event in whole]

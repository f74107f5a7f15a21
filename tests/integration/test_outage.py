"""A driver's change streams outlast a shard that is away for longer than all time limits."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pymongo
import pytest

from tests.harness.admin import get
from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.harness.routers import RouterProcess, start_router
from tests.harness.until import wait_for

LIMITS = {
    "failureTimeoutMs": 300,
    "openTimeoutMs": 1000,
    "connectTimeoutMs": 500,
    "replyTimeoutMs": 500,
}
LAST = "the last document"

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with start_cluster(2) as running:
        yield running


class Watcher:
    """Iterates over a driver's change stream until the last document, as an application does."""

    def __init__(self, router: RouterProcess, *stages: Any) -> None:
        self.client: Client = pymongo.MongoClient(router.uri)
        self.stream = self.client.shop.orders.watch(list(stages), max_await_time_ms=100)

    def run(self) -> list[Any]:
        found: list[Any] = []
        with self.client, self.stream as stream:
            while LAST not in found:
                found.append(next(stream)["documentKey"]["_id"])
        return found


def start(cluster: TestCluster, port: int = 0) -> RouterProcess:
    """Start a router with short time limits."""
    return start_router(
        cluster.configdb, cluster.mongos_uri, port=port, set_parameter=LIMITS, admin_port=0
    )


def outage(router: RouterProcess) -> int:
    """Return the milliseconds for which both streams have lacked a shard."""
    client: Client
    with pymongo.MongoClient(router.uri) as client:
        streams = client.admin.command("serverStatus")["mergerouter"]["streams"]
    failing = [
        max(int(remote.get("failingMillis", 0)) for remote in stream["remotes"])
        for stream in streams
    ]
    return min(failing) if len(failing) == 2 else 0


@pytest.mark.parametrize("fault", ["stopped", "hanging"])
def test_watchers_outlast_a_shard_s_outage(cluster: TestCluster, fault: str) -> None:
    """The router is started again meanwhile, so that the drivers resume."""
    with (
        pymongo.MongoClient(cluster.mongos_uri) as client,
        ThreadPoolExecutor() as pool,
        ExitStack() as owned,
    ):
        orders = client.shop.orders
        orders.drop()
        orders.insert_one({"_id": "before"})
        primary = client.config.databases.find_one({"_id": "shop"})["primary"]
        shards = [shard["_id"] for shard in client.admin.command("listShards")["shards"]]
        away = next(shard for shard in shards if shard != primary)
        router = owned.enter_context(start(cluster))
        watchers = [Watcher(router), Watcher(router, {"$addFields": {"own": 1}})]
        running = [pool.submit(watcher.run) for watcher in watchers]
        (cluster.stop_member if fault == "stopped" else cluster.hang_member)(away)
        try:
            orders.insert_one({"_id": "during"})
            wait_for(lambda: outage(router) > 3 * LIMITS["failureTimeoutMs"], "the outage")
            failures = [line for line in router.logs() if line["msg"] == "remote cursor failed"]
            assert 1 <= len(failures) <= 4, "an outage is logged once for each cursor"
            os.kill(router.process.pid, signal.SIGKILL)
            router.process.wait()
            router = owned.enter_context(start(cluster, router.port))
            wait_for(lambda: outage(router) > 3 * LIMITS["failureTimeoutMs"], "the resumption")
            wait_for(lambda: away in get(router.admin_port, "/readyz").text, "readiness")
            assert not any(each.done() for each in running)
        finally:
            (cluster.start_member if fault == "stopped" else cluster.wake_member)(away)
            orders.insert_one({"_id": LAST})
        assert [each.result(60) for each in running] == [["during", LAST]] * 2

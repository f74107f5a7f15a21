"""Watchers lose, repeat and reorder no event while members, shards and the router fail."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pymongo
import pytest
from pymongo.errors import DuplicateKeyError, PyMongoError

from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.harness.routers import RouterProcess, start_router

REGIONS = "ahz"
LAST = "the last document"
FASTER = {"replyTimeoutMs": 500, "connectTimeoutMs": 1000}
"""Parameters with which the router notices a hanging member within a test's time."""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with start_cluster(3) as running:
        client: Client
        with pymongo.MongoClient(running.mongos_uri) as client:
            client.admin.command("enableSharding", "shop", primaryShard="shard0")
            client.admin.command("shardCollection", "shop.orders", key={"region": 1})
            for at, shard in (("h", "shard1"), ("p", "shard2")):
                client.admin.command("split", "shop.orders", middle={"region": at})
                client.admin.command("moveChunk", "shop.orders", find={"region": at}, to=shard)
        yield running


class Writer:
    """Inserts numbered documents on all shards, and retries each until it is acknowledged."""

    def __init__(self, cluster: TestCluster) -> None:
        self.written: list[Any] = []
        self._client: Client = pymongo.MongoClient(cluster.mongos_uri)
        self._stop = threading.Event()

    def run(self) -> None:
        chance, number = random.Random(1), 0
        with self._client:
            while not self._stop.wait(0.002):
                number += 1
                self._write({"_id": number, "region": chance.choice(REGIONS)})
            self._write({"_id": LAST, "region": "a"})

    def stop(self) -> None:
        self._stop.set()

    def _write(self, document: dict[str, Any]) -> None:
        while True:
            try:
                self._client.shop.orders.insert_one(document)
            except DuplicateKeyError:
                break  # an earlier attempt succeeded, but its reply was lost
            except PyMongoError:
                time.sleep(0.05)
                continue
            break
        self.written.append(document["_id"])


class Watcher:
    """Watches until the last document, and resumes after every ``patience`` tries if given."""

    def __init__(self, router: RouterProcess, patience: int | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self._client: Client = pymongo.MongoClient(router.uri)
        self._patience = patience
        self._token: Any = None
        self._opened = threading.Event()

    def run(self) -> None:
        with self._client:
            while not (self.events and self.events[-1]["documentKey"]["_id"] == LAST):
                with self._client.shop.orders.watch(
                    resume_after=self._token, max_await_time_ms=200
                ) as stream:
                    self._token = self._token or stream.resume_token
                    self._opened.set()
                    self._read(stream)

    def wait_open(self) -> None:
        assert self._opened.wait(30)

    def _read(self, stream: Any) -> None:
        left = self._patience or 10**9
        while left and stream.alive:
            event = stream.try_next()
            # The token advances without events too, and the next stream resumes from it.
            self._token = stream.resume_token
            left -= 1
            if event is not None:
                self.events.append(event)
                if event["documentKey"]["_id"] == LAST:
                    return


class Faults:
    """Injects faults into the cluster and the router, one after the other, under load."""

    def __init__(
        self, cluster: TestCluster, router: RouterProcess, caught_up: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self.router = router
        self._caught_up = caught_up
        self._added = ""

    def run(self) -> None:
        cluster = self._cluster
        for fault in (
            lambda: self._stop_for("shard0", 0.3),
            lambda: cluster.step_down("shard1", 0.3),
            lambda: cluster.kill_cursors("shard2"),
            lambda: self._hang_for("shard2", 0.4),
            lambda: self._hang_for("shard0", 1.5),
            lambda: self._stop_for("config", 0.5),
            lambda: cluster.step_down("config", 0.3),
            lambda: self._hang_for("config", 1.5),
            self._add,
            self._kill_router,
            self._remove,
            self._add_while_config_is_away,
            self._remove_and_bring_back,
        ):
            self._inject(fault)

    def _inject(self, fault: Callable[[], object]) -> None:
        time.sleep(0.2)
        fault()

    def _stop_for(self, member: str, seconds: float) -> None:
        self._cluster.stop_member(member)
        time.sleep(seconds)
        self._cluster.start_member(member)

    def _hang_for(self, member: str, seconds: float) -> None:
        self._cluster.hang_member(member)
        time.sleep(seconds)
        self._cluster.wake_member(member)

    def _add(self) -> None:
        self._added, _host = self._cluster.add_shard()
        self._move(self._added)

    def _remove(self) -> None:
        """Drain a shard, remove it, and stop its server soon afterwards."""
        self._drain()
        self._cluster.remove_shard(self._added)
        time.sleep(0.5)
        self._cluster.stop_member(self._added)

    def _remove_and_bring_back(self) -> None:
        """Remove a shard and add one of the same name; embedded, it is also the same server."""
        self._drain()
        host = self._cluster.remove_shard(self._added)
        time.sleep(0.2)
        self._cluster.bring_back_shard(self._added, host)
        self._move(self._added)

    def _drain(self) -> None:
        """Move the chunk away and wait until no watcher can resume from the shard's own events."""
        self._move("shard2")
        self._caught_up()

    def _add_while_config_is_away(self) -> None:
        """Add a shard while the config server hangs; a real mongos could not add one then."""
        embedded = not self._cluster.real
        if embedded:
            self._cluster.hang_member("config")
        self._added, _host = self._cluster.add_shard()
        self._move(self._added)
        if embedded:
            time.sleep(0.3)
            self._cluster.wake_member("config")

    def _move(self, shard: str) -> None:
        client: Client
        with pymongo.MongoClient(self._cluster.mongos_uri) as client:
            client.admin.command("moveChunk", "shop.orders", find={"region": "p"}, to=shard)

    def _kill_router(self) -> None:
        port = self.router.port
        os.kill(self.router.process.pid, signal.SIGKILL)
        self.router.process.wait()
        self.router = start_router(
            self._cluster.configdb, self._cluster.mongos_uri, port=port, set_parameter=FASTER
        )


def test_every_event_arrives_once_in_order_under_faults(cluster: TestCluster) -> None:
    router = start_router(cluster.configdb, cluster.mongos_uri, set_parameter=FASTER)
    writer = Writer(cluster)
    watchers = [Watcher(router), Watcher(router, patience=40)]

    def caught_up() -> None:
        written = len(writer.written)
        deadline = time.monotonic() + 60
        while any(len(watcher.events) <= written for watcher in watchers):
            for ended in running:
                if ended.done():
                    ended.result()  # a watcher's error is more helpful than a timeout
            seen = [len(watcher.events) for watcher in watchers]
            assert time.monotonic() < deadline, f"{seen} events of {written} documents"
            time.sleep(0.02)

    faults = Faults(cluster, router, caught_up)
    running: list[Future[None]] = []
    try:
        with ThreadPoolExecutor() as pool:
            running += [pool.submit(watcher.run) for watcher in watchers]
            for watcher in watchers:
                watcher.wait_open()
            running.append(pool.submit(writer.run))
            try:
                faults.run()
            finally:
                writer.stop()
            for each in running:
                each.result(60)
    finally:
        faults.router.stop()
    assert len(writer.written) > 200
    for watcher in watchers:
        seen = [event["documentKey"]["_id"] for event in watcher.events]
        assert sorted(map(str, seen)) == sorted(map(str, writer.written))
        tokens = [event["_id"]["_data"] for event in watcher.events]
        assert tokens == sorted(set(tokens))

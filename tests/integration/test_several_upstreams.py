"""A router with two real mongoses: all connections and workers use one of them at a time."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest
from bson import Binary, Int64

from tests.harness.clusters import Client, start_real_cluster
from tests.harness.raw_client import RawClient
from tests.harness.real_cluster import RealCluster
from tests.harness.routers import RouterProcess, start_router

CONNECTIONS = 6


class Before(NamedTuple):
    """A cluster with two mongoses, and a router of two workers with both as its upstream."""

    cluster: RealCluster
    router: RouterProcess

    @property
    def names(self) -> list[str]:
        return list(self.cluster.mongoses)


@pytest.fixture(scope="module")
def before() -> Iterator[Before]:
    with start_real_cluster(1, mongoses=2) as cluster:
        upstream = "mongodb://" + ",".join(cluster.mongoses.values())
        router = start_router(cluster.configdb, upstream, workers=2)
        try:
            with Client(router.uri) as client:
                client.db.c.insert_many([{"_id": number} for number in range(100)])
            yield Before(cluster, router)
        finally:
            router.stop()


async def read_on_other_connections(router: RouterProcess) -> None:
    """Open a cursor on each of several connections and read it on all others."""
    async with AsyncExitStack() as owned:
        clients = [
            await owned.enter_async_context(await RawClient.connect(router.port))
            for _ in range(CONNECTIONS)
        ]
        for client in clients:
            reply = await client.command("db", {"find": "c", "batchSize": 2})
            for other in clients:
                command = {"getMore": reply["cursor"]["id"], "collection": "c", "batchSize": 2}
                batch = (await other.command("db", command))["cursor"]["nextBatch"]
                assert len(batch) == 2


async def test_a_pool_finds_its_cursors_after_either_mongos_fails(before: Before) -> None:
    first, second = before.names
    await read_on_other_connections(before.router)
    with Client(before.router.uri) as client:
        client.db.w.insert_one({"_id": 0})
        before.cluster.stop_mongos(first)
        for number in range(1, 20):  # the driver retries, and the application sees no error
            client.db.w.insert_one({"_id": number})
        await read_on_other_connections(before.router)
        before.cluster.start_mongos(first)
        await read_on_other_connections(before.router)
        with client.start_session() as session, session.start_transaction():
            client.db.w.insert_one({"_id": 20}, session=session)
            client.db.w.insert_one({"_id": 21}, session=session)
        before.cluster.stop_mongos(second)
        for number in range(22, 40):
            client.db.w.insert_one({"_id": number})
        before.cluster.start_mongos(second)
        assert client.db.w.count_documents({}) == 40


async def test_without_a_mongos_drivers_get_retriable_errors(before: Before) -> None:
    for name in before.names:
        before.cluster.stop_mongos(name)
    write: dict[str, Any] = {
        "insert": "w",
        "documents": [{"_id": 1000}],
        "lsid": {"id": Binary(b"1" * 16, 4)},
        "txnNumber": Int64(1),
    }
    async with await RawClient.connect(before.router.port) as client:
        reply = await client.command("db", write)
        for name in before.names:
            before.cluster.start_mongos(name)
        assert (reply["code"], reply["errorLabels"]) == (6, ["RetryableWriteError"])
        assert (await client.command("db", write))["n"] == 1

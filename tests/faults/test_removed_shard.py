"""Open streams notice a removed shard although no stream reports it, so it can be shut down."""

import time
from typing import Any

import pymongo

from tests.harness.cluster_base import Client
from tests.harness.clusters import start_real_cluster
from tests.harness.routers import RouterProcess, start_router

_SECONDS = 60.0


def test_a_removed_shard_is_noticed_before_its_data_is_dropped() -> None:
    client: Client
    with (
        start_real_cluster(1) as cluster,
        start_router(cluster.configdb, cluster.mongos_uri) as router,
        pymongo.MongoClient(cluster.mongos_uri) as client,
        pymongo.MongoClient(router.uri) as watching,
    ):
        admin, orders = client.admin, client.shop.orders
        admin.command("enableSharding", "shop", primaryShard="shard0")
        admin.command("shardCollection", "shop.orders", key={"region": 1})
        with watching.shop.orders.watch(max_await_time_ms=200) as stream:
            added, _host = cluster.add_shard()
            admin.command("moveChunk", "shop.orders", find={"region": 1}, to=added)
            orders.insert_one({"_id": 1, "region": 1})
            assert _next(stream)["documentKey"]["_id"] == 1
            assert added in _remotes(router)
            admin.command("moveChunk", "shop.orders", find={"region": 1}, to="shard0")
            cluster.remove_shard(added)
            deadline = time.monotonic() + _SECONDS
            while added in _remotes(router):
                assert time.monotonic() < deadline
                assert stream.try_next() is None
            removed = cluster.sets[added]
            with removed.client(added) as server:
                server.drop_database("shop")
            removed.kill(added)
            orders.insert_one({"_id": 2, "region": 1})
            assert _next(stream)["documentKey"]["_id"] == 2


def _next(stream: Any) -> dict[str, Any]:
    deadline = time.monotonic() + _SECONDS
    while (event := stream.try_next()) is None:
        assert time.monotonic() < deadline
    return dict(event)


def _remotes(router: RouterProcess) -> list[str]:
    client: Client
    with pymongo.MongoClient(router.uri) as client:
        [stream] = client.admin.command("serverStatus")["mergerouter"]["streams"]
        return [remote["target"] for remote in stream["remotes"]]

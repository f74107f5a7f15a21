"""Sharding, DDL and listings through the mongos; the same tests run on real servers."""

import threading
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.integration.embedded_mongos.orders import SHARDS, code_of, fill, ids_on, move


def test_a_migration_moves_the_chunk_s_documents(
    client: Client, cluster: TestCluster, orders: Any
) -> None:
    fill(orders)
    move(client, "a", "shard1")
    assert ids_on(cluster, "shard0") == []
    assert ids_on(cluster, "shard1") == [0, 1, 4, 5, 8, 9]
    assert sorted(d["_id"] for d in orders.find()) == list(range(12))
    orders.insert_one({"_id": 50, "region": "b"})
    assert 50 in ids_on(cluster, "shard1")
    with cluster.direct("shard1") as direct:
        assert "region_1__id_1" in direct.shop.orders.index_information()


def test_a_hashed_collection_is_spread_over_the_shards(
    client: Client, cluster: TestCluster
) -> None:
    client.admin.command("shardCollection", "hashes.c", key={"_id": "hashed"})
    client.hashes.c.insert_many([{"_id": i} for i in range(90)])
    counts = []
    for shard in SHARDS:
        with cluster.direct(shard) as direct:
            counts.append(direct.hashes.c.count_documents({}))
    assert sum(counts) == 90
    assert min(counts) > 10
    assert client.hashes.c.find_one({"_id": 42}) == {"_id": 42}
    client.drop_database("hashes")


def test_a_sharded_collection_can_be_renamed_and_dropped(client: Client, orders: Any) -> None:
    fill(orders)
    orders.rename("moved")
    assert client.shop.moved.count_documents({}) == 12
    assert client.shop.orders.count_documents({}) == 0
    client.shop.moved.insert_one({"_id": 99, "region": "z"})
    client.shop.moved.drop()
    assert client.shop.list_collection_names() == []
    assert (
        list(client.config.collections.find({"_id": {"$in": ["shop.orders", "shop.moved"]}})) == []
    )


def test_move_primary_moves_a_database(client: Client, cluster: TestCluster) -> None:
    client.admin.command("enableSharding", "moving", primaryShard="shard0")
    client.moving.c.insert_many([{"_id": i} for i in range(5)])
    client.moving.create_collection("v", viewOn="c", pipeline=[{"$match": {"_id": 3}}])
    client.admin.command("movePrimary", "moving", to="shard2")
    assert client.moving.c.count_documents({}) == 5
    assert list(client.moving.v.find()) == [{"_id": 3}]
    with cluster.direct("shard2") as direct:
        assert direct.moving.c.count_documents({}) == 5
    with cluster.direct("shard0") as direct:
        assert direct.moving.c.count_documents({}) == 0
    client.drop_database("moving")


def test_change_streams_are_refused(client: Client, cluster: TestCluster) -> None:
    if cluster.real:
        pytest.skip("a real mongos has change streams")
    with pytest.raises(OperationFailure, match="mergerouter") as error:
        client.shop.watch()
    assert code_of(error) == 59


def test_a_shard_can_be_added_and_removed() -> None:
    with start_cluster(2) as small:
        admin: Client
        with pymongo.MongoClient(small.mongos_uri) as admin:
            admin.admin.command("enableSharding", "shop", primaryShard="shard0")
            admin.admin.command("shardCollection", "shop.orders", key={"_id": 1})
            name, host = small.add_shard()
            assert admin.config.shards.find_one({"_id": name})["host"] == host
            admin.admin.command("split", "shop.orders", middle={"_id": 10})
            admin.admin.command("moveChunk", "shop.orders", find={"_id": 20}, to=name)
            admin.shop.orders.insert_many([{"_id": i} for i in range(20)])
            states = [admin.admin.command("removeShard", name)["state"]]
            for _ in range(600):
                states.append(admin.admin.command("removeShard", name)["state"])
                if states[-1] == "completed":
                    break
                threading.Event().wait(0.1)
            assert (states[0], states[-1]) == ("started", "completed")
            assert admin.config.shards.find_one({"_id": name}) is None
            assert admin.shop.orders.count_documents({}) == 20
            if not small.real:
                admin.admin.command("addShard", host, name=name)
                assert admin.config.shards.find_one({"_id": name})["host"] == host

"""Sharding, DDL and listings through the mongos; the same tests run on real servers."""

import threading
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.integration.embedded_mongos.orders import SHARDS, code_of, fill, ids_on, move


def test_hello_identifies_a_mongos(client: Client) -> None:
    hello = client.admin.command("hello")
    assert hello["msg"] == "isdbgrid"
    assert hello["isWritablePrimary"]
    assert client.topology_description.topology_type_name == "Sharded"


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


def test_indexes_are_created_on_every_shard(cluster: TestCluster, orders: Any) -> None:
    fill(orders)
    orders.create_index([("n", 1)], name="by_n")
    for shard in SHARDS:
        with cluster.direct(shard) as direct:
            assert "by_n" in direct.shop.orders.index_information()
    orders.drop_index("by_n")
    assert "by_n" not in orders.index_information()


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


def test_an_unsharded_collection_can_be_renamed_into_another_database(
    client: Client, orders: Any
) -> None:
    client.shop.plain.insert_one({"_id": 1})
    client.admin.command("enableSharding", "archive", primaryShard="shard0")
    client.admin.command("renameCollection", "shop.plain", to="archive.plain")
    assert client.archive.plain.count_documents({}) == 1
    assert client.shop.list_collection_names() == ["orders"]
    client.drop_database("archive")


def test_dropping_the_database_ends_its_streams(
    client: Client, cluster: TestCluster, orders: Any
) -> None:
    fill(orders)
    client.shop.plain.insert_one({"_id": 1})
    seen = {}
    streams = {}
    for shard in SHARDS:
        streams[shard] = cluster.direct(shard)
    watched = {shard: streams[shard].shop.watch(max_await_time_ms=200) for shard in SHARDS}
    client.drop_database("shop")
    for shard, stream in watched.items():
        kinds = []
        while not kinds or kinds[-1] != "invalidate":
            event = stream.try_next()
            if event is not None:
                kinds.append(event["operationType"])
        seen[shard] = kinds
        stream.close()
        streams[shard].close()
    assert sorted(seen["shard0"]) == ["drop", "drop", "dropDatabase", "invalidate"]
    assert seen["shard1"] == seen["shard2"] == ["drop", "dropDatabase", "invalidate"]
    assert "shop" not in client.list_database_names()


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


def test_listings_show_databases_collections_and_indexes(client: Client, orders: Any) -> None:
    client.shop.plain.insert_one({"_id": 1})
    assert sorted(client.shop.list_collection_names()) == ["orders", "plain"]
    assert {"config", "shop"} <= set(client.list_database_names())
    shards = client.admin.command("listShards")["shards"]
    assert [shard["_id"] for shard in shards] == SHARDS
    assert all(shard["state"] == 1 for shard in shards)
    assert all(shard["topologyTime"].time > 0 for shard in shards)
    assert [s["_id"] for s in client.config.shards.find().sort("_id", 1)] == SHARDS


def test_unknown_commands_and_wrong_databases_are_refused(client: Client) -> None:
    with pytest.raises(OperationFailure) as error:
        client.admin.command("noSuchCommand")
    assert code_of(error) == 59
    with pytest.raises(OperationFailure) as error:
        client.shop.command("listShards")
    assert code_of(error) == 13


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

"""The embedded mongos behaves as applications expect; the same tests run on real servers."""

import threading
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from bson import MinKey
from pymongo import DeleteOne, InsertOne, ReturnDocument, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, OperationFailure

from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.harness.until import PATIENCE

SHARDS = ["shard0", "shard1", "shard2"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with start_cluster(3) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: TestCluster) -> Iterator[Client]:
    opened: Client
    with pymongo.MongoClient(cluster.mongos_uri) as opened:
        yield opened


@pytest.fixture
def orders(client: Client) -> Iterator[Any]:
    """Return a collection split over three shards by region: below h, h to p, and from p on."""
    client.admin.command("enableSharding", "shop", primaryShard="shard0")
    client.admin.command("shardCollection", "shop.orders", key={"region": 1, "_id": 1})
    for at, shard in (("h", "shard1"), ("p", "shard2")):
        client.admin.command("split", "shop.orders", middle={"region": at, "_id": MinKey()})
        move(client, at, shard)
    yield client.shop.orders
    client.drop_database("shop")


def move(client: Client, region: str, to: str) -> None:
    client.admin.command(
        "moveChunk", "shop.orders", find={"region": region, "_id": 0}, to=to, _waitForDelete=True
    )


def ids_on(cluster: TestCluster, shard: str) -> list[Any]:
    with cluster.direct(shard) as direct:
        return sorted(document["_id"] for document in direct.shop.orders.find())


def code_of(error: pytest.ExceptionInfo[OperationFailure]) -> int | None:
    return error.value.code


def fill(orders: Any) -> None:
    orders.insert_many([{"_id": i, "region": "ahpz"[i % 4], "n": i} for i in range(12)])


def test_hello_identifies_a_mongos(client: Client) -> None:
    hello = client.admin.command("hello")
    assert hello["msg"] == "isdbgrid"
    assert hello["isWritablePrimary"]
    assert client.topology_description.topology_type_name == "Sharded"


def test_documents_are_on_their_owner(cluster: TestCluster, orders: Any) -> None:
    fill(orders)
    assert ids_on(cluster, "shard0") == [0, 4, 8]
    assert ids_on(cluster, "shard1") == [1, 5, 9]
    assert ids_on(cluster, "shard2") == [2, 3, 6, 7, 10, 11]
    assert orders.count_documents({}) == 12
    assert orders.estimated_document_count() == 12


def test_reads_merge_the_shards_results(orders: Any) -> None:
    fill(orders)
    found = orders.find({}, {"_id": 1}).sort("n", -1).skip(2).limit(5)
    assert list(found) == [{"_id": i} for i in (9, 8, 7, 6, 5)]
    assert sorted(orders.distinct("region")) == ["a", "h", "p", "z"]
    assert {d["_id"] for d in orders.find({"region": {"$in": ["a", "z"]}})} == {0, 3, 4, 7, 8, 11}
    assert orders.find_one({"_id": 6})["region"] == "p"
    assert orders.find_one({"_id": 99}) is None


def test_a_cursor_returns_batches_and_can_be_killed(client: Client, orders: Any) -> None:
    fill(orders)
    assert [d["_id"] for d in orders.find().sort("_id", 1).batch_size(5)] == list(range(12))
    reply = client.shop.command("find", "orders", batchSize=2)
    cursor_id = reply["cursor"]["id"]
    assert len(reply["cursor"]["firstBatch"]) == 2
    killed = client.shop.command("killCursors", "orders", cursors=[cursor_id])
    assert killed["cursorsKilled"] == [cursor_id]
    with pytest.raises(OperationFailure) as error:
        client.shop.command("getMore", cursor_id, collection="orders")
    assert code_of(error) == 43


def test_aggregates_combine_all_shards(client: Client, orders: Any) -> None:
    fill(orders)
    client.shop.names.insert_many([{"_id": "a", "name": "north"}, {"_id": "h", "name": "south"}])
    pipeline = [
        {"$match": {"n": {"$lt": 6}}},
        {"$group": {"_id": "$region", "total": {"$sum": "$n"}}},
        {"$sort": {"_id": 1}},
    ]
    assert [(d["_id"], d["total"]) for d in orders.aggregate(pipeline)] == [
        ("a", 4), ("h", 6), ("p", 2), ("z", 3),
    ]  # fmt: skip
    lookup = {"from": "orders", "localField": "_id", "foreignField": "region", "as": "orders"}
    joined = list(client.shop.names.aggregate([{"$lookup": lookup}, {"$sort": {"_id": 1}}]))
    assert [sorted(o["_id"] for o in d["orders"]) for d in joined] == [[0, 4, 8], [1, 5, 9]]


def test_views_of_sharded_collections_can_be_read(client: Client, orders: Any) -> None:
    fill(orders)
    client.shop.create_collection("far", viewOn="orders", pipeline=[{"$match": {"region": "z"}}])
    assert [d["_id"] for d in client.shop.far.aggregate([{"$sort": {"_id": 1}}])] == [3, 7, 11]
    assert [d["_id"] for d in client.shop.far.find({"n": {"$gt": 3}}).sort("_id", -1)] == [11, 7]
    assert client.shop.far.count_documents({}) == 3


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (lambda c: c.update_one({"_id": {"$gt": 0}}, {"$set": {"x": 1}}), 72),
        (lambda c: c.update_one({"n": 1}, {"$set": {"x": 1}}, upsert=True), 61),
        (lambda c: c.delete_one({"n": 1}), 61),
        (lambda c: c.find_one_and_update({"n": 1}, {"$set": {"x": 1}}), 61),
        (lambda c: c.insert_one({"_id": 1, "region": ["a"]}), 61),
    ],
)
def test_writes_without_a_shard_key_are_refused(
    client: Client, orders: Any, run: Any, code: int
) -> None:
    # From 7.0 on, servers find the document by themselves; an array in the key stays an error.
    version = client.server_info()["versionArray"]
    if version[0] >= 7 and "insert_one" not in run.__code__.co_names:
        pytest.skip("refused by MongoDB 6.0 and older only")
    fill(orders)
    with pytest.raises(OperationFailure) as error:
        run(orders)
    assert code_of(error) == code


def test_updates_by_id_alone_reach_the_document(orders: Any) -> None:
    fill(orders)
    assert orders.update_one({"_id": 6}, {"$set": {"x": 1}}).modified_count == 1
    assert orders.delete_one({"_id": 7}).deleted_count == 1
    assert orders.update_many({"n": {"$gte": 6}}, {"$inc": {"n": 100}}).modified_count == 5
    assert orders.delete_many({"region": {"$gte": "h"}}).deleted_count == 8
    assert [d["_id"] for d in orders.find().sort("_id", 1)] == [0, 4, 8]


def test_bulk_errors_have_the_clients_indexes(orders: Any) -> None:
    orders.insert_one({"_id": 1, "region": "z"})
    documents = [{"_id": i, "region": r} for i, r in ((0, "a"), (1, "z"), (2, "h"), (1, "z"))]
    with pytest.raises(BulkWriteError) as error:
        orders.insert_many(documents, ordered=False)
    assert [e["index"] for e in error.value.details["writeErrors"]] == [1, 3]
    assert error.value.details["nInserted"] == 2
    with pytest.raises(BulkWriteError) as error:
        orders.insert_many([{"_id": 7, "region": "b"}, *documents], ordered=True)
    assert [e["index"] for e in error.value.details["writeErrors"]] == [1]
    assert orders.count_documents({"_id": 7}) == 1


def test_a_bulk_may_mix_writes_of_all_kinds(orders: Any) -> None:
    fill(orders)
    result = orders.bulk_write(
        [
            InsertOne({"_id": 20, "region": "q"}),
            UpdateOne({"_id": 1, "region": "h"}, {"$set": {"x": 1}}),
            UpdateOne({"_id": 30, "region": "i"}, {"$set": {"x": 1}}, upsert=True),
            DeleteOne({"_id": 0, "region": "a"}),
        ]
    )
    assert (result.inserted_count, result.modified_count, result.deleted_count) == (1, 1, 1)
    assert result.upserted_ids == {2: 30}


def test_a_transaction_over_shards_is_atomic(client: Client, orders: Any) -> None:
    # Shards refresh their routing tables outside of transactions only. Inside one, a stale table
    # is a transient error, after which drivers run the transaction again.
    client.shop.log.insert_one({"_id": 0})

    def insert(session: ClientSession) -> None:
        for i, region in enumerate("ahz"):
            orders.insert_one({"_id": i, "region": region}, session=session)
        assert orders.count_documents({}, session=session) == 3
        assert orders.count_documents({}) == 0

    with client.start_session() as session:
        session.with_transaction(insert)
        assert orders.count_documents({}) == 3
        session.start_transaction()
        orders.delete_many({}, session=session)
        client.shop.log.insert_one({"_id": 1}, session=session)
        session.abort_transaction()
    assert orders.count_documents({}) == 3
    assert client.shop.log.count_documents({}) == 1


def test_a_failed_statement_aborts_the_transaction_on_all_shards(
    client: Client, orders: Any
) -> None:
    orders.insert_one({"_id": 1, "region": "z"})
    with client.start_session() as session:
        session.start_transaction()
        orders.insert_one({"_id": 0, "region": "a"}, session=session)
        with pytest.raises(OperationFailure):
            orders.insert_one({"_id": 1, "region": "z"}, session=session)
        with pytest.raises(OperationFailure) as error:
            session.commit_transaction()
    assert code_of(error) == 251
    assert error.value.has_error_label("TransientTransactionError")
    assert orders.count_documents({}) == 1


def test_one_of_two_conflicting_transactions_fails(client: Client, orders: Any) -> None:
    fill(orders)
    with client.start_session() as one, client.start_session() as other:
        one.start_transaction()
        other.start_transaction()
        orders.update_one({"_id": 1, "region": "h"}, {"$set": {"by": 1}}, session=one)
        with pytest.raises(OperationFailure) as error:
            orders.update_one({"_id": 1, "region": "h"}, {"$set": {"by": 2}}, session=other)
        assert code_of(error) == 112
        assert error.value.has_error_label("TransientTransactionError")
        one.commit_transaction()
    assert orders.find_one({"_id": 1})["by"] == 1


def test_a_shard_key_change_moves_the_document(cluster: TestCluster, orders: Any) -> None:
    fill(orders)
    where = {"_id": 0, "region": "a"}
    assert orders.update_one(where, {"$set": {"region": "zz"}}).modified_count == 1
    assert 0 in ids_on(cluster, "shard2")
    assert 0 not in ids_on(cluster, "shard0")
    moved = orders.find_one_and_update(
        {"_id": 0, "region": "zz"},
        {"$set": {"region": "i"}},
        return_document=ReturnDocument.AFTER,
    )
    assert moved == {"_id": 0, "region": "i", "n": 0}
    assert 0 in ids_on(cluster, "shard1")
    assert orders.count_documents({}) == 12


def test_a_shard_key_change_works_in_a_transaction(
    client: Client, cluster: TestCluster, orders: Any
) -> None:
    fill(orders)
    with client.start_session() as session, session.start_transaction():
        orders.update_one({"_id": 0, "region": "a"}, {"$set": {"region": "z"}}, session=session)
        orders.update_one({"_id": 0, "region": "z"}, {"$set": {"seen": 1}}, session=session)
    assert orders.find_one({"_id": 0}) == {"_id": 0, "region": "z", "n": 0, "seen": 1}
    assert 0 in ids_on(cluster, "shard2")


def test_a_shard_key_change_requires_a_retryable_write(cluster: TestCluster, orders: Any) -> None:
    fill(orders)
    plain: Client
    with (
        pymongo.MongoClient(cluster.mongos_uri, retryWrites=False) as plain,
        pytest.raises(OperationFailure) as error,
    ):
        plain.shop.orders.update_one({"_id": 0, "region": "a"}, {"$set": {"region": "z"}})
    assert code_of(error) == 20
    assert orders.find_one({"_id": 0})["region"] == "a"


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


def test_a_migration_waits_for_transactions(client: Client, orders: Any) -> None:
    fill(orders)
    mover = threading.Thread(target=move, args=(client, "a", "shard1"))
    with client.start_session() as session:
        session.start_transaction()
        orders.insert_one({"_id": 60, "region": "a"}, session=session)
        mover.start()
        mover.join(0.3)
        assert mover.is_alive()
        session.commit_transaction()
    mover.join(PATIENCE)
    assert not mover.is_alive()
    assert sorted(d["_id"] for d in orders.find({"region": "a"})) == [0, 4, 8, 60]


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


def test_writes_to_missing_collections_create_none(client: Client) -> None:
    index = {"keyPattern": {"x": 1}, "hidden": True}
    for command, argument in (("dropIndexes", "x"), ("collMod", index)):
        with pytest.raises(OperationFailure) as error:
            client.nothing.command(command, "here", index=argument)
        assert code_of(error) in (26, 2)
    assert client.nothing.here.update_one({"_id": 1}, {"$set": {"x": 1}}).matched_count == 0
    assert client.nothing.here.delete_many({}).deleted_count == 0
    assert list(client.nothing.here.find()) == []
    assert "nothing" not in client.list_database_names()


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
    client.moving.create_collection("t", timeseries={"timeField": "at"})
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

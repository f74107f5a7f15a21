"""The embedded cluster's program, and its mongos, whose tests run on real servers too.

Conformance and the recordings compare its shards' events.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from bson import MinKey
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, EmbeddedProcess, TestCluster, start_cluster
from tests.harness.until import PATIENCE

pytestmark = pytest.mark.xdist_group("embedded_mongos")


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with start_cluster(3) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.mongos_uri) as connected:
        yield connected


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


def test_a_shard_key_change_moves_the_document(cluster: TestCluster, orders: Any) -> None:
    fill(orders)
    where = {"_id": 0, "region": "a"}
    assert orders.update_one(where, {"$set": {"region": "zz"}}).modified_count == 1
    assert 0 in ids_on(cluster, "shard2")
    assert 0 not in ids_on(cluster, "shard0")
    moved = orders.update_one({"_id": 0, "region": "zz"}, {"$set": {"region": "i"}})
    assert moved.modified_count == 1
    assert 0 in ids_on(cluster, "shard1")
    assert orders.count_documents({}) == 12


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_quickly_despite_clients(number: signal.Signals) -> None:
    impatient = {"serverSelectionTimeoutMS": 100}
    with (
        EmbeddedProcess(2, {}) as cluster,
        Client(cluster.mongos_uri, **impatient) as client,
        cluster.direct("shard0", **impatient) as shard,
    ):
        client.a.b.insert_one({"_id": 1})
        session = client.start_session()
        session.start_transaction()
        client.a.b.insert_one({"_id": 2}, session=session)
        shard.watch().try_next()
        cluster.process.send_signal(number)
        assert cluster.process.wait(PATIENCE) == 0
    assert '"Stopped"' in cluster.logs[-1]


def test_port_and_number_of_shards_can_be_chosen() -> None:
    with EmbeddedProcess(1, {}) as first:
        port = first.mongos.partition(":")[2]
    with EmbeddedProcess(5, {"port": port}) as second:
        assert second.mongos == f"127.0.0.1:{port}"
        assert list(second.shards) == [f"shard{i}" for i in range(5)]
        taken = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"--port={port}"], capture_output=True, timeout=30
        )
        assert taken.returncode == 48
        assert b"Cannot start" in taken.stdout
        assert b"Traceback" not in taken.stderr


PROGRAM = "import typer; from embedded.cli import embedded; typer.run(embedded)"

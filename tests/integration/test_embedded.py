"""The embedded cluster's program, and its mongos, whose tests run on real servers too.

Conformance and the recordings compare its shards' events.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import UpdateOne
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, OperationFailure

from tests.harness.clusters import Client, TestCluster, shard, start_cluster
from tests.harness.embedded_process import EMBEDDED, EmbeddedProcess
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
    chunks = {"h": "shard1", "p": "shard2"}
    shard(client, "shop.orders", {"region": 1, "_id": 1}, "shard0", chunks)
    yield client.shop.orders
    client.drop_database("shop")


def test_change_streams_are_refused(client: Client, cluster: TestCluster) -> None:
    if cluster.real:
        pytest.skip("a real mongos has change streams")
    with pytest.raises(OperationFailure, match="mergerouter") as error:
        client.shop.watch()
    assert error.value.code == 59


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


@pytest.mark.parametrize(
    ("meanwhile", "code"), [("delete_one", 11000), ("insert_one", 112)], ids=["deleted", "inserted"]
)
def test_an_insert_in_a_transaction_conflicts_with_later_changes(
    client: Client, meanwhile: str, code: int
) -> None:
    notes = client.unsharded.notes
    notes.drop()
    notes.insert_one({"_id": meanwhile} if meanwhile == "delete_one" else {})
    with client.start_session() as session, session.start_transaction():
        notes.find_one({}, session=session)
        getattr(notes, meanwhile)({"_id": meanwhile})
        with pytest.raises(OperationFailure) as error:
            notes.insert_one({"_id": meanwhile}, session=session)
        assert error.value.code == code
        session.abort_transaction()


def test_only_an_update_by_itself_moves_a_document(orders: Any) -> None:
    orders.insert_many([{"_id": i, "region": "a"} for i in range(2)])
    to_move = UpdateOne({"_id": 0, "region": "a"}, {"$set": {"region": "z"}})
    with pytest.raises(BulkWriteError) as error:
        orders.bulk_write([to_move, UpdateOne({"_id": 1, "region": "a"}, {"$set": {"v": 1}})])
    assert error.value.details["writeErrors"][0]["code"] == 72
    assert orders.bulk_write([to_move]).modified_count == 1
    assert [(d["_id"], d["region"]) for d in orders.find().sort("_id")] == [(0, "z"), (1, "a")]


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
            [sys.executable, "-c", EMBEDDED, f"--port={port}"], capture_output=True, timeout=120
        )
        assert taken.returncode == 48
        assert b"Cannot start" in taken.stdout
        assert b"Traceback" not in taken.stderr

"""Transactions over shards, and changes of the shard key; the same tests run on real servers."""

import threading
from typing import Any

import pytest
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, TestCluster
from tests.harness.until import PATIENCE
from tests.integration.embedded_mongos.orders import code_of, fill, ids_on, move


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

"""Reads and writes of sharded collections through the mongos; they run on real servers too."""

from typing import Any

import pytest
from pymongo.errors import BulkWriteError, OperationFailure

from tests.harness.clusters import Client
from tests.integration.embedded_mongos.orders import code_of, fill


def test_reads_merge_the_shards_results(orders: Any) -> None:
    fill(orders)
    found = orders.find({}, {"_id": 1}).sort("n", -1).skip(2).limit(5)
    assert list(found) == [{"_id": i} for i in (9, 8, 7, 6, 5)]
    assert sorted(orders.distinct("region")) == ["a", "h", "p", "z"]
    assert {d["_id"] for d in orders.find({"region": {"$in": ["a", "z"]}})} == {0, 3, 4, 7, 8, 11}
    assert orders.find_one({"_id": 6})["region"] == "p"
    assert orders.find_one({"_id": 99}) is None


def test_aggregates_combine_all_shards(orders: Any) -> None:
    fill(orders)
    pipeline = [
        {"$match": {"n": {"$lt": 6}}},
        {"$group": {"_id": "$region", "total": {"$sum": "$n"}}},
        {"$sort": {"_id": 1}},
    ]
    assert [(d["_id"], d["total"]) for d in orders.aggregate(pipeline)] == [
        ("a", 4), ("h", 6), ("p", 2), ("z", 3),
    ]  # fmt: skip


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

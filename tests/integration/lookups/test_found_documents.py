"""updateLookup finds each event's document wherever it is now."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument

from tests.harness.clusters import Client, TestCluster, on_real_servers
from tests.integration.lookups.both import Both, Data, documents, move, since, spread, tick


def test_an_orphan_is_not_returned(both: Both, db: Data, cluster: TestCluster) -> None:
    if not cluster.real:
        pytest.skip("embedded shards clean up at once")
    spread(db, cluster)
    start = tick(db.client)
    db.a.insert_one({"_id": 1, "k": 1})
    db.a.update_one({"_id": 1, "k": 1}, {"$set": {"v": 1}})
    with kept_orphans(cluster):
        move(db, cluster, {"k": 1}, 1)
        db.a.update_one({"_id": 1, "k": 1}, {"$set": {"v": 2}})
        events = both.read(db.name, "a", options=since(start))
        with cluster.direct(next(iter(cluster.shards))) as donor:
            orphan = donor[db.name].a.find_one({"_id": 1})
    assert orphan == {"_id": 1, "k": 1, "v": 1}
    assert documents(events) == [{"_id": 1, "k": 1, "v": 2}] * 2


@contextmanager
def kept_orphans(cluster: TestCluster) -> Iterator[None]:
    with cluster.direct(next(iter(cluster.shards))) as donor:
        point = {"configureFailPoint": "suspendRangeDeletion"}
        donor.admin.command({**point, "mode": "alwaysOn"})
        try:
            yield
        finally:
            donor.admin.command({**point, "mode": "off"})


def test_lookups_work_with_ids_of_all_types(both: Both, db: Data, cluster: TestCluster) -> None:
    """Servers treat 1, 1.0 and NumberLong(1) as one _id, and compare texts by collation."""
    ids: list[Any] = [
        1, 2.0, bson.Int64(3), bson.Decimal128("4"), "a", "B", bson.ObjectId(), None, True,
        {"x": 1, "y": [1.0, "z"]}, bson.Binary(b"x"), bson.Timestamp(1, 1), bson.MaxKey(),
    ]  # fmt: skip
    folding = {"locale": "en", "strength": 2}
    db.create_collection("a", collation=folding)
    start = tick(db.client)
    for each in ids:
        db.a.insert_one({"_id": each})
        db.a.update_one({"_id": each}, {"$set": {"v": 1}})
    for old, new in ((1, 1.0), ("a", "A"), (bson.Int64(3), 3)):
        db.a.delete_one({"_id": old})
        db.a.insert_one({"_id": new, "new": True})
    db.a.delete_one({"_id": 2})
    looked_up = documents(both.read(db.name, "a", options=since(start)))
    if cluster.real:
        # The embedded cluster's finds ignore a collection's collation.
        assert looked_up[4] == {"_id": "A", "new": True}
    assert looked_up[:4] == [
        {"_id": 1.0, "new": True},
        None,
        {"_id": 3, "new": True},
        {"_id": bson.Decimal128("4"), "v": 1},
    ]
    assert [type(each["_id"]) for each in (looked_up[0], looked_up[2])] == [float, int]
    assert all(each["v"] == 1 for each in looked_up[5:])


@on_real_servers("change of a shard key in a transaction")
def test_a_changed_shard_key_identifies_another_document(
    both: Both, db: Data, cluster: TestCluster
) -> None:
    spread(db, cluster)
    start = tick(db.client)
    for n in (1, 2):
        db.a.insert_one({"_id": n, "k": n})
        db.a.update_one({"_id": n, "k": n}, {"$set": {"v": 1}})
    with db.client.start_session() as session, session.start_transaction():
        db.a.update_one({"_id": 1, "k": 1}, {"$set": {"k": 15}}, session=session)
    looked_up = documents(both.read(db.name, "a", options=since(start)))
    assert looked_up == [None, {"_id": 2, "k": 2, "v": 1}]


def test_documents_of_a_recreated_collection_are_not_returned(both: Both, db: Data) -> None:
    start = tick(db.client)
    for name in ("a", "b"):
        db[name].insert_one({"_id": 1})
        db[name].update_one({"_id": 1}, {"$set": {"v": 1}})
    db.a.drop()
    db.a.insert_one({"_id": 1, "other": True})
    db.b.rename("c")
    assert documents(both.read(db.name, options=since(start))) == [None, None]


def test_drivers_get_the_documents(router: Client, db: Data, cluster: TestCluster) -> None:
    """A waiting reader gets every document while chunks move back and forth."""
    spread(db, cluster)
    db.a.insert_many([{"_id": k, "k": k} for k in range(20)])
    with router[db.name].a.watch(full_document="updateLookup") as stream:
        for v in range(4):
            move(db, cluster, {"k": 1}, (v + 1) % 2)
            for k in range(20):
                db.a.update_one({"_id": k, "k": k}, {"$set": {"v": v}})
            events = [next(stream) for _ in range(20)]
            assert sorted(event["fullDocument"]["_id"] for event in events) == list(range(20))
            assert all(event["fullDocument"]["v"] == v for event in events)


def array(*names: str) -> RawBSONDocument:
    """Return {a: [1, …]} whose elements have these names."""
    items = bson.encode(dict.fromkeys(names, 1))
    return RawBSONDocument(struct.pack("<i", len(items) + 8) + b"\x04a\0" + items + b"\0")


def of_all_depths(name: str) -> list[Any]:
    inner = RawBSONDocument(bson.encode({"c": [array(name)]}))
    return [array(name), {"b": array(name)}, {"b": [inner]}, bson.Code("f", array(name))]


# What servers do with such an _id when they scan an index for several values at once: one side of
# the regular name they pass it by, on the other they loop.
PASSED_BY: list[Any] = [array("", "1"), array("0", "1", "-"), *of_all_depths("-")]
LOOPED: list[Any] = [array("1", "0"), array("0", "1", "x"), *of_all_depths("7")]


@pytest.mark.parametrize("ids", [PASSED_BY, LOOPED], ids=["passed by", "looped"])
@pytest.mark.parametrize("key", [None, {"k": 1}, {"_id": "hashed"}], ids=str)
def test_their_documents_are_found(
    both: Both, db: Data, cluster: TestCluster, key: dict[str, Any] | None, ids: list[Any]
) -> None:
    if not cluster.real:
        pytest.skip("the embedded cluster names the elements anew")
    if key is not None:
        db.client.admin.command("shardCollection", f"{db.name}.a", key=key)
    start = tick(db.client)
    db.a.insert_many([{"_id": n, "k": n} for n in range(3)])
    for n, irregular in enumerate(ids):
        whole = {"_id": irregular, "k": ids[-n]}
        db.a.insert_one(whole)
        db.a.update_one(whole, {"$set": {"v": n}})
        db.a.update_one({"_id": n % 3, "k": n % 3}, {"$set": {"v": n}})
    looked_up = documents(both.read(db.name, "a", options=since(start)))
    assert [each["v"] for each in looked_up[::2]] == [*range(len(ids))]
    assert [each["_id"] for each in looked_up[1::2]] == [n % 3 for n in range(len(ids))]

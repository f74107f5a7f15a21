"""Collections sharded in various ways, and chunks that move (docs/protocol.md#events and
docs/protocol.md#sharded-cluster)."""

from typing import Any

import pytest
from pymongo.database import Database

from tests.conformance.streams import Event, Stream, now
from tests.harness.clusters import Client, TestCluster, on_real_servers

Data = Database[dict[str, Any]]

HASHED = on_real_servers("hashed shard keys")
LOOKUP = {"fullDocument": "updateLookup"}


def updates(events: list[Event]) -> list[Event]:
    return [event for event in events if event["operationType"] == "update"]


@pytest.mark.parametrize(
    ("key", "document_key"),
    [
        pytest.param({"k": "hashed"}, ["k", "_id"], marks=HASHED),
        pytest.param({"_id": "hashed"}, ["_id"], marks=HASHED),
        ({"_id": 1}, ["_id"]),
        ({"_id": 1, "k": 1}, ["_id", "k"]),
        ({"k": 1, "l": 1}, ["k", "l", "_id"]),
        ({"n.k": 1}, ["n.k", "_id"]),
    ],
    ids=str,
)
def test_lookups_and_keys_work_with_shard_keys_of_all_kinds(
    client: Client, db: Data, key: dict[str, Any], document_key: list[str]
) -> None:
    client.admin.command("enableSharding", db.name)
    client.admin.command("shardCollection", f"{db.name}.a", key=key)
    with Stream(client, db.name, "a", LOOKUP) as stream:
        for number in range(10):
            db.a.insert_one({"_id": number, "k": number, "l": -number, "n": {"k": number}})
        for number in range(10):
            one = {"_id": number, "k": number, "l": -number, "n.k": number}
            db.a.update_one(one, {"$set": {"v": number}})
        events = stream.read(20)
    assert all(list(event["documentKey"]) == document_key for event in events)
    looked_up = [event["fullDocument"] for event in updates(events)]
    assert [(each["_id"], each["v"]) for each in looked_up] == [(n, n) for n in range(10)]


def test_a_stream_continues_when_its_collection_is_sharded(
    client: Client, cluster: TestCluster, db: Data
) -> None:
    first, second = list(cluster.shards)[:2]
    client.admin.command("enableSharding", db.name, primaryShard=first)
    db.a.insert_one({"_id": 0})
    name = f"{db.name}.a"
    with Stream(client, db.name, "a", LOOKUP) as stream:
        db.a.insert_one({"_id": 1})
        client.admin.command("shardCollection", name, key={"_id": 1})
        client.admin.command("split", name, middle={"_id": 10})
        client.admin.command("moveChunk", name, find={"_id": 10}, to=second)
        db.a.insert_one({"_id": 20})
        db.a.update_one({"_id": 20}, {"$set": {"v": 1}})
        db.a.insert_one({"_id": 2})
        events = stream.past(now(client))
        assert stream.id
    assert [event["documentKey"] for event in events] == [{"_id": n} for n in (1, 20, 20, 2)]
    for number, event in enumerate(events):
        with Stream(client, db.name, "a", {**LOOKUP, "resumeAfter": event["_id"]}) as stream:
            rest = stream.read(3 - number)
            assert [e["_id"] for e in rest] == [e["_id"] for e in events[number + 1 :]]

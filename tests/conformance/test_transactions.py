"""Transactions: what their events carry, and how they come from several shards (section 5)."""

from collections import defaultdict
from typing import Any

import pytest
from pymongo.database import Database

from tests.conformance.data import Documents
from tests.conformance.streams import Event, Stream, kinds, now
from tests.harness.clusters import Client, TestCluster

rule = pytest.mark.rule
Data = Database[dict[str, Any]]


def write_all_over(client: Client, sharded: Documents) -> None:
    with client.start_session() as session, session.start_transaction():
        for number in range(9):
            sharded.insert_one({"_id": number, "k": number % 3 * 10 + 1}, session=session)
        sharded.update_one({"_id": 0, "k": 1}, {"$set": {"v": 1}}, session=session)
        sharded.delete_one({"_id": 1, "k": 11}, session=session)


def by_shard(events: list[Event]) -> dict[int, list[Event]]:
    shards = defaultdict(list)
    for event in events:
        shards[event["documentKey"]["k"]].append(event)
    return shards


@rule("5", "lsid and txnNumber of a transaction, ordered by txnOpIndex")
def test_one_shard(client: Client, db: Data) -> None:
    db.create_collection("a")
    with Stream(client, db.name, "a") as stream:
        with client.start_session() as session:
            with session.start_transaction():
                for number in (3, 1, 2):
                    db.a.insert_one({"_id": number}, session=session)
                db.a.update_one({"_id": 3}, {"$set": {"v": 1}}, session=session)
                db.a.delete_one({"_id": 1}, session=session)
            lsid = session.session_id["id"]
        events = stream.read(5)
    assert kinds(events) == ["insert", "insert", "insert", "update", "delete"]
    assert [event["documentKey"]["_id"] for event in events] == [3, 1, 2, 3, 1]
    assert len({event["clusterTime"] for event in events}) == 1
    assert {bytes(event["lsid"]["id"]) for event in events} == {bytes(lsid)}
    assert all(list(event["lsid"]) == ["id", "uid"] for event in events)
    assert len({event["txnNumber"] for event in events}) == 1
    assert list(events[0])[:5] == ["txnNumber", "lsid", "_id", "operationType", "clusterTime"]


@rule(
    "5",
    "a transaction's events on several shards interleave by token",
)
@rule("3", "hex strings compare as plain strings in stream order")
def test_several_shards(client: Client, sharded: Documents) -> None:
    with Stream(client, sharded.database.name) as stream:
        write_all_over(client, sharded)
        events = stream.read(11)
        stream.past(now(client))
        assert len(stream.events) == 11
    tokens = [event["_id"]["_data"] for event in events]
    assert tokens == sorted(tokens)
    assert len({event["txnNumber"] for event in events}) == 1
    shards = by_shard(events)
    assert sorted(shards) == [1, 11, 21]
    for part in shards.values():
        assert len({event["clusterTime"] for event in part}) == 1
    assert kinds(shards[1]) == ["insert"] * 3 + ["update"]
    assert kinds(shards[11]) == ["insert"] * 3 + ["delete"]


@rule("5", "an aborted transaction has no events")
def test_aborted(client: Client, sharded: Documents) -> None:
    with Stream(client, sharded.database.name) as stream:
        with client.start_session() as session:
            session.start_transaction()
            for k in (1, 11, 21):
                sharded.insert_one({"k": k}, session=session)
            session.abort_transaction()
        sharded.insert_one({"_id": "after", "k": 1})
        events = stream.past(now(client))
    assert [event["documentKey"]["_id"] for event in events] == ["after"]


@rule("3, resuming", "resuming inside a transaction gives its remaining events")
@rule(
    "3, resuming",
    "resuming after one of several events at one cluster time on different shards",
)
def test_resuming_inside(client: Client, sharded: Documents) -> None:
    with Stream(client, sharded.database.name) as stream:
        write_all_over(client, sharded)
        sharded.insert_one({"_id": "after", "k": 1})
        events = stream.read(12)
    for cut, event in enumerate(events[:-1], start=1):
        resume = {"resumeAfter": event["_id"]}
        with Stream(client, sharded.database.name, 1, resume) as rest:
            assert rest.read(len(events) - cut) == events[cut:]


@rule("6", "sorted by token, the shards' events are byte for byte the merged stream")
def test_shards_own_streams(client: Client, cluster: TestCluster, sharded: Documents) -> None:
    name = sharded.database.name
    with Stream(client, name) as stream:
        start = stream.pbrt
        write_all_over(client, sharded)
        sharded.update_many({}, {"$inc": {"v": 1}})
        sharded.drop()
        end = now(client)
        merged = stream.past(end)
    apart: list[Event] = []
    for shard in list(cluster.shards)[:3]:
        with (
            cluster.direct(shard) as direct,
            Stream(direct, name, 1, {"resumeAfter": start}) as own,
        ):
            # An idle member promises more with its next no-op.
            apart += own.past(end)
    assert merged == sorted(apart, key=lambda event: event["_id"]["_data"])


@rule("5", "a transaction of more than 16 MiB is one transaction")
def test_a_large_transaction(client: Client, sharded: Documents) -> None:
    with Stream(client, sharded.database.name) as stream:
        with client.start_session() as session, session.start_transaction():
            for number in range(4):
                document = {"_id": number, "k": 1, "x": "x" * (6 << 20)}
                sharded.insert_one(document, session=session)
            sharded.insert_one({"_id": 9, "k": 21}, session=session)
        events = stream.read(5)
    assert sorted(event["documentKey"]["_id"] for event in events) == [0, 1, 2, 3, 9]
    assert len({event["txnNumber"] for event in events}) == 1
    large = by_shard(events)[1]
    assert [event["documentKey"]["_id"] for event in large] == [0, 1, 2, 3]
    assert len({event["clusterTime"] for event in large}) == 1
    resume = {"resumeAfter": large[1]["_id"]}
    with Stream(client, sharded.database.name, 1, resume) as stream:
        expected = events[events.index(large[1]) + 1 :]
        assert stream.read(len(expected)) == expected

"""Transactions: the fields and the order of their events, on one or several shards
(docs/protocol.md#events)."""

from collections import defaultdict
from typing import Any

import pytest
from pymongo.client_session import ClientSession
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


@rule("Events", "lsid and txnNumber of a transaction, ordered by txnOpIndex")
def test_a_transaction_s_events_have_its_session_and_number(client: Client, db: Data) -> None:
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
    "Events",
    "a transaction's events on several shards interleave by token",
)
@rule("Resume tokens", "hex strings compare as plain strings in stream order")
def test_a_transaction_s_events_interleave_by_token(client: Client, sharded: Documents) -> None:
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


@rule("Events", "an aborted transaction has no events")
def test_an_aborted_transaction_makes_no_events(client: Client, sharded: Documents) -> None:
    with Stream(client, sharded.database.name) as stream:
        with client.start_session() as session:
            session.start_transaction()
            for k in (1, 11, 21):
                sharded.insert_one({"k": k}, session=session)
            session.abort_transaction()
        sharded.insert_one({"_id": "after", "k": 1})
        events = stream.past(now(client))
    assert [event["documentKey"]["_id"] for event in events] == ["after"]


@rule("Resuming", "resuming inside a transaction gives its remaining events")
@rule(
    "Resuming",
    "resuming after one of several events at one cluster time on different shards",
)
def test_a_stream_resumes_inside_a_transaction(client: Client, sharded: Documents) -> None:
    with Stream(client, sharded.database.name) as stream:
        write_all_over(client, sharded)
        sharded.insert_one({"_id": "after", "k": 1})
        events = stream.read(12)
    for cut, event in enumerate(events[:-1], start=1):
        resume = {"resumeAfter": event["_id"]}
        with Stream(client, sharded.database.name, 1, resume) as rest:
            assert rest.read(len(events) - cut) == events[cut:]


@rule("Sharded cluster", "sorted by token, the shards' events are byte for byte the merged stream")
def test_the_shards_events_make_up_the_merged_stream(
    client: Client, cluster: TestCluster, sharded: Documents
) -> None:
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
            # An idle member's watermark advances with its next no-op.
            apart += own.past(end)
    assert merged == sorted(apart, key=lambda event: event["_id"]["_data"])


@rule("Events", "a transaction of more than 16 MiB is one transaction")
def test_a_large_transaction_is_one_transaction(client: Client, sharded: Documents) -> None:
    def insert(session: ClientSession) -> None:
        for number in range(4):
            document = {"_id": number, "k": 1, "x": "x" * (6 << 20)}
            sharded.insert_one(document, session=session)
        sharded.insert_one({"_id": 9, "k": 21}, session=session)

    with Stream(client, sharded.database.name) as stream:
        with client.start_session() as session:
            session.with_transaction(insert)  # retried if a busy machine takes more than a minute
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


@rule("Events", "a write without effect makes no event")
@rule("Events", "a transaction's events on several shards interleave by token")
def test_a_shard_without_changes_adds_no_events(client: Client, sharded: Documents) -> None:
    """The shard takes part in the commit without an operation of its own."""
    sharded.insert_many([{"_id": k, "k": k} for k in (1, 11)])
    with Stream(client, sharded.database.name, sharded.name) as stream:
        with client.start_session() as session, session.start_transaction():
            for k, change in ((1, {"$setOnInsert": {"a": 1}}), (11, {"$set": {"a": 1}})):
                sharded.find_one_and_update({"_id": k, "k": k}, change, session=session)
        events = stream.past(now(client))
    assert [(e["operationType"], e["documentKey"]["k"]) for e in events] == [("update", 11)]


@rule("Events", "documentKey has the shard key first")
def test_deletes_show_the_whole_document_key(client: Client, sharded: Documents) -> None:
    sharded.insert_many([{"_id": k, "k": k} for k in (1, 2, 11)])
    with Stream(client, sharded.database.name, sharded.name) as stream:
        with client.start_session() as session, session.start_transaction():
            for k in (1, 2, 11):
                sharded.delete_one({"_id": k, "k": k}, session=session)
            sharded.insert_one({"_id": 1, "k": 1}, session=session)
        events = stream.read(4)
    assert sorted(kinds(events)) == ["delete", "delete", "delete", "insert"]
    assert all(list(event["documentKey"]) == ["k", "_id"] for event in events)
    [*_, last] = by_shard(events)[1]
    assert last["operationType"] == "insert"


@rule("Events", "fullDocumentBeforeChange: off, whenAvailable, required")
def test_each_operation_has_its_own_images(client: Client, db: Data) -> None:
    """Each operation has its own images, even if several change one document."""
    db.create_collection("a", changeStreamPreAndPostImages={"enabled": True})
    db.a.insert_one({"_id": 1, "v": 0})
    images = {"fullDocument": "required", "fullDocumentBeforeChange": "required"}
    with Stream(client, db.name, "a", images) as stream:
        with client.start_session() as session, session.start_transaction():
            db.a.update_one({"_id": 1}, {"$set": {"v": 1}}, session=session)
            db.a.update_one({"_id": 1}, {"$set": {"v": 2}}, session=session)
            db.a.replace_one({"_id": 1}, {"v": 3}, session=session)
            db.a.delete_one({"_id": 1}, session=session)
        events = stream.read(4)
    assert [event["fullDocumentBeforeChange"]["v"] for event in events] == [0, 1, 2, 3]
    assert [event.get("fullDocument", {}).get("v") for event in events] == [1, 2, 3, None]


@rule("Events", "lsid and txnNumber of a transaction, ordered by txnOpIndex")
def test_only_operations_in_the_watched_collection_are_shown(client: Client, db: Data) -> None:
    """Other operations keep their txnOpIndex, so a wider stream resumes from the same token."""
    for name in ("a", "b"):
        db.create_collection(name)
    with Stream(client, db.name, "a") as stream:
        with client.start_session() as session:
            with session.start_transaction():
                db.b.insert_one({"_id": "elsewhere"}, session=session)
            with session.start_transaction():
                db.b.insert_one({"_id": 1}, session=session)
                db.a.insert_one({"_id": 1}, session=session)
                db.b.update_one({"_id": 1}, {"$set": {"v": 1}}, session=session)
                db.a.delete_one({"_id": 1}, session=session)
        events = stream.past(now(client))
    assert kinds(events) == ["insert", "delete"]
    with Stream(client, db.name, 1, {"resumeAfter": events[0]["_id"]}) as stream:
        rest = stream.read(2)
    assert [(event["operationType"], event["ns"]["coll"]) for event in rest] == [
        ("update", "b"),
        ("delete", "a"),
    ]


@rule("Events", "a transaction's events on several shards interleave by token")
def test_a_stream_shows_transactions_committed_after_its_start(
    client: Client, sharded: Documents
) -> None:
    """Operations committed after the start are in the stream, whenever they were written."""
    with client.start_session() as session:
        session.start_transaction()
        for k in (1, 11, 21):
            sharded.insert_one({"_id": k, "k": k}, session=session)
        with Stream(client, sharded.database.name, sharded.name) as stream:
            sharded.insert_one({"_id": 2, "k": 2})
            session.commit_transaction()
            events = stream.past(now(client))
    assert sorted(event["documentKey"]["_id"] for event in events) == [1, 2, 11, 21]
    assert events[0]["documentKey"]["_id"] == 2

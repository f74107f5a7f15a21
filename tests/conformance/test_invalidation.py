"""Invalidated streams: how they end, and how clients start after them (docs/protocol.md#events)."""

from typing import Any

import pytest
from pymongo.database import Database

from tests.conformance.data import shard_over_three
from tests.conformance.streams import Event, Stream, kinds
from tests.harness.clusters import Client, TestCluster

Data = Database[dict[str, Any]]


def to_the_end(stream: Stream) -> list[Event]:
    return stream.until(lambda stream: not stream.id)


@pytest.mark.parametrize("how", ["drop", "rename", "rename onto", "dropDatabase"])
def test_a_collection_stream_ends_with_a_drop_or_rename(client: Client, db: Data, how: str) -> None:
    db.a.insert_one({"_id": 1})
    db.other.insert_one({"_id": 1})
    with Stream(client, db.name, "a") as stream:
        db.a.insert_one({"_id": 2})
        if how == "drop":
            db.a.drop()
        elif how == "rename":
            db.a.rename("b")
        elif how == "rename onto":
            db.other.rename("a", dropTarget=True)
        else:
            client.drop_database(db.name)
        db.a.insert_one({"_id": "later"})
        events = to_the_end(stream)
    cause = {"rename onto": "rename", "dropDatabase": "drop"}.get(how, how)
    # Renaming onto a collection may drop it first, which also ends its stream.
    assert kinds(events) in (["insert", cause, "invalidate"], ["insert", "drop", "invalidate"])
    assert stream.batch == []
    assert stream.pbrt == events[-1]["_id"]
    assert list(stream.reply["cursor"]) == ["id", "ns", "nextBatch", "postBatchResumeToken"]
    assert stream.reply["cursor"]["id"] == 0
    assert stream.pbrts == sorted(stream.pbrts)


@pytest.mark.parametrize("stages", [[], [{"$match": {"operationType": {"$ne": "update"}}}]])
@pytest.mark.parametrize("how", ["moved", "sharded"])
def test_an_incarnation_on_another_shard_ends_the_stream_again(
    client: Client, db: Data, cluster: TestCluster, how: str, stages: list[dict[str, Any]]
) -> None:
    """Each drop ends the stream, wherever it happens, if an event of the shard precedes it."""
    shards = list(cluster.shards)[:3]
    client.admin.command("enableSharding", db.name, primaryShard=shards[0])
    with Stream(client, db.name, "a") as stream:
        db.a.insert_one({"_id": 1})
        db.a.drop()
        ended = to_the_end(stream)[-1]
    for _ in range(2):
        if how == "moved":
            client.drop_database(db.name)
            client.admin.command("enableSharding", db.name, primaryShard=shards[1])
        else:
            shard_over_three(db, "a", shards)
        db.a.insert_many([{"_id": k, "k": k} for k in (1, 11, 21)])
        db.a.drop()
    with Stream(client, db.name, "a", {"startAfter": ended["_id"]}, stages) as stream:
        events = to_the_end(stream)
    assert kinds(events)[:4] == ["insert"] * 3 + ["drop"]
    assert {*kinds(events)[4:]} <= {"drop", "invalidate"}
    assert kinds(events)[-1] == "invalidate"


@pytest.mark.parametrize("expanded", [False, True])
def test_a_creation_counts_where_it_is_shown(
    client: Client, db: Data, cluster: TestCluster, expanded: bool
) -> None:
    """A drop is its shard's first event unless the stream shows the creation before it."""
    first, second = list(cluster.shards)[:2]
    client.admin.command("enableSharding", db.name, primaryShard=first)
    with Stream(client, db.name, "a") as stream:
        db.create_collection("a")
        db.a.drop()
        ended = to_the_end(stream)[-1]
    client.drop_database(db.name)
    client.admin.command("enableSharding", db.name, primaryShard=second)
    db.create_collection("a")
    db.a.drop()
    db.a.insert_one({"_id": 1})
    db.a.drop()
    options = {"startAfter": ended["_id"], "showExpandedEvents": expanded}
    with Stream(client, db.name, "a", options) as stream:
        events = to_the_end(stream)
    if expanded:
        assert kinds(events) == ["create", "drop", "invalidate"]
    else:
        assert kinds(events) == ["drop", "insert", "drop", "invalidate"]


def test_start_after_a_dropped_database_continues(client: Client, db: Data) -> None:
    with Stream(client, db.name) as stream:
        db.a.insert_one({"_id": 1})
        client.drop_database(db.name)
        ended = to_the_end(stream)[-1]
    db.a.insert_one({"_id": 2})
    with Stream(client, db.name, 1, {"startAfter": ended["_id"]}) as stream:
        events = stream.until(lambda stream: "insert" in kinds(stream.events))
    assert kinds(events)[-1] == "insert"
    assert "invalidate" not in kinds(events)


def test_a_filtered_invalidate_still_ends_the_stream(client: Client, db: Data) -> None:
    only_inserts = [{"$match": {"operationType": "insert"}}]
    with Stream(client, db.name, "a", {}, only_inserts) as stream:
        db.a.insert_one({"_id": 1})
        db.a.drop()
        events = to_the_end(stream)
    assert kinds(events) == ["insert"]
    # The token is the invalidate's, so startAfter accepts it.
    db.a.insert_one({"_id": 2})
    with Stream(client, db.name, "a", {"startAfter": stream.pbrt}, only_inserts) as stream:
        assert [event["documentKey"] for event in stream.read(1)] == [{"_id": 2}]


@pytest.mark.parametrize("collation", [None, {"locale": "simple"}])
def test_a_dropped_collection_s_stream_can_be_resumed(
    client: Client, db: Data, collation: dict[str, Any] | None
) -> None:
    """Resuming gives the remaining events and the invalidate, even if the collection is gone."""
    with Stream(client, db.name, "a") as stream:
        db.a.insert_many([{"_id": 1}, {"_id": 2}])
        first = stream.read(1)[0]
    db.a.drop()
    fields = {} if collation is None else {"collation": collation}
    for _ in range(2):
        resume = {"resumeAfter": first["_id"]}
        with Stream(client, db.name, "a", resume, **fields) as stream:
            assert kinds(to_the_end(stream)) == ["insert", "drop", "invalidate"]
        db.a.insert_one({"made": "anew"})

"""The plain events of DDL, field by field; test_ddl.py has the others (docs/protocol.md#events)."""

from typing import Any

import pytest
from bson import Binary
from pymongo.database import Database
from pymongo.operations import IndexModel

from tests.conformance.data import Documents
from tests.conformance.event_heads import EXPANDED, EXPANDED_HEAD, HEAD, only, watched
from tests.conformance.streams import kinds, now
from tests.harness.clusters import Client, TestCluster, on_real_servers

rule = pytest.mark.rule
Data = Database[dict[str, Any]]


@rule("Events", "drop")
@rule("Events", "rename")
@rule("Events", "dropDatabase")
@rule("Events", "invalidate")
@rule("Events", "invalidate: its cause's token, with fromInvalidate")
def test_drops_and_renames_are_shown_without_expanded_events(client: Client, db: Data) -> None:
    db.a.insert_one({"_id": 1})
    with watched(client, db) as stream:
        db.a.rename("b")
        db.b.drop()
        db.c.insert_one({"_id": 1})
        client.drop_database(db.name)
        events = stream.until(lambda stream: not stream.id)
    assert kinds(events[:3]) == ["rename", "drop", "insert"]
    # Dropping a database drops its collections, on every shard that has the database.
    assert kinds(events[3:])[-1] == "invalidate"
    assert {*kinds(events[3:])} == {"drop", "dropDatabase", "invalidate"}
    renamed, dropped = events[:2]
    assert list(renamed) == ["to", *HEAD, "ns"]
    assert renamed["to"] == {"db": db.name, "coll": "b"}
    assert renamed["ns"] == {"db": db.name, "coll": "a"}
    assert list(dropped) == [*HEAD, "ns"]
    assert dropped["ns"] == {"db": db.name, "coll": "b"}
    cause = next(event for event in events if event["operationType"] == "dropDatabase")
    assert list(cause) == [*HEAD, "ns"]
    assert cause["ns"] == {"db": db.name}
    invalidate = next(event for event in events if event["operationType"] == "invalidate")
    assert list(invalidate) == HEAD
    assert invalidate["clusterTime"] == cause["clusterTime"]
    before, after = cause["_id"]["_data"], invalidate["_id"]["_data"]
    # The tokens differ in the boolean only: 6E is false, 6F is true.
    differing = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert differing == [("E", "F")]


@rule("Events", "create (showExpandedEvents)")
@rule("Events", "createIndexes (showExpandedEvents)")
@rule("Events", "dropIndexes (showExpandedEvents)")
@rule("Events", "modify (showExpandedEvents)")
@rule("Events", "collectionUUID and operationDescription (expanded)")
def test_expanded_events_show_ddl(client: Client, db: Data) -> None:
    with watched(client, db, EXPANDED) as stream:
        db.create_collection("a")
        db.a.create_indexes([IndexModel([("x", 1)], name="x1"), IndexModel([("y", 1)], name="y1")])
        db.a.drop_index("x1")
        db.command("collMod", "a", validator={"x": {"$type": "int"}})
        db.a.insert_one({"_id": 1, "x": 1})
        db.a.rename("b")
        events = stream.past(now(client))
    created = only(events, "create")
    assert list(created) == [*EXPANDED_HEAD, "ns", "operationDescription"]
    assert created["ns"] == {"db": db.name, "coll": "a"}
    assert created["operationDescription"]["idIndex"]["name"] == "_id_"
    indexed = [event for event in events if event["operationType"] == "createIndexes"]
    names = [
        index["name"] for event in indexed for index in event["operationDescription"]["indexes"]
    ]
    assert sorted(names) == ["x1", "y1"]
    dropped = only(events, "dropIndexes")
    assert [index["name"] for index in dropped["operationDescription"]["indexes"]] == ["x1"]
    modified = [event for event in events if event["operationType"] == "modify"]
    assert modified[0]["operationDescription"] == {"validator": {"x": {"$type": "int"}}}
    assert "stateBeforeChange" in modified[0]
    renamed = only(events, "rename")
    assert renamed["operationDescription"]["to"] == {"db": db.name, "coll": "b"}
    uuids = {bytes(event["collectionUUID"]) for event in events}
    assert len(uuids) == 1
    assert all(isinstance(event["collectionUUID"], Binary) for event in events)
    inserted = only(events, "insert")
    assert list(inserted) == [*EXPANDED_HEAD, "fullDocument", "ns", "documentKey"]


@rule("Events", "expanded events and their fields are shown only on request")
def test_streams_show_no_expanded_events_by_default(client: Client, db: Data) -> None:
    with watched(client, db) as stream:
        db.create_collection("a")
        db.a.create_index("x")
        db.a.insert_one({"_id": 1})
        db.a.drop_indexes()
        db.command("collMod", "a", validator={})
        db.create_collection("v", viewOn="a", pipeline=[])
        events = stream.past(now(client))
    assert kinds(events) == ["insert"]
    assert not {"collectionUUID", "operationDescription"} & events[0].keys()


@rule("Events", "creating, modifying and dropping views makes events (showExpandedEvents)")
def test_view_ddl_is_shown_as_expanded_events(client: Client, db: Data) -> None:
    db.create_collection("a")
    with watched(client, db, EXPANDED) as stream:
        db.create_collection("v", viewOn="a", pipeline=[{"$match": {"x": 1}}])
        db.v.drop()
        events = [event for event in stream.past(now(client)) if event["ns"].get("coll") == "v"]
    assert kinds(events) == ["create", "drop"]
    assert events[0]["operationDescription"] == {
        "viewOn": "a",
        "pipeline": [{"$match": {"x": 1}}],
    }


@rule("Events", "shardCollection (showExpandedEvents)")
def test_shard_collection_is_an_expanded_event(client: Client, db: Data) -> None:
    db.a.insert_one({"_id": 1, "k": 1})
    db.a.create_index("k")
    client.admin.command("enableSharding", db.name)
    with watched(client, db, EXPANDED) as stream:
        client.admin.command("shardCollection", f"{db.name}.a", key={"k": 1})
        events = stream.until(lambda stream: "shardCollection" in kinds(stream.events))
    event = only(events, "shardCollection")
    assert list(event) == [*EXPANDED_HEAD, "ns", "operationDescription"]
    assert event["ns"] == {"db": db.name, "coll": "a"}
    assert event["operationDescription"]["shardKey"] == {"k": 1}


@on_real_servers("refineCollectionShardKey")
@rule("Events", "refineCollectionShardKey (showExpandedEvents)")
def test_a_refined_shard_key_shows_in_the_document_keys(client: Client, sharded: Documents) -> None:
    sharded.insert_many([{"_id": k, "k": k, "z": k} for k in (1, 11, 21)])
    sharded.create_index([("k", 1), ("_id", 1), ("z", 1)])
    key = {"k": 1, "_id": 1, "z": 1}
    with watched(client, sharded.database, EXPANDED) as stream:
        client.admin.command("refineCollectionShardKey", sharded.full_name, key=key)
        sharded.insert_one({"_id": 12, "k": 12, "z": 5})
        sharded.delete_one({"_id": 21, "k": 21, "z": 21})
        events = stream.past(now(client))
    if client.server_info()["versionArray"][:2] < [6, 1]:
        assert kinds(events) == ["insert", "delete"]
    else:
        assert only(events, "refineCollectionShardKey")["operationDescription"]["shardKey"] == key
    inserted, deleted = only(events, "insert"), only(events, "delete")
    assert list(inserted["documentKey"].items()) == [("k", 12), ("_id", 12), ("z", 5)]
    assert list(deleted["documentKey"].items()) == [("k", 21), ("_id", 21), ("z", 21)]


@on_real_servers("reshardCollection")
@rule("Events", "reshardCollection (showExpandedEvents)")
def test_resharding_is_an_expanded_event(
    client: Client, cluster: TestCluster, sharded: Documents
) -> None:
    if cluster.real:  # resharding takes at least five minutes by default
        with cluster.direct("config") as config:
            config.admin.command("setParameter", 1, reshardingMinimumOperationDurationMillis=0)
    documents = [{"_id": k, "k": k, "z": -k} for k in (1, 11, 21)]
    sharded.insert_many(documents)
    sharded.create_index("z")
    with watched(client, sharded.database, EXPANDED) as stream:
        client.admin.command(
            "reshardCollection", sharded.full_name, key={"z": 1}, numInitialChunks=1
        )
        sharded.insert_one({"_id": 2, "k": 2, "z": 5})
        events = stream.until(lambda stream: "insert" in kinds(stream.events))
    event = only(events, "reshardCollection")
    description = event["operationDescription"]
    assert description["shardKey"] == {"z": 1}
    assert isinstance(description["reshardUUID"], Binary)
    inserted = only(events, "insert")
    assert list(inserted["documentKey"].items()) == [("z", 5), ("_id", 2)]
    assert inserted["collectionUUID"] == description["reshardUUID"]
    assert sorted(found["_id"] for found in sharded.find()) == [1, 2, 11, 21]


@rule("Events", "a sharded collection's DDL comes once per shard that has it")
def test_ddl_is_shown_once_per_shard_with_the_collection(
    client: Client, sharded: Documents
) -> None:
    sharded.insert_many([{"_id": k, "k": k} for k in (1, 11, 21)])
    with watched(client, sharded.database, EXPANDED) as stream:
        sharded.create_index("v", name="v1")
        sharded.drop_index("v1")
        sharded.drop()
        events = stream.past(now(client))
    for kind in ("createIndexes", "dropIndexes", "drop"):
        assert kinds(events).count(kind) == 3, kind

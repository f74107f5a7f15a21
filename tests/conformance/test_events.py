"""Every kind of event, field by field and in order (docs/protocol.md#events)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Binary, Timestamp
from pymongo.database import Database
from pymongo.operations import IndexModel, InsertOne, UpdateOne

from tests.conformance.data import Documents
from tests.conformance.streams import CLUSTER, Event, Stream, kinds, next_tick, now
from tests.harness.clusters import Client, TestCluster

rule = pytest.mark.rule
Data = Database[dict[str, Any]]

EXPANDED = {"showExpandedEvents": True}
HEAD = ["_id", "operationType", "clusterTime", "wallTime"]
EXPANDED_HEAD = ["_id", "operationType", "clusterTime", "collectionUUID", "wallTime"]


def watched(
    client: Client, db: Data, options: dict[str, Any] | None = None, target: str | int = 1
) -> Stream:
    return Stream(client, db.name, target, options)


def only(events: list[Event], kind: str) -> Event:
    """Return the only event of this kind."""
    [event] = [event for event in events if event["operationType"] == kind]
    return event


def check_head(event: Event) -> None:
    assert isinstance(event["_id"]["_data"], str)
    assert isinstance(event["clusterTime"], Timestamp)
    happened = event["wallTime"].replace(tzinfo=UTC)
    assert abs(happened - datetime.now(UTC)) < timedelta(minutes=5)


@rule("Events", "insert")
@rule("Events", "wallTime and clusterTime")
def test_insert(client: Client, db: Data) -> None:
    with watched(client, db) as stream:
        db.a.insert_one({"_id": 1, "b": {"c": [1, None]}})
        [event] = stream.read(1)
    assert list(event) == [*HEAD, "fullDocument", "ns", "documentKey"]
    assert event["operationType"] == "insert"
    assert event["ns"] == {"db": db.name, "coll": "a"}
    assert event["documentKey"] == {"_id": 1}
    assert event["fullDocument"] == {"_id": 1, "b": {"c": [1, None]}}
    check_head(event)


@rule("Events", "update: updatedFields, removedFields, truncatedArrays")
@rule("Events", "truncatedArrays [{field, newSize}]")
@rule("Events", "fullDocument: default")
def test_update(client: Client, db: Data) -> None:
    db.a.insert_one({"_id": 1, "a": 1, "b": {"c": 1, "d": 2}, "list": [1, 2, 3, 4], "e": 0})
    with watched(client, db) as stream:
        db.a.update_one({"_id": 1}, {"$set": {"a": 2, "b.c": "x"}, "$unset": {"e": 1, "b.d": 1}})
        db.a.update_one({"_id": 1}, [{"$set": {"list": {"$slice": ["$list", 2]}}}])
        db.a.update_one({"_id": 1}, {"$push": {"list": 9}})
        events = stream.read(3)
    for event in events:
        assert list(event) == [*HEAD, "ns", "documentKey", "updateDescription"]
        assert list(event["updateDescription"]) == [
            "updatedFields",
            "removedFields",
            "truncatedArrays",
        ]
    first, second, third = (event["updateDescription"] for event in events)
    assert first["updatedFields"] == {"a": 2, "b.c": "x"}
    assert sorted(first["removedFields"]) == ["b.d", "e"]
    assert first["truncatedArrays"] == []
    assert second["truncatedArrays"] == [{"field": "list", "newSize": 2}]
    assert third["updatedFields"] == {"list.2": 9}


@rule("Events", "replace")
@rule("Events", "delete")
def test_replace_and_delete(client: Client, db: Data) -> None:
    db.a.insert_one({"_id": 1, "a": 1})
    with watched(client, db) as stream:
        db.a.replace_one({"_id": 1}, {"z": 1})
        db.a.delete_one({"_id": 1})
        replaced, deleted = stream.read(2)
    assert list(replaced) == [*HEAD, "fullDocument", "ns", "documentKey"]
    assert replaced["operationType"] == "replace"
    assert replaced["fullDocument"] == {"_id": 1, "z": 1}
    assert list(deleted) == [*HEAD, "ns", "documentKey"]
    assert deleted["operationType"] == "delete"
    assert deleted["documentKey"] == {"_id": 1}


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
        db.command("collMod", "a", index={"name": "y1", "hidden": True})
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
    assert modified[1]["operationDescription"]["index"]["name"] == "y1"
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


@rule("Events", "refineCollectionShardKey (showExpandedEvents)")
def test_newer_servers_show_refined_shard_keys(newer: Client) -> None:
    collection, key = newer.refined.a, {"k": 1, "z": 1}
    newer.admin.command("shardCollection", collection.full_name, key={"k": 1})
    collection.create_index(list(key.items()))
    with watched(newer, collection.database, EXPANDED) as stream:
        newer.admin.command("refineCollectionShardKey", collection.full_name, key=key)
        [event] = stream.read(1)
    assert list(event) == [*EXPANDED_HEAD, "ns", "operationDescription"]
    assert event["operationType"] == "refineCollectionShardKey"
    assert event["operationDescription"] == {"shardKey": key, "oldShardKey": {"k": 1}}


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


@rule("Events", "documentKey has the shard key first")
@rule("Events", "a shard key change is a delete and an insert")
def test_a_changed_shard_key_is_a_delete_and_an_insert(client: Client, sharded: Documents) -> None:
    with watched(client, sharded.database) as stream:
        sharded.insert_one({"_id": 1, "k": 1, "v": 1})
        sharded.update_one({"_id": 1, "k": 1}, {"$set": {"v": 2}})
        with client.start_session() as session:
            sharded.update_one({"_id": 1, "k": 1}, {"$set": {"k": 21}}, session=session)
        sharded.delete_one({"_id": 1, "k": 21})
        events = stream.read(5)
    assert kinds(events) == ["insert", "update", "delete", "insert", "delete"]
    assert [list(event["documentKey"].items()) for event in events] == [
        [("k", k), ("_id", 1)] for k in (1, 1, 1, 21, 21)
    ]
    gone, back = events[2:4]
    assert (gone["lsid"], gone["txnNumber"]) == (back["lsid"], back["txnNumber"])
    assert back["fullDocument"] == {"_id": 1, "k": 21, "v": 2}


@rule("Events", "rawUpdateDescription with showRawUpdateDescription")
def test_raw_update_descriptions_are_shown_on_request(client: Client, db: Data) -> None:
    db.a.insert_one({"_id": 1, "a": 1, "b": 1})
    with watched(client, db, {"showRawUpdateDescription": True}) as stream:
        db.a.update_one({"_id": 1}, {"$set": {"a": 2}, "$unset": {"b": 1}})
        [event] = stream.read(1)
    assert "updateDescription" not in event
    raw = event["rawUpdateDescription"]
    assert raw["$v"] == 2
    assert raw["diff"] == {"d": {"b": False}, "u": {"a": 2}}


@rule("Events", "internal events with showSystemEvents")
def test_internal_events_are_shown_as_system_events(client: Client, db: Data) -> None:
    shown = {"showSystemEvents": True, **EXPANDED}
    db.create_collection("t", timeseries={"timeField": "at"})
    with watched(client, db, shown) as with_system, watched(client, db) as without:
        db.t.insert_one({"at": datetime.now(UTC), "v": 1})
        end = now(client)
        events = with_system.past(end)
        assert without.past(end) == []
    assert {event["ns"]["coll"] for event in events} == {"system.buckets.t"}


@rule("Events", "a time-series collection's writes are not events")
def test_time_series_writes_make_no_events(client: Client, db: Data) -> None:
    with watched(client, db) as stream:
        db.create_collection("t", timeseries={"timeField": "at"})
        db.t.insert_one({"at": datetime.now(UTC), "v": 1})
        db.t.drop()
        db.a.insert_one({"_id": 1})
        events = stream.past(now(client))
    assert [event["ns"]["coll"] for event in events] == ["a"]


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


@rule("Events", "chunk migration writes are not events")
def test_chunk_migrations_make_no_events(
    client: Client, cluster: TestCluster, sharded: Documents
) -> None:
    sharded.insert_many([{"_id": k, "k": k} for k in range(9)])
    with watched(client, sharded.database) as stream:
        client.admin.command(
            "moveChunk",
            f"{sharded.database.name}.{sharded.name}",
            find={"k": 1, "_id": 1},
            to=list(cluster.shards)[1],
        )
        sharded.update_one({"k": 1, "_id": 1}, {"$set": {"moved": True}})
        events = stream.past(now(client))
    assert kinds(events) == ["update"]


@rule("Events", "fullDocument: updateLookup")
def test_update_lookup_gives_the_current_document(client: Client, sharded: Documents) -> None:
    with watched(client, sharded.database, {"fullDocument": "updateLookup"}) as stream:
        for k in (1, 11, 21):
            sharded.insert_one({"_id": k, "k": k})
            sharded.update_one({"_id": k, "k": k}, {"$set": {"v": 1}})
            sharded.update_one({"_id": k, "k": k}, {"$set": {"v": 2}})
        sharded.delete_one({"_id": 21, "k": 21})
        events = stream.past(now(client))
    updates = [event for event in events if event["operationType"] == "update"]
    assert len(updates) == 6
    for event in updates:
        assert list(event) == [*HEAD, "fullDocument", "ns", "documentKey", "updateDescription"]
        k = event["documentKey"]["k"]
        # The lookup happens when the event is read, possibly after later changes or the delete.
        assert event["fullDocument"] in (
            {"_id": k, "k": k, "v": 1},
            {"_id": k, "k": k, "v": 2},
            None,
        )
    assert all("fullDocument" not in e for e in events if e["operationType"] == "delete")


IMAGES = {"changeStreamPreAndPostImages": {"enabled": True}}


@rule("Events", "fullDocument: whenAvailable")
@rule("Events", "fullDocument: required")
@rule("Events", "fullDocumentBeforeChange: off, whenAvailable, required")
@pytest.mark.parametrize("mode", ["whenAvailable", "required"])
def test_pre_and_post_images_are_shown(client: Client, db: Data, mode: str) -> None:
    db.create_collection("a", **IMAGES)
    db.create_collection("plain")
    options = {"fullDocument": mode, "fullDocumentBeforeChange": mode}
    with Stream(client, db.name, "a", options) as stream:
        db.a.insert_one({"_id": 1, "v": 1})
        db.a.update_one({"_id": 1}, {"$set": {"v": 2}})
        db.a.replace_one({"_id": 1}, {"v": 3})
        db.a.delete_one({"_id": 1})
        events = stream.read(4)
    assert kinds(events) == ["insert", "update", "replace", "delete"]
    shown = [(e.get("fullDocument"), e.get("fullDocumentBeforeChange", "absent")) for e in events]
    versions = [{"_id": 1, "v": version} for version in (1, 2, 3)]
    assert shown == [
        (versions[0], "absent"),
        (versions[1], versions[0]),
        (versions[2], versions[1]),
        (None, versions[2]),
    ]
    if mode == "whenAvailable":
        with Stream(client, db.name, "plain", options) as stream:
            db.plain.insert_one({"_id": 1})
            db.plain.update_one({"_id": 1}, {"$set": {"v": 1}})
            event = stream.read(2)[1]
        assert event["fullDocument"] is None
        assert event["fullDocumentBeforeChange"] is None


@rule("Events", "fullDocumentBeforeChange: off, whenAvailable, required")
def test_images_are_hidden_unless_requested(client: Client, db: Data) -> None:
    db.create_collection("a", **IMAGES)
    with Stream(client, db.name, "a", {"fullDocumentBeforeChange": "off"}) as stream:
        db.a.insert_one({"_id": 1})
        db.a.update_one({"_id": 1}, {"$set": {"v": 1}})
        event = stream.read(2)[1]
    assert not {"fullDocument", "fullDocumentBeforeChange"} & event.keys()


@rule("Events", "matchCollectionUUIDForUpdateLookup")
def test_a_lookup_may_require_the_same_collection_uuid(newer: Client) -> None:
    """The option is new in 8.0; the embedded cluster's version 2 shards support it."""
    db = newer["lookups"]
    db.a.insert_one({"_id": 1})
    options = {"fullDocument": "updateLookup", "matchCollectionUUIDForUpdateLookup": True}
    start = next_tick(now(newer))
    db.a.update_one({"_id": 1}, {"$set": {"v": 1}})
    db.a.drop()
    db.a.insert_one({"_id": 1, "other": True})
    shown = []
    for match in (True, False):
        chosen = {
            **options,
            "matchCollectionUUIDForUpdateLookup": match,
            "startAtOperationTime": start,
        }
        with Stream(newer, db.name, 1, chosen) as stream:
            event = next(e for e in stream.read(3) if e["operationType"] == "update")
        shown.append(event["fullDocument"])
    assert shown == [None, {"_id": 1, "other": True}]


@rule("Events", "matchCollectionUUIDForUpdateLookup")
def test_older_shards_refuse_the_uuid_option(client: Client) -> None:
    if client.server_info()["versionArray"][0] >= 8:
        pytest.skip("these servers support it")
    from tests.conformance.streams import refused

    stage = {"$changeStream": {"matchCollectionUUIDForUpdateLookup": True}}
    error = refused(client, "test", {"aggregate": "a", "pipeline": [stage], "cursor": {}})
    assert error["code"] == 40415


@rule("Events", "disambiguatedPaths (expanded, version 2)")
def test_newer_servers_show_disambiguated_paths(newer: Client) -> None:
    db = newer["paths"]
    db.a.insert_one({"_id": 1, "a.b": 1, "list": [{"0": 1}], "o": {"0": 1}})
    with Stream(newer, db.name, "a", EXPANDED) as stream:
        db.a.update_one({"_id": 1}, {"$set": {"o.0": 2, "list.0.0": 2}})
        [event] = stream.read(1)
    description = event["updateDescription"]
    assert description["updatedFields"] == {"o.0": 2, "list.0.0": 2}
    assert description["disambiguatedPaths"] == {"o.0": ["o", "0"], "list.0.0": ["list", 0, "0"]}


@rule("Events", "cluster streams never end")
def test_cluster_streams_do_not_end(client: Client, db: Data) -> None:
    with Stream(client, "admin", 1, CLUSTER) as stream:
        db.a.insert_one({"_id": 1})
        db.a.rename("b")
        db.b.drop()
        db.c.insert_one({"_id": 1})
        client.drop_database(db.name)
        db.c.insert_one({"_id": 2})
        events = stream.past(now(client))
        assert stream.id
    assert "invalidate" not in kinds(events)
    assert {"insert", "rename", "drop", "dropDatabase"} <= {*kinds(events)}


@rule("Events", "upserts, findAndModify, bulk and retryable writes make the events of plain writes")
def test_every_kind_of_write_makes_the_same_events(client: Client, db: Data) -> None:
    with watched(client, db) as stream:
        db.a.update_one({"_id": 1}, {"$set": {"v": 1}}, upsert=True)
        db.a.replace_one({"_id": 2}, {"v": 2}, upsert=True)
        db.a.find_one_and_update({"_id": 1}, {"$set": {"v": 3}})
        db.a.find_one_and_replace({"_id": 2}, {"w": 1})
        db.a.find_one_and_delete({"_id": 2})
        db.a.bulk_write([InsertOne({"_id": 3}), UpdateOne({"_id": 3}, {"$set": {"v": 1}})])
        db.a.update_many({}, {"$inc": {"v": 1}})
        db.a.delete_many({})
        events = stream.past(now(client))
    assert kinds(events) == [
        *("insert", "insert", "update", "replace", "delete", "insert", "update"),
        *("update", "update", "delete", "delete"),
    ]
    assert not any({"lsid", "txnNumber"} & event.keys() for event in events)


@rule("Events", "a write without effect makes no event")
def test_writes_without_effect_make_no_events(client: Client, db: Data) -> None:
    db.a.insert_one({"_id": 1, "v": 1})
    with watched(client, db) as stream:
        db.a.update_one({"_id": 1}, {"$set": {"v": 1}})
        db.a.update_one({"_id": 9}, {"$set": {"v": 1}})
        db.a.delete_one({"_id": 9})
        assert stream.past(now(client)) == []


@rule("Events", "names match exactly: no patterns, no parts, the same case")
@pytest.mark.parametrize("name", ["a", "a.b", "a+", "a|b", "[a]", "A", "ä-ß", "a b", "(a)*"])
def test_namespaces_match_exactly(client: Client, db: Data, name: str) -> None:
    names = ["a", "a.b", "aa", "a+", "a|b", "[a]", "A", "b", "axb", "ä-ß", "a b", "(a)*"]
    with watched(client, db, target=name) as stream:
        for each in names:
            db[each].insert_one({"_id": each})
        events = stream.past(now(client))
    assert [event["documentKey"]["_id"] for event in events] == [name]
    assert events[0]["ns"] == {"db": db.name, "coll": name}


@rule(
    "Events", "cluster streams omit admin, config and local; all streams omit system. collections"
)
def test_internal_namespaces_are_hidden(client: Client, cluster: TestCluster, db: Data) -> None:
    with Stream(client, "admin", 1, CLUSTER) as everything, watched(client, db) as one:
        client.config.settings.update_one(
            {"_id": "conformance"}, {"$inc": {"runs": 1}}, upsert=True
        )
        db.create_collection("v", viewOn="a", pipeline=[])
        db.a.insert_one({"_id": 1})
        end = now(client)
        events = [*everything.past(end), *one.past(end)]
    assert {(event["ns"]["db"], event["ns"]["coll"]) for event in events} == {(db.name, "a")}


@rule("Events", "names match exactly: no patterns, no parts, the same case")
@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ({"ns.coll": "a"}, ["insert", "update", "rename"]),
        ({"ns": {"$exists": True}, "to.coll": "b"}, ["rename"]),
        ({"documentKey._id": 1}, ["insert", "update"]),
        ({"documentKey": {"_id": 1}}, ["insert", "update"]),
        ({"updateDescription.updatedFields.v": {"$gt": 1}}, ["update"]),
        ({"updateDescription.removedFields": "w"}, ["update"]),
        ({"operationType": {"$nin": ["insert", "update"]}}, ["rename", "drop"]),
        ({"operationType": {"$not": {"$eq": "drop"}}}, ["insert", "update", "rename"]),
        ({"clusterTime": {"$type": "timestamp"}}, ["insert", "update", "rename", "drop"]),
        ({"clusterTime": {"$lt": Timestamp(1, 1)}}, []),
        ({"fullDocument": None}, ["update", "rename", "drop"]),
        ({"$nor": [{"ns.coll": "a"}]}, ["drop"]),
    ],
    ids=str,
)
def test_a_match_sees_the_event_s_fields(
    client: Client, db: Data, match: dict[str, Any], expected: list[str]
) -> None:
    with Stream(client, db.name, 1, {}, [{"$match": match}]) as stream:
        db.a.insert_one({"_id": 1, "v": 1, "w": 1})
        db.a.update_one({"_id": 1}, {"$set": {"v": 2}, "$unset": {"w": 1}})
        db.a.rename("b")
        db.b.drop()
        events = stream.past(now(client))
    assert kinds(events) == expected

"""The events of writes, field by field and in order (docs/protocol.md#events)."""

from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Timestamp
from pymongo.database import Database
from pymongo.operations import InsertOne, UpdateOne

from tests.conformance.data import Documents
from tests.conformance.event_heads import EXPANDED, HEAD, check_head, watched
from tests.conformance.streams import CLUSTER, Stream, kinds, now
from tests.harness.clusters import Client, TestCluster, on_real_servers

rule = pytest.mark.rule
Data = Database[dict[str, Any]]


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


@on_real_servers("time series")
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


@on_real_servers("time series")
@rule("Events", "a time-series collection's writes are not events")
def test_time_series_writes_make_no_events(client: Client, db: Data) -> None:
    with watched(client, db) as stream:
        db.create_collection("t", timeseries={"timeField": "at"})
        db.t.insert_one({"at": datetime.now(UTC), "v": 1})
        db.t.drop()
        db.a.insert_one({"_id": 1})
        events = stream.past(now(client))
    assert [event["ns"]["coll"] for event in events] == ["a"]


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

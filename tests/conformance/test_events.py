"""Events beyond those of the recorded workload (docs/protocol.md#events).

tests/recordings/test_workload.py has the plain ones, byte for byte.
"""

from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Binary
from pymongo.database import Database
from pymongo.errors import OperationFailure
from pymongo.operations import InsertOne, UpdateOne

from tests.conformance.data import Documents
from tests.conformance.streams import (
    CLUSTER,
    Event,
    Stream,
    kinds,
    next_tick,
    now,
    opening,
    refused,
)
from tests.harness.clusters import Client, TestCluster, on_real_servers

rule = pytest.mark.rule
Data = Database[dict[str, Any]]
EXPANDED = {"showExpandedEvents": True}


def about(event: Event) -> tuple[Any, ...]:
    return event["operationType"], event["ns"]["coll"], event.get("operationDescription")


@rule("Events", "upserts, findAndModify, bulk and retryable writes make the events of plain writes")
@rule("Events", "a write without effect makes no event")
def test_every_kind_of_write_makes_the_same_events(client: Client, db: Data) -> None:
    with Stream(client, db.name) as stream:
        db.a.update_one({"_id": 1}, {"$set": {"v": 1}}, upsert=True)
        db.a.replace_one({"_id": 2}, {"v": 2}, upsert=True)
        db.a.find_one_and_update({"_id": 1}, {"$set": {"v": 3}})
        db.a.find_one_and_replace({"_id": 2}, {"w": 1})
        db.a.find_one_and_delete({"_id": 2})
        db.a.bulk_write([InsertOne({"_id": 3}), UpdateOne({"_id": 3}, {"$set": {"v": 1}})])
        db.a.update_many({}, {"$inc": {"v": 1}})
        db.a.update_one({"_id": 3}, {"$set": {"v": 2}})
        db.a.update_one({"_id": 9}, {"$set": {"v": 1}})
        db.a.delete_one({"_id": 9})
        db.a.delete_many({})
        events = stream.past(now(client))
    assert kinds(events) == [
        *("insert", "insert", "update", "replace", "delete", "insert", "update"),
        *("update", "update", "delete", "delete"),
    ]
    assert not any({"lsid", "txnNumber"} & event.keys() for event in events)


@rule("Events", "rawUpdateDescription with showRawUpdateDescription")
def test_raw_update_descriptions_are_shown_on_request(client: Client, db: Data) -> None:
    db.a.insert_one({"_id": 1, "a": 1, "b": 1})
    with Stream(client, db.name, 1, {"showRawUpdateDescription": True}) as stream:
        db.a.update_one({"_id": 1}, {"$set": {"a": 2}, "$unset": {"b": 1}})
        [event] = stream.read(1)
    assert "updateDescription" not in event
    raw = event["rawUpdateDescription"]
    assert raw["$v"] == 2
    assert raw["diff"] == {"d": {"b": False}, "u": {"a": 2}}


@rule("Events", "names match exactly: no patterns, no parts, the same case")
@rule("Opening", "on a system. collection: 73")
@rule("Opening", "missing collections and databases can be watched, which does not create them")
def test_namespaces_match_exactly(client: Client, db: Data) -> None:
    """Only names that begin with ``system.`` are reserved."""
    names = ["a", "a.b", "aa", "a+", "a|b", "[a]", "A", "b", "axb", "ä-ß", "a b", "(a)*"]
    names += ["systemindexes", "system_users", "a.system"]
    streams = {name: Stream(client, db.name, name) for name in names}
    assert db.name not in client.list_database_names()
    for name in names:
        db[name].insert_one({"_id": name})
    end = now(client)
    for name, stream in streams.items():
        with stream:
            [event] = stream.past(end)
        assert event["documentKey"]["_id"] == name
        assert event["ns"] == {"db": db.name, "coll": name}


@rule(
    "Events", "cluster streams omit admin, config and local; all streams omit system. collections"
)
def test_internal_namespaces_are_hidden(client: Client, db: Data) -> None:
    with Stream(client, "admin", 1, CLUSTER) as everything, Stream(client, db.name) as one:
        client.config.settings.update_one(
            {"_id": "conformance"}, {"$inc": {"runs": 1}}, upsert=True
        )
        db.create_collection("v", viewOn="a", pipeline=[])
        db.a.insert_one({"_id": 1})
        end = now(client)
        events = [*everything.past(end), *one.past(end)]
    assert {(event["ns"]["db"], event["ns"]["coll"]) for event in events} == {(db.name, "a")}


@rule("Events", "creating, modifying and dropping views makes events (showExpandedEvents)")
@rule("Resuming", "resuming after any event's token gives the rest of the history")
def test_views_are_shown_on_database_and_collection_streams(
    client: Client, cluster: TestCluster, db: Data
) -> None:
    db.create_collection("a")
    with (
        Stream(client, db.name, 1, EXPANDED) as everything,
        Stream(client, db.name, "a", EXPANDED) as base,
        Stream(client, db.name, "v", EXPANDED) as same_name,
    ):
        db.create_collection("v", viewOn="a", pipeline=[])
        if cluster.real:  # embedded servers do not change views
            db.command("collMod", "v", viewOn="a", pipeline=[{"$match": {"x": 1}}])
        db.v.drop()
        db.create_collection("v")
        db.a.insert_one({"_id": 1})
        end = now(client)
        events = everything.past(end)
        assert kinds(base.past(end)) == ["insert"]
        assert kinds(same_name.past(end)) == ["create"]
    modified = ("modify", "v", {"viewOn": "a", "pipeline": [{"$match": {"x": 1}}]})
    assert [about(event) for event in events[:-2]] == [
        ("create", "v", {"viewOn": "a", "pipeline": []}),
        *([modified] if cluster.real else []),
        ("drop", "v", None),
    ]
    assert all("collectionUUID" not in event for event in events[:-2])
    for number, event in enumerate(events):
        resume = {**EXPANDED, "resumeAfter": event["_id"]}
        with Stream(client, db.name, 1, resume) as stream:
            assert stream.read(len(events) - number - 1) == events[number + 1 :]


@on_real_servers("collMod of views")
@rule("Events", "a view's pipeline has no change stream: 167")
def test_a_view_s_pipeline_cannot_have_a_change_stream(client: Client, db: Data) -> None:
    db.create_collection("v", viewOn="a", pipeline=[])
    pipeline: list[dict[str, Any]] = [{"$changeStream": {}}]
    for command in (
        {"create": "w", "viewOn": "a", "pipeline": pipeline},
        {"collMod": "v", "viewOn": "a", "pipeline": pipeline},
    ):
        with pytest.raises(OperationFailure) as caught:
            db.command(command)
        assert caught.value.code == 167


@on_real_servers("time series")
@rule("Events", "a time-series collection's DDL is that of its view (showExpandedEvents)")
@rule("Events", "a time-series collection's writes are not events")
@rule("Events", "internal events with showSystemEvents")
@rule("Opening", "on a time-series collection: 166")
def test_time_series_are_shown_as_views(client: Client, db: Data) -> None:
    with (
        Stream(client, db.name) as classic,
        Stream(client, db.name, 1, EXPANDED) as everything,
        Stream(client, db.name, "t", EXPANDED) as same_name,
        Stream(client, db.name, 1, {**EXPANDED, "showSystemEvents": True}) as system,
    ):
        db.create_collection("t", timeseries={"timeField": "at"})
        db.t.insert_one({"at": datetime.now(UTC), "v": 1})
        error = refused(client, db.name, opening({}, aggregate="t"))
        db.command("collMod", "t", timeseries={"granularity": "minutes"})
        db.t.create_index("v")
        db.t.drop()
        end = now(client)
        events = everything.past(end)
        assert classic.past(end) == same_name.past(end) == []
        buckets = [e for e in system.past(end) if e["ns"]["coll"] == "system.buckets.t"]
    assert [event[:2] for event in map(about, events)] == [
        ("create", "t"),
        ("modify", "t"),
        ("drop", "t"),
    ]
    for event, seconds in zip(events, (3600, 86400), strict=False):
        description = event["operationDescription"]
        assert description["viewOn"] == "system.buckets.t"
        [stage] = description["pipeline"]
        unpack = stage["$_internalUnpackBucket"]
        assert (unpack["timeField"], unpack["bucketMaxSpanSeconds"]) == ("at", seconds)
    assert "insert" in kinds(buckets)
    assert (error["code"], error["codeName"]) == (166, "CommandNotSupportedOnView")
    assert error["errmsg"] == f"Namespace {db.name}.t is a timeseries collection"


@rule("Events", "shardCollection (showExpandedEvents)")
def test_shard_collection_is_an_expanded_event(client: Client, db: Data) -> None:
    db.a.insert_one({"_id": 1, "k": 1})
    db.a.create_index("k")
    client.admin.command("enableSharding", db.name)
    with Stream(client, db.name, 1, EXPANDED) as stream:
        client.admin.command("shardCollection", f"{db.name}.a", key={"k": 1})
        events = stream.until(lambda stream: "shardCollection" in kinds(stream.events))
    [event] = [each for each in events if each["operationType"] == "shardCollection"]
    assert event["ns"] == {"db": db.name, "coll": "a"}
    assert event["operationDescription"]["shardKey"] == {"k": 1}


@on_real_servers("reshardCollection")
@rule("Events", "reshardCollection (showExpandedEvents)")
def test_resharding_is_an_expanded_event(
    client: Client, cluster: TestCluster, sharded: Documents
) -> None:
    if cluster.real:  # resharding takes at least five minutes by default
        with cluster.direct("config") as config:
            config.admin.command("setParameter", 1, reshardingMinimumOperationDurationMillis=0)
    sharded.insert_many([{"_id": k, "k": k, "z": -k} for k in (1, 11, 21)])
    sharded.create_index("z")
    with Stream(client, sharded.database.name, 1, EXPANDED) as stream:
        client.admin.command(
            "reshardCollection", sharded.full_name, key={"z": 1}, numInitialChunks=1
        )
        sharded.insert_one({"_id": 2, "k": 2, "z": 5})
        events = stream.until(lambda stream: "insert" in kinds(stream.events))
    [event] = [each for each in events if each["operationType"] == "reshardCollection"]
    description = event["operationDescription"]
    assert description["shardKey"] == {"z": 1}
    assert isinstance(description["reshardUUID"], Binary)
    assert list(events[-1]["documentKey"].items()) == [("z", 5), ("_id", 2)]
    assert events[-1]["collectionUUID"] == description["reshardUUID"]


# On newer servers.


@rule("Events", "nsType of an expanded create: collection, view, timeseries (8.1+)")
def test_a_create_event_shows_the_kind_of_namespace(newer: Client) -> None:
    db = newer["kinds"]
    with Stream(newer, db.name, 1, EXPANDED) as stream, Stream(newer, db.name) as classic:
        db.create_collection("c")
        db.create_collection("v", viewOn="c", pipeline=[])
        db.c.drop()
        end = now(newer)
        events = stream.past(end)
        assert kinds(classic.past(end)) == ["drop"]
    assert [event.get("nsType") for event in events] == ["collection", "view", None]
    names = list(events[0])
    assert names.index("nsType") == names.index("ns") + 1


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
    error = refused(client, "test", opening({"matchCollectionUUIDForUpdateLookup": True}))
    assert error["code"] == 40415

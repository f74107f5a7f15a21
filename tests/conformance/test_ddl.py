"""DDL beyond the plain cases of test_ddl_events.py: views, time series, options
(docs/protocol.md#events)."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.conformance.streams import Event, Stream, kinds, now
from tests.harness.clusters import Client, TestCluster, on_real_servers

rule = pytest.mark.rule
Data = Database[dict[str, Any]]

EXPANDED = {"showExpandedEvents": True}
VIEWS = "creating, modifying and dropping views makes events (showExpandedEvents)"
TIME_SERIES = "a time-series collection's DDL is that of its view (showExpandedEvents)"
RESUMING = "resuming after any event's token gives the rest of the history"


def about(event: Event) -> tuple[Any, ...]:
    return event["operationType"], event["ns"]["coll"], event.get("operationDescription")


@on_real_servers("collMod of views")
@rule("Events", VIEWS)
@rule("Resuming", RESUMING)
def test_views_are_shown_on_database_and_collection_streams(client: Client, db: Data) -> None:
    db.create_collection("a")
    with (
        Stream(client, db.name, 1, EXPANDED) as everything,
        Stream(client, db.name, "a", EXPANDED) as base,
        Stream(client, db.name, "v", EXPANDED) as same_name,
    ):
        db.create_collection("v", viewOn="a", pipeline=[])
        db.command("collMod", "v", viewOn="a", pipeline=[{"$match": {"x": 1}}])
        db.v.drop()
        db.create_collection("v")
        db.a.insert_one({"_id": 1})
        end = now(client)
        events = everything.past(end)
        assert kinds(base.past(end)) == ["insert"]
        assert kinds(same_name.past(end)) == ["create"]
    shown = [about(event) for event in events]
    assert shown[:3] == [
        ("create", "v", {"viewOn": "a", "pipeline": []}),
        ("modify", "v", {"viewOn": "a", "pipeline": [{"$match": {"x": 1}}]}),
        ("drop", "v", None),
    ]
    assert all("collectionUUID" not in event for event in events[:3])
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
@rule("Events", TIME_SERIES)
def test_time_series_ddl_is_shown_as_that_of_a_view(client: Client, db: Data) -> None:
    with (
        Stream(client, db.name, 1, EXPANDED) as everything,
        Stream(client, db.name, "t", EXPANDED) as same_name,
    ):
        db.create_collection("t", timeseries={"timeField": "at"})
        db.t.insert_one({"at": datetime.now(UTC), "v": 1})
        db.command("collMod", "t", timeseries={"granularity": "minutes"})
        db.t.create_index("v")
        db.t.drop()
        end = now(client)
        events = everything.past(end)
        assert same_name.past(end) == []
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


@rule("Events", "nsType of an expanded create: collection, view, timeseries (8.1+)")
def test_older_servers_do_not_show_the_kind_of_namespace(
    client: Client, cluster: TestCluster, db: Data
) -> None:
    if cluster.real and client.server_info()["versionArray"][:2] >= [8, 1]:
        pytest.skip("these servers show them")
    with Stream(client, db.name, 1, EXPANDED) as stream:
        db.create_collection("c")
        [event] = stream.past(now(client))
    assert "nsType" not in event


@on_real_servers("collMod of indexes")
@rule("Events", "modify has the previous options (stateBeforeChange)")
def test_a_modify_event_shows_the_former_options(client: Client, db: Data) -> None:
    db.a.insert_one({"_id": 1, "x": 1})
    db.a.create_index("x", name="x1", expireAfterSeconds=100)
    with Stream(client, db.name, "a", EXPANDED) as stream:
        db.command("collMod", "a", index={"name": "x1", "hidden": True})
        db.command("collMod", "a", index={"name": "x1", "expireAfterSeconds": 200})
        db.command("collMod", "a", validator={"x": 1})
        db.command("collMod", "a", validationLevel="off")
        db.command("collMod", "a", validationAction="warn")
        events = stream.past(now(client))
    before = [event["stateBeforeChange"] for event in events]
    assert [state.get("indexOptions") for state in before] == [
        {"hidden": False},
        {"expireAfterSeconds": 100},
        None,
        None,
        None,
    ]
    for state in before:
        assert state["collectionOptions"].pop("uuid") == events[0]["collectionUUID"]
    validated = {"validator": {"x": 1}, "validationLevel": "strict", "validationAction": "error"}
    assert [state["collectionOptions"] for state in before] == [
        {},
        {},
        {},
        validated,
        {**validated, "validationLevel": "off"},
    ]


@on_real_servers("clustered collections")
@rule("Events", "create (showExpandedEvents)")
def test_a_create_event_shows_the_collection_s_options(client: Client, db: Data) -> None:
    with Stream(client, db.name, 1, EXPANDED) as stream:
        db.create_collection("validated", validator={"x": 1}, validationLevel="moderate")
        db.create_collection("clustered", clusteredIndex={"key": {"_id": 1}, "unique": True})
        db.create_collection("imaged", changeStreamPreAndPostImages={"enabled": True})
        db.implicit.insert_one({"_id": 1})
        events = stream.past(now(client))
    assert kinds(events) == ["create", "create", "create", "create", "insert"]
    index = {"v": 2, "key": {"_id": 1}, "name": "_id_"}
    assert [event["operationDescription"] for event in events[:4]] == [
        {"validator": {"x": 1}, "validationLevel": "moderate", "idIndex": index},
        {"clusteredIndex": {**index, "unique": True}},
        {"changeStreamPreAndPostImages": {"enabled": True}, "idIndex": index},
        {"idIndex": index},
    ]


@on_real_servers("unique indexes")
@rule("Events", "createIndexes (showExpandedEvents)")
def test_index_events_show_indexes_of_all_kinds(client: Client, db: Data) -> None:
    db.create_collection("a")
    wanted: list[tuple[Any, dict[str, Any]]] = [
        ({"h": "hashed"}, {}),
        ({"$**": 1}, {"wildcardProjection": {"a": 1}}),
        ({"g": "2dsphere"}, {"2dsphereIndexVersion": 3}),
        ({"p": 1}, {"partialFilterExpression": {"p": {"$gte": 0}}, "hidden": True}),
        ({"u": 1, "w": -1}, {"unique": True, "sparse": True}),
        ({"t": 1}, {"expireAfterSeconds": 60}),
    ]
    with Stream(client, db.name, "a", EXPANDED) as stream:
        for number, (key, options) in enumerate(wanted):
            db.a.create_index(list(key.items()), name=f"index{number}", **options)
        db.a.drop_index("index3")
        events = stream.past(now(client))
    specifications = [
        {"v": 2, "key": key, "name": f"index{number}", **options}
        for number, (key, options) in enumerate(wanted)
    ]
    shown = [event["operationDescription"]["indexes"] for event in events]
    assert shown == [[each] for each in [*specifications, specifications[3]]]
    assert kinds(events) == ["createIndexes"] * 6 + ["dropIndexes"]


@on_real_servers("unique indexes")
@rule("Events", "createIndexes (showExpandedEvents)")
def test_a_failed_index_build_makes_no_event(client: Client, db: Data) -> None:
    db.a.insert_many([{"x": 1}, {"x": 1}])
    with Stream(client, db.name, "a", EXPANDED) as stream:
        with pytest.raises(OperationFailure):
            db.a.create_index("x", unique=True)
        assert stream.past(now(client)) == []


@on_real_servers("system events")
@rule("Events", "internal events with showSystemEvents")
@rule("Events", "chunk migration writes are not events")
def test_collections_created_by_migrations_are_system_events(
    client: Client, cluster: TestCluster, db: Data
) -> None:
    first, second = list(cluster.shards)[:2]
    client.admin.command("enableSharding", db.name, primaryShard=first)
    client.admin.command("shardCollection", f"{db.name}.a", key={"_id": 1})
    db.a.insert_one({"_id": 1})
    db.a.create_index("x")
    with (
        Stream(client, db.name, "a", EXPANDED) as classic,
        Stream(client, db.name, "a", {**EXPANDED, "showSystemEvents": True}) as system,
    ):
        client.admin.command("moveChunk", f"{db.name}.a", find={"_id": 1}, to=second)
        db.a.insert_one({"_id": 2})
        end = now(client)
        assert kinds(classic.past(end)) == ["insert"]
        events = system.past(end)
    assert {*kinds(events)} == {"create", "createIndexes", "migrateLastChunkFromShard", "insert"}
    [last_chunk] = [e for e in events if e["operationType"] == "migrateLastChunkFromShard"]
    assert last_chunk["operationDescription"] == {"shardId": first}

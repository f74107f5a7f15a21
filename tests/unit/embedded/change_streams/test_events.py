"""Events of single oplog entries: kinds, fields, hidden entries, and both token versions."""

import bson
import pytest
from bson.timestamp import Timestamp

from embedded.change_streams.resume_token import ResumeToken
from embedded.change_streams.update_description import describe_update
from tests.doubles.handmade_host import (
    LSID,
    UUID_A,
    UUID_B,
    WALL,
    HandmadeHost,
    inserted,
)


async def seen(cursor):
    batch = await cursor.next_batch(None, 0)
    return [bson.decode(event.raw) for event in batch.events]


async def kinds(cursor):
    return [event["operationType"] for event in await seen(cursor)]


async def test_fields_of_an_insert_and_their_order():
    host = HandmadeHost()
    ts = host.insert("db.a", {"_id": 1, "x": 2}, o2={"x": 2, "_id": 1})
    [event] = await seen(host.watch())
    token = event.pop("_id")
    assert list(event.items()) == [
        ("operationType", "insert"),
        ("clusterTime", ts),
        ("wallTime", WALL),
        ("fullDocument", {"_id": 1, "x": 2}),
        ("ns", {"db": "db", "coll": "a"}),
        ("documentKey", {"x": 2, "_id": 1}),
    ]
    assert ResumeToken.parse(token) == ResumeToken(
        ts, 1, uuid=UUID_A, event_identifier={"x": 2, "_id": 1}
    )


@pytest.mark.parametrize("version", [1, 2])
async def test_event_identifiers_follow_the_token_version(version):
    host = HandmadeHost(version)
    host.insert("db.a", {"_id": 1})
    host.command("db", {"renameCollection": "db.a", "to": "db.b", "stayTemp": False}, ui=UUID_A)
    host.drop("db", "b")
    host.command("db", {"dropDatabase": 1})
    cursor = host.watch(on=("admin", 1), allChangesForCluster=True)
    tokens = [ResumeToken.parse(event["_id"]) for event in await seen(cursor)]
    assert {token.version for token in tokens} == {version}
    to = {"to": {"db": "db", "coll": "b"}}
    assert [(token.uuid, token.event_identifier) for token in tokens] == (
        [(UUID_A, {"_id": 1}), (UUID_A, None), (UUID_A, None), (None, None)]
        if version == 1
        else [
            (UUID_A, {"operationType": "insert", "documentKey": {"_id": 1}}),
            (UUID_A, {"operationType": "rename", "operationDescription": to}),
            (UUID_A, {"operationType": "drop"}),
            (None, {"operationType": "dropDatabase"}),
        ]
    )


async def test_a_token_of_version_1_keeps_its_version_up_to_its_own_time():
    host = HandmadeHost(2)
    ts = host.transaction([inserted("db.a", key) for key in range(3)])
    host.insert("db.a", {"_id": 9})
    old = ResumeToken(ts, 1, txn_op_index=1, uuid=UUID_A, event_identifier={"_id": 1})
    events = await seen(host.watch(resumeAfter=old.document()))
    assert [event["documentKey"]["_id"] for event in events] == [2, 9]
    assert [ResumeToken.parse(event["_id"]).version for event in events] == [2, 2]


async def test_type_bits_distinguish_a_long_id_from_an_int():
    host = HandmadeHost()
    host.insert("db.a", {"_id": bson.Int64(1)})
    host.insert("db.a", {"_id": 1})
    long, short = await seen(host.watch())
    assert long["_id"]["_typeBits"] == bytes.fromhex("8180")
    assert "_typeBits" not in short["_id"]
    rest = await seen(host.watch(resumeAfter=long["_id"]))
    assert rest == [short]


async def test_updates_are_described():
    host = HandmadeHost()
    host.update("db.a", 1, {"u": {"n": 1}, "d": {"gone": False}, "sin": {"i": {"new": 2}}})
    [event] = await seen(host.watch())
    assert list(event)[-1] == "updateDescription"
    assert event["updateDescription"] == {
        "updatedFields": {"n": 1, "in.new": 2},
        "removedFields": ["gone"],
        "truncatedArrays": [],
    }


async def test_raw_update_descriptions_replace_the_parsed_ones():
    host = HandmadeHost()
    host.update("db.a", 1, {"u": {"n": 1}})
    [event] = await seen(host.watch(showRawUpdateDescription=True))
    assert event["rawUpdateDescription"] == {"$v": 2, "diff": {"u": {"n": 1}}}
    assert "updateDescription" not in event


def test_arrays_and_ambiguous_paths_are_described():
    diff = {"sa": {"a": True, "l": 2, "u0": 5, "s1": {"u": {"b.c": 1}}}, "sm": {"u": {"0": 1}}}
    assert describe_update(diff, disambiguate=True) == {
        "updatedFields": {"a.0": 5, "a.1.b.c": 1, "m.0": 1},
        "removedFields": [],
        "truncatedArrays": [{"field": "a", "newSize": 2}],
        "disambiguatedPaths": {"a.1.b.c": ["a", 1, "b.c"], "m.0": ["m", "0"]},
    }


@pytest.mark.parametrize(("version", "present"), [(1, False), (2, True)])
async def test_disambiguated_paths_are_in_newer_expanded_events(version, present):
    host = HandmadeHost(version)
    host.update("db.a", 1, {"u": {"n": 1}})
    [event] = await seen(host.watch(showExpandedEvents=True))
    assert ("disambiguatedPaths" in event["updateDescription"]) is present


async def test_which_namespaces_a_cluster_stream_shows():
    host = HandmadeHost()
    for ns in ("db.a", "admin.x", "config.x", "local.x", "db.system.js", "adminx.y", "db.$cmd.z"):
        host.insert(ns, {"_id": ns})
    found = await seen(host.watch(on=("admin", 1), allChangesForCluster=True))
    assert [event["documentKey"]["_id"] for event in found] == ["db.a", "adminx.y"]


async def test_which_namespaces_other_streams_show():
    host = HandmadeHost()
    for ns in ("db.a", "db.a.b", "dbx.a", "db.ab", "db.system.buckets.t"):
        host.insert(ns, {"_id": ns})
    assert [e["documentKey"]["_id"] for e in await seen(host.watch())] == [
        "db.a",
        "db.a.b",
        "db.ab",
    ]
    one = await seen(host.watch(on=("db", "a.b")))
    assert [event["documentKey"]["_id"] for event in one] == ["db.a.b"]
    system = await seen(host.watch(showSystemEvents=True))
    assert system[-1]["documentKey"]["_id"] == "db.system.buckets.t"


async def test_migrations_stay_invisible():
    host = HandmadeHost()
    host.insert("db.a", {"_id": 1}, fromMigrate=True)
    host.transaction([{**inserted("db.a", 2), "fromMigrate": True}, inserted("db.a", 3)])
    [event] = await seen(host.watch())
    assert event["documentKey"] == {"_id": 3}
    assert len(await seen(host.watch(showMigrationEvents=True))) == 3


async def test_transactions_are_unwound_in_order():
    host = HandmadeHost()
    host.insert("db.a", {"_id": 0}, lsid=LSID, txnNumber=6, stmtId=0)
    ts = host.transaction([inserted("db.a", 1), inserted("x.y", 2), inserted("db.b", 3, UUID_B)])
    plain, first, last = await seen(host.watch())
    assert "lsid" not in plain
    assert list(first)[:4] == ["txnNumber", "lsid", "_id", "operationType"]
    assert (first["txnNumber"], first["lsid"]) == (7, LSID)
    assert [ResumeToken.parse(e["_id"]).txn_op_index for e in (first, last)] == [0, 2]
    assert first["clusterTime"] == last["clusterTime"] == ts


async def test_chained_and_prepared_transactions_become_events():
    host = HandmadeHost()
    first = host.transaction([inserted("db.a", 1)], more={"partialTxn": True})
    last = host.transaction(
        [inserted("db.a", 2)], more={"count": 2}, prevOpTime={"ts": first, "t": 1}
    )
    host.transaction([inserted("db.a", 3)], more={"prepare": True}, txnNumber=8)
    prepared = host.oplog.last_ts
    host.transaction([inserted("db.a", 4)], more={"prepare": True}, txnNumber=9)
    host.command("admin", {"abortTransaction": 1}, prevOpTime={"ts": host.oplog.last_ts, "t": 1})
    o = {"commitTransaction": 1, "commitTimestamp": prepared}
    commit = host.command("admin", o, lsid=LSID, txnNumber=8, prevOpTime={"ts": prepared, "t": 1})
    events = await seen(host.watch())
    assert [(e["documentKey"]["_id"], e["clusterTime"], e["txnNumber"]) for e in events] == [
        (1, last, 7),
        (2, last, 7),
        (3, commit, 8),
    ]
    assert [ResumeToken.parse(e["_id"]).txn_op_index for e in events] == [0, 1, 0]


async def test_expanded_events_are_shown_only_on_request():
    host = HandmadeHost()
    host.command("db", {"create": "a", "idIndex": {"v": 2}}, ui=UUID_A)
    host.command("db", {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x_1"}, ui=UUID_A)
    host.command("db", {"commitIndexBuild": "a", "indexes": [{"name": "y"}]}, ui=UUID_A)
    spec = {"v": 2, "key": {"x": 1}, "name": "x_1"}
    host.command("db", {"dropIndexes": "a", "index": "x_1"}, ui=UUID_A, o2=spec)
    host.insert("db.system.views", {"_id": "db.v", "viewOn": "a", "pipeline": []}, ui=UUID_B)
    host.write("d", "db.system.views", {"_id": "db.v"}, ui=UUID_B)
    what = {"shardCollection": "db.a", "shardKey": {"x": 1}, "unique": False}
    host.noop(ns="db.a", ui=UUID_A, o2=what)
    assert await kinds(host.watch()) == []
    events = await seen(host.watch(showExpandedEvents=True))
    assert [(e["operationType"], e["ns"]["coll"]) for e in events] == [
        ("create", "a"),
        ("createIndexes", "a"),
        ("createIndexes", "a"),
        ("dropIndexes", "a"),
        ("create", "v"),
        ("drop", "v"),
        ("shardCollection", "a"),
    ]
    assert events[2]["operationDescription"] == {"indexes": [{"name": "y"}]}
    assert events[3]["operationDescription"] == {"indexes": [spec]}
    assert "collectionUUID" not in events[4]
    assert events[6]["operationDescription"] == {"shardKey": {"x": 1}, "unique": False}
    assert events[0]["collectionUUID"] == UUID_A


async def test_a_stream_from_now_shows_no_older_events():
    host = HandmadeHost()
    host.insert("db.a", {"_id": 1})
    cursor = host.watch(since=None)
    host.insert("db.a", {"_id": 2})
    [event] = await seen(cursor)
    assert event["documentKey"] == {"_id": 2}


async def test_a_start_in_the_future_waits_for_it():
    host = HandmadeHost()
    cursor = host.watch(since=Timestamp(1000, 4))
    mark = ResumeToken.high_water_mark(Timestamp(1000, 4), 1).document()
    for key in (2, 3):
        host.insert("db.a", {"_id": key})
        assert await cursor.next_batch(None, 0) == ([], mark, False, False)
    host.insert("db.a", {"_id": 4})
    [event] = await seen(cursor)
    assert event["documentKey"] == {"_id": 4}

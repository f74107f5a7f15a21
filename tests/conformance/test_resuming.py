"""Resuming: the events before and after any cut make up the whole history
(docs/protocol.md#resume-tokens)."""

from typing import Any

import pytest
from pymongo.database import Database

from tests.conformance.conftest import NOOP_SECONDS
from tests.conformance.data import Documents, shard_over_three
from tests.conformance.streams import Event, Stream, kinds, next_tick, now, time_of
from tests.harness.clusters import Client, TestCluster, real_servers_named
from tests.harness.embedded_process import EmbeddedProcess
from tests.harness.routers import start_router

Data = Database[dict[str, Any]]


def rest(client: Client, database: str, start: dict[str, Any], count: int) -> list[Event]:
    """Return the events of a database's stream from a start, once there are ``count``."""
    with Stream(client, database, 1, start) as stream:
        return stream.read(count)


def untimed(events: list[Event]) -> list[Event]:
    """Return events without ``wallTime``.

    A drop has the same token on two shards if they write it at one cluster time; then either comes
    first.
    """
    return [{name: each[name] for name in each if name != "wallTime"} for each in events]


def history(client: Client, sharded: Documents) -> tuple[list[Event], list[dict[str, Any]]]:
    """Make changes of all kinds; return the events and the tokens of all batches."""
    db = sharded.database
    with Stream(client, db.name) as stream:
        for number in range(6):
            sharded.insert_one({"_id": number, "k": number * 5})
        sharded.update_many({}, {"$set": {"v": 1}})
        with client.start_session() as session, session.start_transaction():
            sharded.insert_many([{"_id": 10 + k, "k": k} for k in (1, 11, 21)], session=session)
        sharded.delete_one({"_id": 1, "k": 5})
        sharded.drop()
        db.a.insert_one({"_id": "end"})
        end = now(client)
        pbrts = [stream.pbrt]
        while time_of(stream.pbrt) <= end:
            stream.more(batchSize=2)
            pbrts.append(stream.pbrt)
        return untimed(stream.events), pbrts


def test_resuming_after_every_token_gives_the_rest(client: Client, sharded: Documents) -> None:
    events, pbrts = history(client, sharded)
    assert kinds(events).count("drop") == 3
    tokens = [event["_id"]["_data"] for event in events]
    assert tokens == sorted(tokens)
    name = sharded.database.name
    for number, event in enumerate(events):
        token = event["_id"]
        expected = [each for each in events if each["_id"]["_data"] > token["_data"]]
        option = "startAfter" if number % 2 else "resumeAfter"
        assert untimed(rest(client, name, {option: token}, len(expected))) == expected
    for pbrt in pbrts:
        expected = [each for each in events if each["_id"]["_data"] > pbrt["_data"]]
        assert untimed(rest(client, name, {"resumeAfter": pbrt}, len(expected))) == expected


def test_a_token_of_a_stream_with_fragments_resumes_one_without(
    cluster: TestCluster, client: Client, db: Data
) -> None:
    """The first stream orders events of one time by their types first, the second one by keys."""
    documents = shard_over_three(db, "a", list(cluster.shards))
    split = [{"$changeStreamSplitLargeEvent": {}}]
    documents.insert_many([{"_id": key, "k": key} for key in (1, 15)])
    for number in range(20, 60):
        options = {"startAtOperationTime": next_tick(now(client))}
        with client.start_session() as session, session.start_transaction():
            for key in (1, 15):
                change = {"$set": {"v": number}}
                documents.update_one({"_id": key, "k": key}, change, session=session)
            documents.insert_one({"_id": number, "k": 30}, session=session)
        end = next_tick(now(client))
        with Stream(client, db.name, "a", options, split) as stream:
            *_, inserted, updated = stream.past(end)
        is_last = kinds([inserted, updated]) == ["insert", "update"]
        if is_last and inserted["clusterTime"] == updated["clusterTime"]:
            break
    else:
        raise AssertionError("no two shards have committed at one time")
    # Such a stream can end a mongos 6.0.15, so it is not asked (docs/protocol.md#differences).
    for token, rest_of_time in ((inserted["_id"], [updated]), (updated["_id"], [])):
        with Stream(client, db.name, "a", {"resumeAfter": token}) as stream:
            assert stream.past(end) == rest_of_time


def test_documents_inserted_together_have_one_time(newer: Client) -> None:
    db = newer["together"]
    with Stream(newer, db.name, "a") as stream:
        db.a.insert_many([{"_id": number} for number in range(5)])
        events = stream.read(5)
    assert len({event["clusterTime"] for event in events}) == 1
    assert [event["documentKey"]["_id"] for event in events] == list(range(5))
    assert not any("lsid" in event or "txnNumber" in event for event in events)
    for number, event in enumerate(events, 1):
        assert rest(newer, db.name, {"resumeAfter": event["_id"]}, 5 - number) == events[number:]


def test_a_version_1_token_resumes_on_newer_shards(newer: Client) -> None:
    db = newer["upgraded"]
    with Stream(newer, db.name, "a") as stream:
        start = stream.pbrt["_data"]
        for number in (1, 2, 3):
            db.a.insert_one({"_id": number})
        events = stream.read(3)
    # Tokens that 6.0 made before the upgrade: the same event's, and a high water mark.
    data = events[0]["_id"]["_data"]
    assert (start[18:], data[18:38]) == ("2B0429296E1404", "2B042C0100296E5A1004")
    old = data[:18] + "2B022C0100296E" + data[32:70] + "461E5F6964002B020004"
    assert rest(newer, db.name, {"resumeAfter": {"_data": old}}, 2) == events[1:]
    mark = start[:18] + "2B0229296E04"
    assert rest(newer, db.name, {"resumeAfter": {"_data": mark}}, 3) == events


def test_a_rolled_over_oplog_is_fatal() -> None:
    """Real servers keep at least 990 MB of oplog; the embedded cluster's size is configurable."""
    if real_servers_named():
        pytest.skip("takes more than 990 MB of writes")
    options = {"oplog_size": 60, "noop_interval": NOOP_SECONDS}
    with EmbeddedProcess(2, options) as cluster:
        with (
            start_router(cluster.configdb, cluster.mongos_uri) as router,
            Client(router.uri) as client,
        ):
            with Stream(client, "db", "a") as stream:
                client.db.a.insert_one({"_id": 0})
                token = stream.read(1)[0]["_id"]
            for number in range(1, 150):
                client.db.a.insert_one({"_id": number})
        # A new router has nothing of the stream in memory.
        with start_router(cluster.configdb) as router, Client(router.uri) as client:
            for start in ({"resumeAfter": token}, {"startAtOperationTime": time_of(token)}):
                with Stream(client, "db", "a", start) as stream:
                    error = stream.failure()
                assert (error["code"], error["codeName"]) == (286, "ChangeStreamHistoryLost")
                assert error["errorLabels"] == ["NonResumableChangeStreamError"]
                assert "the resume point may no longer be in the oplog" in error["errmsg"]

"""Debezium's options for heartbeats and for events of large documents."""

import json
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from spark_sink.events.heartbeats import heartbeat, heartbeats, latest_heartbeat
from spark_sink.events.positions import AtTime, FromNow, key_of
from tests.spark.batches import batches
from tests.spark.conftest import Shop

pytestmark = pytest.mark.xdist_group("spark_cluster")


def test_each_interval_has_one_heartbeat() -> None:
    last = None
    found = []
    for second in (100, 103, 109, 110, 111, 125, 134):
        latest = latest_heartbeat(last, AtTime(Timestamp(second, 7)), 10.0)
        found += [bson.decode(each)["clusterTime"].time for each in heartbeats(last, latest)]
        last = latest
    assert found == [110, 125]
    assert latest_heartbeat(last, AtTime(Timestamp(999, 1)), 0.0) is None
    assert latest_heartbeat(None, FromNow(), 10.0) is None
    assert heartbeats(Timestamp(5, 5), None) == []


def test_the_token_of_a_heartbeat_sorts_by_its_time() -> None:
    event = bson.decode(heartbeat(Timestamp(100, 7)))
    token = event["_id"]["_data"]
    assert key_of(AtTime(Timestamp(100, 6))) + "FF" < token
    assert token < key_of(AtTime(Timestamp(100, 7))) + "2B022C"
    assert (event["operationType"], event["clusterTime"]) == ("heartbeat", Timestamp(100, 7))


def test_an_idle_stream_has_heartbeats(shop: Shop) -> None:
    start = f"{shop.created.time},{shop.created.inc}"
    options = {"uri": shop.uri, "database": shop.database, "startAtOperationTime": start}
    shop.insert(3)
    with batches({**options, "heartbeat.interval.ms": 1000}) as query:
        query.until(lambda: query.kinds().count("heartbeat") >= 2, "two heartbeats")
        shop.insert(2)
        query.until(lambda: query.kinds().count("insert") == 5, "the events")
        offset = query.offset
    for number, row in enumerate(query.rows):
        if row["operationType"] == "heartbeat":
            assert all(later["token"] > row["token"] for later in query.rows[number + 1 :])
    times = [row["clusterTime"] for row in query.rows if row["operationType"] == "heartbeat"]
    assert times == sorted(set(times))
    assert {row["op"] for row in query.rows if row["operationType"] == "heartbeat"} == {None}
    with batches(options, offset) as without:
        shop.insert(1)
        without.until(lambda: bool(without.rows), "the event")
        assert "heartbeat" not in without.kinds()
        assert "heartbeat" not in without.offset


def test_events_of_large_documents_are_left_out(shop: Shop) -> None:
    notes = shop.client[shop.database].create_collection(
        "notes", changeStreamPreAndPostImages={"enabled": True}
    )
    start = shop.now()
    notes.insert_many([{"_id": 1, "text": "x" * 10}, {"_id": 2, "text": "x" * 500}])
    notes.update_one({"_id": 1}, {"$set": {"text": "y" * 600}})
    notes.update_one({"_id": 1}, {"$set": {"text": "z" * 9}})
    notes.delete_one({"_id": 2})
    notes.insert_one({"_id": 3})
    options = {
        "uri": shop.uri,
        "database": shop.database,
        "collection": "notes",
        "startAtOperationTime": f"{start.time},{start.inc}",
        "cursor.oversize.handling.mode": "skip",
        "cursor.oversize.skip.threshold": 300,
    }
    images = {"fullDocument": "required", "fullDocumentBeforeChange": "required"}
    assert changes(options) == [
        ("insert", 1),
        ("update", 1),
        ("update", 1),
        ("delete", 2),
        ("insert", 3),
    ]
    assert changes({**options, **images}) == [("insert", 1), ("insert", 3)]


def changes(options: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the operation types and ``_id``s of the events up to the insert of document 3."""

    def found() -> list[tuple[str, int]]:
        rows = [row for row in query.rows if row["op"] is not None]
        return [(row["operationType"], json.loads(row["documentKey"])["_id"]) for row in rows]

    with batches(options) as query:
        query.until(lambda: ("insert", 3) in found(), "the last event")
        return found()

"""Debezium's options for heartbeats and for events of large documents."""

import json
from functools import partial
from typing import Any

import bson
import pytest

from spark_sink.events.positions import AtTime, Position
from spark_sink.options.stream_options import parse_options
from spark_sink.source.event_planner import EventPlanner
from spark_sink.source.task_rows import rows_of_task
from spark_sink.stream.router_client import RouterClient
from tests.spark.batches import batches
from tests.spark.conftest import Shop

pytestmark = pytest.mark.xdist_group("spark_cluster")


def test_an_idle_stream_has_heartbeats(shop: Shop) -> None:
    options = shop.options(**shop.begin)
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
    now = shop.now()
    notes.insert_many([{"_id": 1, "text": "x" * 10}, {"_id": 2, "text": "x" * 500}])
    notes.update_one({"_id": 1}, {"$set": {"text": "y" * 600}})
    notes.update_one({"_id": 1}, {"$set": {"text": "z" * 9}})
    notes.delete_one({"_id": 2})
    notes.insert_one({"_id": 3})
    start = {"startAtOperationTime": f"{now.time},{now.inc}"}
    skip = {"cursor.oversize.handling.mode": "skip", "cursor.oversize.skip.threshold": 300}
    options = shop.options("notes", **start, **skip)
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


_SIX_MIB = 6 << 20


@pytest.mark.xdist_group("spark_cluster")
def test_a_large_event_is_one_row(shop: Shop) -> None:
    database = shop.client[shop.database]
    database.create_collection("pictures", changeStreamPreAndPostImages={"enabled": True})
    database.pictures.insert_one({"_id": 1, "picture": "a" * _SIX_MIB})
    database.pictures.update_one({"_id": 1}, {"$set": {"picture": "b" * _SIX_MIB}})
    database.pictures.insert_one({"_id": 2})
    images = {"fullDocument": "required", "fullDocumentBeforeChange": "whenAvailable"}
    split = '[{"$changeStreamSplitLargeEvent": {}}]'
    given = shop.options("pictures", documents="raw", pipeline=split, **images)
    options = parse_options(given)
    client = RouterClient(options)
    plan = EventPlanner(client, options)
    try:
        start: Position = AtTime(shop.created)
        plan.stop_at_present()
        rows: list[dict[str, Any]] = []
        while (batch := plan.next_batch(start, 1)).end != start:
            tasks = plan.tasks(batch)
            for read in map(partial(rows_of_task, options=options), tasks):
                rows += [row for part in read for row in part.to_pylist()]
            start = batch.end
    finally:
        plan.close()
        client.close()
    assert [row["operationType"] for row in rows] == ["insert", "update", "insert"]
    assert all(row["splitEvent"] is None for row in rows)
    before, after = rows[1]["fullDocumentBeforeChange"], rows[1]["fullDocument"]
    assert bson.decode(before) == {"_id": 1, "picture": "a" * _SIX_MIB}
    assert bson.decode(after) == {"_id": 1, "picture": "b" * _SIX_MIB}
    event = bson.decode(rows[1]["event"])
    assert event["_id"]["_data"] == rows[1]["token"]
    assert event["updateDescription"]["updatedFields"] == {"picture": "b" * _SIX_MIB}

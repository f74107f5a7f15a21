"""Documents and images in events: updateLookup, pre- and post-images (docs/protocol.md#events)."""

from typing import Any

import pytest
from pymongo.database import Database

from tests.conformance.data import Documents
from tests.conformance.event_heads import HEAD, watched
from tests.conformance.streams import Stream, kinds, next_tick, now
from tests.harness.clusters import Client

rule = pytest.mark.rule
Data = Database[dict[str, Any]]
IMAGES = {"changeStreamPreAndPostImages": {"enabled": True}}


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

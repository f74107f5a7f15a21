"""Events larger than a document may be, and their fragments (docs/protocol.md#events)."""

from collections.abc import Mapping
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.database import Database

from tests.conformance.streams import Stream, kinds
from tests.harness.clusters import Client

rule = pytest.mark.rule
Data = Database[dict[str, Any]]

IMAGES = {"fullDocument": "required", "fullDocumentBeforeChange": "required"}
SPLIT: list[Mapping[str, Any]] = [{"$changeStreamSplitLargeEvent": {}}]
FRAGMENTS = "$changeStreamSplitLargeEvent: fragments with splitEvent {fragment, of}, across replies"
FRAGMENT = "resuming after a fragment's token: the rest, or 280 if its event is split differently"
_NINE_MIB = 9 << 20


@pytest.fixture
def big(db: Data) -> Collection[dict[str, Any]]:
    return db.create_collection("big", changeStreamPreAndPostImages={"enabled": True})


def write(big: Collection[dict[str, Any]]) -> None:
    big.insert_one({"_id": 1, "p": "a" * _NINE_MIB})
    big.update_one({"_id": 1}, {"$set": {"p": "b" * _NINE_MIB}})
    big.insert_one({"_id": 2})


@rule("Opening", "an event of more than 16 MiB without splitting: 10334")
def test_an_event_over_16_mib_fails_without_splitting(
    client: Client, big: Collection[dict[str, Any]]
) -> None:
    with Stream(client, big.database.name, "big", IMAGES) as stream:
        write(big)
        error = stream.failure()
        # The shard's failed batch may have contained the preceding event.
        assert kinds(stream.events) in ([], ["insert"])
    assert (error["code"], error["codeName"]) == (10334, "BSONObjectTooLarge")
    assert "errorLabels" not in error


@rule("Events", FRAGMENTS)
@rule("Resuming", FRAGMENT)
def test_large_events_are_split_into_resumable_fragments(
    client: Client, big: Collection[dict[str, Any]]
) -> None:
    name = big.database.name
    with Stream(client, name, "big", IMAGES, SPLIT) as stream:
        write(big)
        events = stream.read(5)
    assert kinds([events[0], events[4]]) == ["insert", "insert"]
    fragments = events[1:4]
    assert [each["splitEvent"] for each in fragments] == [
        {"fragment": number, "of": 3} for number in (1, 2, 3)
    ]
    whole = {
        field: value
        for fragment in fragments
        for field, value in fragment.items()
        if field not in ("_id", "splitEvent")
    }
    assert whole["operationType"] == "update"
    assert whole["fullDocument"] == {"_id": 1, "p": "b" * _NINE_MIB}
    assert whole["fullDocumentBeforeChange"] == {"_id": 1, "p": "a" * _NINE_MIB}
    assert whole["updateDescription"]["updatedFields"] == {"p": "b" * _NINE_MIB}
    tokens = [event["_id"]["_data"] for event in events]
    assert tokens == sorted(tokens)
    for cut in range(5):
        resume = {**IMAGES, "resumeAfter": events[cut]["_id"]}
        with Stream(client, name, "big", resume, SPLIT) as stream:
            if cut < 4:
                assert stream.read(4 - cut) == events[cut + 1 :]

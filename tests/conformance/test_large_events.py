"""Events larger than a document may be, and their fragments (docs/protocol.md#events)."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.conformance.streams import Stream, kinds, next_tick, now
from tests.harness.clusters import Client, TestCluster

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


@rule("Events", FRAGMENTS)
def test_small_events_stay_whole(client: Client, db: Data) -> None:
    with Stream(client, db.name, "a", {}, SPLIT) as stream:
        db.a.insert_one({"_id": 1})
        [event] = stream.read(1)
    assert "splitEvent" not in event
    assert event["fullDocument"] == {"_id": 1}


STAGES: dict[str, list[Mapping[str, Any]]] = {
    "none": [],
    "split": SPLIT,
    "without": [{"$project": {"fullDocument.p": 0}}, *SPLIT],
    "other": [{"$match": {"operationType": "insert"}}, *SPLIT],
}


@rule("Resuming", FRAGMENT)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("idle", [True, False], ids=["idle", "busy"])
def test_a_fragment_s_token_with_other_options(
    cluster: TestCluster, client: Client, big: Collection[dict[str, Any]], idle: bool
) -> None:
    """The event of the busy stream has a key with a fraction, and events on each side."""
    key = 1 if idle else 1.5
    name = big.database.name
    big.insert_one({"_id": key, "p": "a" * _NINE_MIB})
    start = now(client)
    with client.start_session() as session, session.start_transaction():
        big.insert_one({"_id": "before"}, session=session)
        big.update_one({"_id": key}, {"$set": {"p": "b" * _NINE_MIB}}, session=session)
        if not idle:
            big.insert_one({"_id": "after"}, session=session)
    if not idle:
        big.insert_one({"_id": "later"})
    options = {**IMAGES, "startAtOperationTime": start}
    end = next_tick(now(client))
    with Stream(client, name, "big", options, SPLIT) as stream:
        events = stream.past(end)
    fragments = [event["_id"] for event in events if "splitEvent" in event]
    assert len(fragments) == 3

    def outcome(reader: Client, after: int, options: dict[str, str], stages: str) -> Any:
        """Return the fragments and the number of other events, or how the stream fails."""
        resume = {**options, "resumeAfter": fragments[after]}
        try:
            with Stream(reader, name, "big", resume, STAGES[stages]) as stream:
                try:
                    found = stream.past(end)
                except OperationFailure as error:
                    return "getMore", _told(error)
        except OperationFailure as error:
            return "aggregate", _told(error)
        parts = [event["splitEvent"] for event in found if "splitEvent" in event]
        return parts, len(found) - len(parts)

    def expected(after: int, options: dict[str, str], stages: str) -> Any:
        if stages == "none":
            return "aggregate", "the $changeStream pipeline must include"
        if stages == "other":
            return ([], 0) if idle else ("getMore", "the resume token was not found")
        of = 1 + ("fullDocumentBeforeChange" in options)
        of += options.get("fullDocument", "default") != "default" and stages != "without"
        if of == 1:
            return "getMore", "not large enough to be split"
        if after >= of:
            return "getMore", "produced a different split"
        rest = [{"fragment": number, "of": of} for number in range(after + 2, of + 1)]
        return rest, 0 if idle else 2

    documents = [{"fullDocument": each} for each in ("default", "updateLookup", "required")]
    before = [{}, {"fullDocumentBeforeChange": "required"}]
    rows = [
        (after, {**looked_up, **images}, stages)
        for after, looked_up, images, stages in product(range(3), documents, before, STAGES)
    ]
    with Client(cluster.mongos_uri) as mongos, ThreadPoolExecutor(3) as threads:
        for reader in (client, mongos) if cluster.real else (client,):
            outcomes = list(threads.map(lambda row, by=reader: outcome(by, *row), rows))
            assert outcomes == [expected(*row) for row in rows]


def _told(error: OperationFailure) -> str:
    """Return the known part of a fatal error's message."""
    details = error.details or {}
    assert (details["code"], details["codeName"]) == (280, "ChangeStreamFatalError")
    assert details["errorLabels"] == ["NonResumableChangeStreamError"]
    known = (
        "the $changeStream pipeline must include",
        "not large enough to be split",
        "produced a different split",
        "the resume token was not found",
    )
    return next(text for text in known if text in details["errmsg"])

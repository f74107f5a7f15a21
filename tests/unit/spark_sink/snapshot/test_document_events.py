"""The events of a snapshot's documents, without a server."""

from typing import Any

import bson
import pytest
from bson import SON, ObjectId
from bson.timestamp import Timestamp

from spark_sink.snapshot.document_events import DocumentEvents, KeyFinder
from spark_sink.snapshot.plan import SnapshotCollection

FIRST, SECOND = ObjectId("0" * 24), ObjectId("1" * 24)

# Documents of one collection, one after the other, with its shard key and their document keys.
DOCUMENTS: list[tuple[str, tuple[str, ...], list[SON[str, Any]], list[SON[str, Any]]]] = [
    (
        "ids",
        (),
        [SON(_id=FIRST, a=1), SON(_id=SECOND), SON(_id="x"), SON(_id="yy"), SON(_id=SON(_id=1))],
        [SON(_id=FIRST), SON(_id=SECOND), SON(_id="x"), SON(_id="yy"), SON(_id=SON(_id=1))],
    ),
    (
        "the key's fields in its own order",
        ("s", "_id", "t"),
        [SON(_id=1, t="b", s=2.5), SON(_id=2, t="c", s=0.5), SON(_id=3, s=1, t="dd")],
        [SON(s=2.5, _id=1, t="b"), SON(s=0.5, _id=2, t="c"), SON(s=1, _id=3, t="dd")],
    ),
    (
        "a field that some documents lack",
        ("s",),
        [SON(_id=1), SON(_id=2, s=2), SON(_id=3), SON(_id=4, s=4), SON(_id=5, t=5, s=6)],
        [SON(_id=1), SON(s=2, _id=2), SON(_id=3), SON(s=4, _id=4), SON(s=6, _id=5)],
    ),
    (
        "values of other sizes before the key",
        ("s",),
        [SON(_id=1, b=b"12", s=1), SON(_id=2, b=b"34", s=2), SON(_id=3, b=b"567", s=3)],
        [SON(s=1, _id=1), SON(s=2, _id=2), SON(s=3, _id=3)],
    ),
    (
        "a field within a document",
        ("a.b",),
        [SON(_id=1, a=SON(b=1)), SON(_id=2, a=SON(c=0, b=2)), SON(_id=3, a=3)],
        [SON([("a.b", 1), ("_id", 1)]), SON([("a.b", 2), ("_id", 2)]), SON(_id=3)],
    ),
]


@pytest.mark.parametrize(("key", "documents", "keys"), [each[1:] for each in DOCUMENTS],
                         ids=[each[0] for each in DOCUMENTS])  # fmt: skip
def test_the_document_key_is_found_wherever_its_fields_lie(
    key: tuple[str, ...], documents: list[SON[str, Any]], keys: list[SON[str, Any]]
) -> None:
    finder = KeyFinder(key)
    found = [finder(bson.encode(each)) for each in documents]
    in_order = [list(bson.decode(key).items()) for key in found]
    assert in_order == [list(key.items()) for key in keys]


def test_an_event_contains_its_document_and_each_key_occurs_once() -> None:
    events = DocumentEvents(
        SnapshotCollection("shop", "orders", key=("s",)), Timestamp(7, 1), {"id": "a"}
    )
    seen: set[bytes] = set()
    documents = [bson.encode({"_id": n, "s": s}) for n, s in ((1, 1), (2, 1), (1, 2), (1, 1))]
    run = events.run(documents, seen)
    assert events.run(documents, seen).events == []
    found = [bson.decode(event) for event in run.events]
    # Two shards may have documents with the same `_id`.
    assert [bson.encode(event["fullDocument"]) for event in found] == documents[:3]
    assert [event["documentKey"] for event in found] == [event["fullDocument"] for event in found]
    assert {tuple(event["documentKey"]) for event in found} == {("s", "_id")}
    assert found[0]["ns"] == {"db": "shop", "coll": "orders"}
    assert (found[0]["clusterTime"], found[0]["signal"]) == (Timestamp(7, 1), {"id": "a"})
    assert list(run.keys) == [event["_id"]["_data"] for event in found]

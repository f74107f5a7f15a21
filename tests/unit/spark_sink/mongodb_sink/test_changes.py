"""Rows as changes of documents: their order, their keys, and the sink's options."""

from typing import Any

import bson
import pytest

from spark_sink.errors import OptionError, StreamError
from spark_sink.mongodb_sink.changes import (
    Change,
    WriteOptions,
    change_of_event,
    parse_write_options,
    passes,
)
from tests.doubles.event_history import event_row, event_token

NAMESPACE = ("shop", "orders")


def update(number: int, second: int) -> Change:
    return Change(
        NAMESPACE, {"_id": number}, event_token(second, 1), description={"updatedFields": {}}
    )


def whole(number: int, second: int, **fields: Any) -> Change:
    document = bson.encode({"_id": number, **fields})
    return Change(NAMESPACE, {"_id": number}, event_token(second, 1), document=document)


def rounds(*changes: Change) -> list[list[Change]]:
    return list(passes(changes))


def test_only_the_last_whole_document_and_what_follows_it_are_written() -> None:
    last, after, later = whole(1, 3), update(1, 4), update(1, 5)
    assert rounds(whole(1, 1), update(1, 2), last, after, later) == [[last], [after], [later]]
    gone = Change(NAMESPACE, {"_id": 1}, event_token(6, 1))
    assert rounds(last, after, gone) == [[gone]]
    assert rounds(gone, last) == [[gone]]  # an older one comes late
    # Documents do not wait for each other.
    found = rounds(update(1, 1), update(2, 2), update(1, 3))
    assert [[change.key["_id"] for change in each] for each in found] == [[1, 2], [1]]


@pytest.mark.parametrize("moves", [True, False])
def test_the_delete_of_a_document_with_another_key_is_kept(moves: bool) -> None:
    """A new shard key value inserts the document on another shard: with another key, if so set."""
    former, now = ({"region": each, "_id": 1} for each in ("a", "b"))
    gone = Change(NAMESPACE, former, event_token(2, 1), may_move=moves)
    moved = Change(NAMESPACE, now, event_token(3, 1), document=bson.encode(now))
    assert rounds(moved, gone) == [[gone], [moved]]
    assert rounds(whole(1, 1), gone)[-1] == [gone]
    again = Change(NAMESPACE, former, event_token(4, 1), document=bson.encode(former))
    assert rounds(gone, again) == [[again]]


def test_events_become_changes() -> None:
    options = WriteOptions("mongodb://x", keys=("customer.name", "_id"))
    document = {"_id": 1, "customer": {"name": "a"}}
    change = change_of_event(
        event_row("insert", documentKey={"_id": 1}, fullDocument=document), options
    )
    assert change is not None
    assert change.key == {"customer.name": "a", "_id": 1}
    assert change.namespace == NAMESPACE
    to = WriteOptions("mongodb://x", database="archive", collection="old")
    change = change_of_event(event_row("delete", documentKey={"_id": 1}), to)
    assert change == Change(("archive", "old"), {"_id": 1}, event_token(1, 1))
    assert change_of_event(event_row("snapshotEnd"), to) is None
    of_spark = {"uri": "mongodb://x", "checkpointLocation": "c", "Database": "shop"}
    assert parse_write_options(of_spark) == WriteOptions("mongodb://x", "shop")


@pytest.mark.parametrize("kind", ["drop", "rename", "dropDatabase"])
def test_drops_and_renames_are_reported(kind: str) -> None:
    row, ignoring = event_row(kind), WriteOptions("mongodb://x", ignores_others=True)
    with pytest.raises(StreamError, match="otherEvents=ignore"):
        change_of_event(row, WriteOptions("mongodb://x"))
    assert change_of_event(row, ignoring) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of the options 'uri' and 'uriFile'"),
        ({"uri": "mongodb://x", "colection": "a"}, "did you mean 'collection'"),
        ({"uri": "mongodb://x", "missing": "maybe"}, "must be fail or ignore"),
        ({"uri": "mongodb://x", "tokenField": "a.b"}, "cannot be a separate field"),
        ({"uri": "mongodb://x", "keys": "a,,b"}, "must not be empty"),
    ],
)
def test_invalid_options_of_the_sink_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_write_options(options)

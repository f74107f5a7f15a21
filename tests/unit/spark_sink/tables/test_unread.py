"""Which collections a table must read again."""

from __future__ import annotations

import json

import bson
import pytest
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from spark_sink.events.documents import from_document
from spark_sink.snapshot.plan import LostDocument
from spark_sink.tables.prepare import DdlEvent
from spark_sink.tables.staged_changes import ChangeReport
from spark_sink.tables.table_state import (
    Namespace,
    TableState,
    unread_after,
    unread_document,
    unread_from,
)

A, B, OTHER = ("shop", "a"), ("shop", "b"), ("shop", "other")


def covers(database: str, collection: str) -> bool:
    return (database, collection) != OTHER


def drop(token: str, of: Namespace) -> DdlEvent:
    return DdlEvent(token, "drop", *of)


def rename(token: str, of: Namespace, to: Namespace) -> DdlEvent:
    return DdlEvent(token, "rename", *of, to)


def read(token: str, *places: Namespace) -> DdlEvent:
    return DdlEvent(token, "snapshotEnd", collections=places)


def test_many_documents_that_are_lost_make_their_collection_unread() -> None:
    few = [LostDocument(*A, "1", "3"), LostDocument(*B, "2", "4")]
    state = TableState(("_id",), unread={B: "1"}).without(few)
    assert (state.lost, state.unread) == (tuple(few[:1]), {B: "1"})
    assert from_document(TableState, json.loads(json.dumps(state.document))) == state
    many = [LostDocument(*A, str(number), f"{number:05}") for number in range(20_000)]
    state = state.without(many)
    assert (state.lost, state.unread) == ((), {A: "19999", B: "1"})
    assert TableState(("_id",), lost=tuple(few)).without([]).lost == ()


def test_collections_that_were_read_leave_the_state_once_the_stream_has_passed_them() -> None:
    """Otherwise each later commit would name them."""
    marks = [high_water_mark(Timestamp(second, 1)) for second in range(10)]
    event = {"operationType": "snapshotEnd", "readUntil": Timestamp(5, 0)}
    event["collections"] = [{"db": "shop", "coll": name} for name in ("a", "b")]
    state = TableState(("_id",), marks[1]).after(
        ChangeReport(through=marks[3], ddl=[bson.encode(event)]), ()
    )
    assert state.complete_in == {"shop.a": marks[5], "shop.b": marks[5]}
    state = state.after(ChangeReport(through=marks[7]), ())  # of events before and after the mark
    assert state.complete_in == {"shop.a": marks[5], "shop.b": marks[5]}
    state = state.after(ChangeReport(through=marks[8]), ())
    assert (state.complete_in, state.complete_from) == ({}, marks[5])


@pytest.mark.parametrize(
    ("before", "events", "after"),
    [
        ({}, [rename("3", OTHER, B)], {B: "3"}),
        ({}, [rename("3", A, B)], {B: "3"}),  # of which no event may have told the documents
        ({A: "1"}, [rename("3", A, B)], {B: "3"}),
        ({A: "1", B: "2"}, [rename("3", A, OTHER)], {B: "2"}),
        ({}, [drop("3", A), drop("4", OTHER)], {A: "3"}),  # a move to another shard drops, too
        ({A: "1", ("crm", "a"): "2"}, [DdlEvent("3", "dropDatabase", "shop")], {("crm", "a"): "2"}),
        ({A: "1", B: "2"}, [read("3", A)], {B: "2"}),
        ({A: "1", B: "2"}, [read("3")], {}),
        ({A: "4"}, [read("3", A)], {A: "4"}),  # of the collection that had the name before
        ({A: "1"}, [read("3", A), rename("5", B, A)], {A: "5"}),
    ],
)
def test_what_is_unread_after_events(
    before: dict[Namespace, str], events: list[DdlEvent], after: dict[Namespace, str]
) -> None:
    found = unread_after(before, events, covers)
    assert found == after
    assert unread_from(unread_document(found)) == found

"""Documents made many at once, as Fold makes each; the collections that are read again."""

import json
import random
from operator import itemgetter
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson.dbref import DBRef
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.snapshot.selections import Namespace
from spark_sink.snapshot.unread import CollectionTokens, LostDocument, tokens_document, tokens_from
from spark_sink.tables.ddl_events import DdlEvent, ddl_event_of, unread_after
from spark_sink.tables.fold import Fold, whole_documents, without_superseded
from spark_sink.tables.keyed_rows import KEYED, ROW, KeyedRows
from spark_sink.tables.staged_changes import ChangeReport
from spark_sink.tables.table_state import TableState

_ORDER = [("place", "ascending"), ("token", "ascending"), ("kind", "ascending")]


@pytest.mark.parametrize("seed", range(6))
def test_whole_documents_and_fold(seed: int) -> None:
    chance = random.Random(seed)
    keys = chance.choice([5, 100])
    keyed = keyed_rows(chance, keys, count=200)
    fold = Fold("~")
    wanted = folded(fold, keyed)
    whole, others = whole_documents(keyed)
    found = pa.concat_tables([whole, folded(fold, others)])
    assert whole.num_rows > 20 or keys == 5
    assert rows_of(found) == rows_of(wanted)
    parts = [int(token[10:18], 16) % 2 for token in keyed["token"].to_pylist()]
    chosen = (keyed.filter(pa.array([part == each for part in parts])) for each in (0, 1))
    left = pa.concat_tables(map(without_superseded, chosen)).sort_by(_ORDER)
    assert rows_of(folded(fold, left)) == rows_of(wanted)
    assert left.num_rows < keyed.num_rows


IDENTIFIERS = (7, Int64(7), 7.0, "é", ObjectId(bytes(12)), {"a": 1}, {"a": 1.0}, DBRef("c", 1))


@pytest.mark.parametrize("keys", [("_id",), ("tenant", "_id")])
@pytest.mark.parametrize("seed", range(4))
def test_events_together_have_the_keys_of_each(keys: tuple[str, ...], seed: int) -> None:
    """A replace may change the type of an `_id`."""
    chance = random.Random(seed)
    events = []
    for number in range(400):
        key = {"tenant": chance.choice(["x", 5, None]), "_id": chance.choice(IDENTIFIERS)}
        kind = chance.choice(["insert", "replace"])
        document = {**key, "_id": chance.choice(IDENTIFIERS)} if kind == "replace" else key
        fields: dict[str, Any] = {"operationType": kind, "documentKey": key}
        fields["fullDocument"] = chance.choice([document, {"a": 1, **document}, key, None])
        fields["fullDocument"] = fields["fullDocument"] if seed else document
        events.append((f"{number:03}", bson.encode(fields)))
    rows = source_rows(events)
    together, singly = (
        pa.Table.from_batches(KeyedRows(keys, ()).events(batches))
        for batches in ([rows], [rows.slice(row, 1) for row in range(len(events))])
    )
    order = ["token", "place"]
    found, wanted = (
        sorted(each.to_pylist(), key=itemgetter(*order)) for each in (together, singly)
    )
    assert found == wanted
    assert len(found) > len(events)


def folded(fold: Fold, keyed: pa.Table) -> pa.Table:
    return pa.concat_tables(fold(keyed.to_batches(max_chunksize=7)))


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=itemgetter("place", "token"))


def keyed_rows(chance: random.Random, keys: int, count: int) -> pa.Table:
    """Return changes of documents, and rows that the table has of some of them."""
    events = [event(chance, number, chance.randrange(keys)) for number in range(count)]
    [changes] = KeyedRows(("_id",), ()).events([source_rows(events)])
    rows = [
        {**row, "kind": ROW, "payload": bson.encode({"old": True})}
        for row in changes.to_pylist()
        if row["kind"] != 2 and chance.random() < 0.1
    ]
    before = pa.Table.from_pylist(rows, arrow_schema(KEYED))
    return pa.concat_tables([before, pa.Table.from_batches([changes])]).sort_by(_ORDER)


def source_rows(events: list[tuple[str, bytes]]) -> pa.RecordBatch:
    """Return rows of the source with these tokens and events."""
    columns = ("database", "collection", "token", "event")
    return pa.RecordBatch.from_pylist(
        [dict(zip(columns, ("shop", "orders", *each), strict=True)) for each in events],
        pa.schema([*((name, pa.string()) for name in columns[:3]), ("event", pa.binary())]),
    )


def event(chance: random.Random, number: int, key: int) -> tuple[str, bytes]:
    """Return the token and the BSON of a change; some tokens occur twice."""
    time = Timestamp(1_700_000_000 + number // 50, number % 50 // 2 + 1)
    token = high_water_mark(time)
    kind = chance.choice(["insert", "replace", "update", "update", "delete", "read"])
    fields: dict[str, Any] = {"_id": {"_data": token}, "operationType": kind}
    if chance.random() < 0.95:
        fields["documentKey"] = {"_id": ObjectId(key.to_bytes(12, "big"))}
    document = {
        **fields.get("documentKey", {}),
        "n": number,
        "nan": chance.choice([1.5, float("nan")]),
    }
    if kind == "update":
        fields["updateDescription"] = {"updatedFields": {"n": number}, "removedFields": []}
    if kind not in ("update", "delete") or chance.random() < 0.2:
        fields["fullDocument"] = chance.choice([document, document, None])
    if chance.random() < 0.02:
        fields["splitEvent"] = {"fragment": 1, "of": 2}
    return token, bson.encode(fields)


A, B, OTHER = ("shop", "a"), ("shop", "b"), ("shop", "other")


def covers(database: str, collection: str) -> bool:
    return (database, collection) != OTHER


def drop(token: str, of: Namespace) -> DdlEvent:
    return DdlEvent(token, "drop", *of)


def rename(token: str, of: Namespace, to: Namespace) -> DdlEvent:
    return DdlEvent(token, "rename", *of, to)


def read(token: str, *places: Namespace) -> DdlEvent:
    return DdlEvent(token, "snapshotEnd", collections=places or None)


def test_many_documents_that_are_lost_make_their_collection_unread() -> None:
    few = [LostDocument(*A, "1", "3"), LostDocument(*B, "2", "4")]
    state = TableState(("_id",), unread={B: "1"}).with_lost(few)
    assert (state.lost, state.unread) == (tuple(few[:1]), {B: "1"})
    assert TableState.of(json.loads(json.dumps(state.document)), "") == state
    many = [LostDocument(*A, str(number), f"{number:05}") for number in range(20_000)]
    state = state.with_lost(many)
    assert (state.lost, state.unread) == ((), {A: "19999", B: "1"})
    assert TableState(("_id",), lost=tuple(few)).with_lost([]).lost == ()


def test_the_events_after_a_snapshot_that_is_read_late_are_new() -> None:
    marks = [high_water_mark(Timestamp(second, 1)) for second in range(10)]
    state = TableState(("_id",)).after(ChangeReport(before_snapshot=marks[7]), ())
    end = {"_id": {"_data": marks[3]}, "operationType": "snapshotEnd"}
    end |= {"clusterTime": Timestamp(3, 0), "readUntil": Timestamp(8, 0)}
    found = bson.encode(end)
    state = state.after(ChangeReport(), [ddl_event_of(found)])
    assert state.through == marks[3]
    assert state.not_applied([drop(marks[5], A)])


def test_collections_that_were_read_leave_the_state_once_the_stream_has_passed_them() -> None:
    """Otherwise each later commit would name them."""
    marks = [high_water_mark(Timestamp(second, 1)) for second in range(10)]
    end = DdlEvent(marks[2], "snapshotEnd", collections=(A, B), request="r", read_until=marks[5])
    state = TableState(("_id",), marks[1]).after(ChangeReport(through=marks[3]), [end])
    assert state.complete_in == {A: marks[5], B: marks[5]}
    state = state.after(ChangeReport(through=marks[7]), ())  # of events before and after the mark
    assert state.complete_in == {A: marks[5], B: marks[5]}
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
    before: CollectionTokens, events: list[DdlEvent], after: CollectionTokens
) -> None:
    found = unread_after(before, events, covers)
    assert found == after
    assert tokens_from(tokens_document(found)) == found

"""Batches that are applied to a current table, without Spark, and killed at each step."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import bson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bson import json_util
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.timestamp import Timestamp
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import StructType

from shard_client.bson.resume_token import high_water_mark
from spark_sink.errors import OptionError, StreamError
from spark_sink.events.positions import after
from spark_sink.tables import current_table, delta_log, merge_task, staged_changes
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.ddl_events import TableScope
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.key_ranges import KeyRanges, Merge, merges_of
from spark_sink.tables.parquet_parts import PartFile, TableFile
from spark_sink.tables.places import KEY_RANGE, places_of
from spark_sink.tables.range_files import partition_digest, partitions_of
from spark_sink.tables.staged_changes import ChangeStage
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_state import Batch, TableState
from tests.doubles.table_changes import (
    DATABASE,
    STEPS,
    RandomChanges,
    apply,
    change_rows,
    documents_in,
    killed,
    staged,
    with_field,
)

END = "\U0010ffff" * 2  # after the names of all other collections


def check_ranges(folder: Path) -> int:
    """Check that files are ordered, and that the log tells their ranges; return their number."""
    log, before = DeltaLog(str(folder)), ""
    ranges = KeyRanges.of(log.files())
    assert log.state().partitions == partition_digest(partitions_of(log.files()))
    actions = {each["path"]: each for each in log.files().to_pylist()}
    assert len(ranges) == max(1, len(actions))
    for number, (first, last, path) in enumerate(ranges.files()):
        rows = pa.parquet.read_table(folder / path, partitioning=None)
        places = places_of(rows).to_pylist()
        assert places == sorted(set(places))
        assert before < first <= places[0]
        assert places[-1] <= last
        assert {ranges.index(place) for place in (places[0], places[-1])} == {number}
        before = places[-1]
        least = (actions[path]["min.token"], actions[path]["max.token"])
        assert least == (pc.min(rows["token"]).as_py(), pc.max(rows["token"]).as_py())
    return len(actions)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(2))
def test_a_table_follows_its_collections(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_task, "_CHANGES_PER_STEP", 10)
    stream, folder = RandomChanges(seed), tmp_path / "current"
    most, batches = 0, list[list[dict[str, Any]]]()
    for number in range(15):
        events = stream.changes(stream.chance.choice((1, 40, 200)))
        match stream.chance.randrange(8):
            case 0:
                events.append(stream.drop(stream.chance.choice("abc")))
            case 1:
                events.append(stream.rename(*stream.chance.sample("abcd", 2)))
            case 2:
                events += stream.snapshot(stream.chance.sample("abc", 2))
        events += stream.changes(20)
        batches.append(events)
        apply(folder, events, number)
        assert documents_in(folder) == stream.collections
        most = max(most, check_ranges(folder))
        if stream.chance.random() < 0.2:
            before = DeltaTable(folder).version()
            apply(folder, events, number)  # again
            assert DeltaTable(folder).version() == before
            last = batches[-stream.chance.randrange(1, 4) :]
            apply(folder, [event for batch in last for event in batch])  # as another query
            assert documents_in(folder) == stream.collections
    assert most > 5
    assert not list(folder.glob("_changes/*"))
    assert DeltaLog(str(tmp_path / "quarantine")).count() == 0


def test_the_end_of_a_snapshot_keeps_what_a_later_rename_has_moved(tmp_path: Path) -> None:
    """A snapshot that goes on after a restart knows collections by their new names."""
    stream, folder = RandomChanges(1), tmp_path / "current"
    apply(folder, stream.changes(100), 0)
    begun = stream.number
    apply(folder, [*stream.part("a", 0), stream.rename("b", "a"), *stream.changes(3)], 1)
    apply(folder, [*stream.part("a", 1), stream.end("a", begun)], 2)
    assert documents_in(folder) == stream.collections


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_replaced_or_lost_is_right_once_it_is_read_again(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, folder = RandomChanges(seed), tmp_path / "current"
    reading: list[str] = []
    required, begun = "", 0
    number, state = 0, TableState()
    while number < 15 or reading or state.unread_or_lost:
        number += 1
        events = stream.changes(stream.chance.choice((1, 40)))
        if number < 15:
            name = stream.chance.choice("abc")
            match stream.chance.randrange(8):
                case 0:
                    events.append(stream.replaced(name))
                case 1:
                    events.append(stream.copied(name))
                case 2:
                    events.append(stream.drop(name))
                case 3:
                    events.append(stream.rename(*stream.chance.sample("abc", 2)))
                case 4:
                    events.append(stream.rename(name, "d"))  # out of the scope
                case 5 | 6:
                    events += stream.misfit()
        events += stream.changes(20)
        for lost in state.lost:
            events += stream.read(lost.collection, json_util.loads(lost.key))
        if reading:  # what has been requested ends with this batch
            events += stream.part(reading, 1)
            events.append(stream.end(reading, begun))
            reading = []
        elif stream.chance.random() < 0.5:
            reading = [name for (_, name), token in state.unread.items() if token > required]
            required = max([required, *state.unread.values()])
            begun = stream.number
            events += stream.part(reading, 0)
        attempt = partial(apply, folder, events, number, TableScope(lambda _, name: name != "d"))
        killed(monkeypatch, stream.chance.choice([*STEPS]), stream.chance.random() < 0.5, attempt)
        state = attempt().state
    scope = {place: each for place, each in stream.collections.items() if place[0] != "d"}
    found = {place: each for place, each in documents_in(folder).items() if place[0] != "d"}
    assert found == scope


@pytest.mark.usefixtures("small")
def test_a_batch_writes_only_the_files_that_have_its_keys(tmp_path: Path) -> None:
    stream, folder = RandomChanges(1), tmp_path / "current"
    texts = [stream.chance.randbytes(50).hex() for _ in range(2000)]
    events = [stream.change(10_000 + number, text=text) for number, text in enumerate(texts)]
    apply(folder, events, 0)
    files = set(DeltaTable(folder).file_uris())
    assert len(files) > 8
    apply(folder, [stream.change(number, n=1) for number in (10_000, 11_999)], 1)
    now = set(DeltaTable(folder).file_uris())
    assert len(files - now) == 2
    assert len(now - files) == 2
    # New documents after the last ones, of a file that is large, leave it as it is.
    while True:
        number = 12_000 + len(texts)
        before = set(DeltaTable(folder).file_uris())
        texts += [stream.chance.randbytes(50).hex() for _ in range(30)]
        apply(folder, [stream.change(number + n, text=texts[-n]) for n in range(30)], len(texts))
        if not before - set(DeltaTable(folder).file_uris()):
            break
    assert documents_in(folder) == stream.collections
    check_ranges(folder)


@pytest.mark.usefixtures("small")
def test_a_task_of_a_batch_with_large_documents_reads_a_small_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def merges(*args: Any) -> list[Merge]:
        found = merges_of(*args)
        sizes.extend(each.size for each in found)
        return found

    monkeypatch.setattr(current_table, "merges_of", merges)
    monkeypatch.setattr(staged_changes, "_GROUP_BYTES", 4_000)
    stream = RandomChanges(1)
    numbers = stream.chance.sample(range(200), 200)
    apply(tmp_path / "current", [stream.change(each, text="x" * 2_000) for each in numbers], 0)
    assert max(sizes) < 20_000
    assert documents_in(tmp_path / "current") == stream.collections


def with_text_key(stream: RandomChanges, name: str, identifier: str, text: str) -> dict[str, Any]:
    """Return the event of a document whose `_id` is a text."""
    document = {"_id": identifier, "text": text}
    stream.collections[name, identifier] = document  # type: ignore[index]
    event = stream._event("replace", name, 0, fullDocument=document)
    return {**event, "documentKey": {"_id": identifier}}


@pytest.mark.usefixtures("small")
def test_files_share_collections_only_as_the_log_can_tell(tmp_path: Path) -> None:
    """Many small collections share a file, a large one has its own; long keys are no exception."""
    stream, folder = RandomChanges(1), tmp_path / "current"
    for number in range(3):
        events = []
        for name, count in (
            ("a", 3),
            ("b", 2),
            ("big", 400),
            ("c", 3),
            ("d", 2),
            ("large", 20),
            (END, 3),
        ):
            for key in stream.chance.sample(range(500), count):
                text = stream.chance.randbytes(60).hex()
                is_long = name == "large" or key % 7 == 0
                identifier = f"{key:06}" * (1000 if is_long else 1)
                events.append(with_text_key(stream, name, identifier, text))
        apply(folder, events, number)
        assert documents_in(folder) == stream.collections
        assert check_ranges(folder) > 4
    actions = DeltaLog(str(folder)).files().to_pylist()
    assert any(each["min.collection"] != each["max.collection"] for each in actions)
    before = {each["path"] for each in actions}
    [event] = [stream.change(499)]
    apply(folder, [event], 3)
    assert len(before - {each.path for each in DeltaLog(str(folder)).files_with()}) == 1


@pytest.mark.usefixtures("small")
def test_long_keys_that_begin_alike_are_in_one_row_each(tmp_path: Path) -> None:
    stream, folder = RandomChanges(1), tmp_path / "current"
    places = [("a", "short"), *(("b", "k" * 1_100 + f"{number:03}") for number in range(200))]
    for number in range(2):
        events = []
        for name, identifier in places:
            text = stream.chance.randbytes(100).hex()
            events.append(with_text_key(stream, name, identifier, text))
        apply(folder, events, number)
        assert len(DeltaLog(str(folder)).paths()) > 1
        assert documents_in(folder) == stream.collections


# Changes of one document's key: the token's seconds, what happens, the document's key before it,
# and the document after it. A number of an `_id` may become one of another type. A new value of
# the shard key moves a document, and the insert may have the smaller cluster time.
KEY_CHANGES: dict[str, list[tuple[int, str, dict[str, Any], dict[str, Any] | None]]] = {
    "a number of another type": [
        (1, "insert", {"_id": 1}, {"_id": 1, "n": 1}),
        (2, "replace", {"_id": 1}, {"_id": 1.0, "n": 2}),
        (3, "update", {"_id": 1.0}, {"_id": 1.0, "n": 3}),
    ],
    "and back": [
        (1, "insert", {"_id": {"a": 1}}, {"_id": {"a": 1}, "n": 1}),
        (2, "replace", {"_id": {"a": 1}}, {"_id": {"a": Int64(1)}, "n": 2}),
        (3, "replace", {"_id": {"a": Int64(1)}}, {"_id": {"a": 1}, "n": 3}),
        (4, "update", {"_id": {"a": 1}}, {"_id": {"a": 1}, "n": 4}),
    ],
    "moved, deleted last": [
        (1, "insert", {"s": 1, "_id": 1}, {"_id": 1, "s": 1, "n": 1}),
        (2, "insert", {"s": 2, "_id": 1}, {"_id": 1, "s": 2, "n": 1}),
        (3, "delete", {"s": 1, "_id": 1}, {"_id": 1, "s": 2, "n": 1}),
        (4, "update", {"s": 2, "_id": 1}, {"_id": 1, "s": 2, "n": 4}),
    ],
    "changed on its shard, and deleted": [
        (1, "insert", {"s": 1, "_id": 1}, {"_id": 1, "s": 1, "n": 1}),
        (2, "replace", {"s": 1, "_id": 1}, {"_id": 1, "s": 2, "n": 1}),
        (3, "delete", {"s": 2, "_id": 1}, None),
    ],
    "moved to null, deleted last": [
        (1, "insert", {"s": 1, "_id": 1}, {"_id": 1, "s": 1}),
        (2, "insert", {"s": None, "_id": 1}, {"_id": 1, "s": None}),
        (3, "delete", {"s": 1, "_id": 1}, {"_id": 1, "s": None}),
        (4, "delete", {"s": None, "_id": 1}, None),
    ],
    "moved without the field, deleted last": [
        (1, "insert", {"a.s": 1, "_id": 1}, {"_id": 1, "a": {"s": 1}}),
        (2, "insert", {"_id": 1}, {"_id": 1, "a": {}}),
        (3, "delete in a transaction", {"a.s": 1, "_id": 1}, {"_id": 1, "a": {}}),
        (4, "delete in a transaction", {"_id": 1}, None),
    ],
    "moved with the field, deleted last": [
        (1, "insert", {"_id": 1}, {"_id": 1}),
        (2, "insert", {"s": 1, "_id": 1}, {"_id": 1, "s": 1}),
        (3, "delete in a transaction", {"_id": 1}, {"_id": 1, "s": 1}),
        (4, "delete in a transaction", {"s": 1, "_id": 1}, None),
    ],
    "without the field on its shard, and deleted": [
        (1, "insert", {"s": 1, "_id": 1}, {"_id": 1, "s": 1}),
        (2, "replace", {"s": 1, "_id": 1}, {"_id": 1}),
        (3, "delete in a transaction", {"_id": 1}, None),
    ],
    "of a collection that is sharded no more, and deleted": [
        (1, "insert", {"s": 1, "_id": 1}, {"_id": 1, "s": 1}),
        (99, "delete in a transaction", {"_id": 1}, None),
    ],
    "without the shard key's field, and deleted": [
        (1, "insert", {"_id": 1}, {"_id": 1, "n": 1}),
        (2, "delete", {"s": 1, "_id": 1}, None),
    ],
}


@pytest.mark.parametrize("name", KEY_CHANGES)
@pytest.mark.parametrize("per_batch", [1, 5])
def test_a_document_whose_key_changes_is_one_row(name: str, per_batch: int, tmp_path: Path) -> None:
    folder, changes = tmp_path / "current", KEY_CHANGES[name]
    for first in range(0, len(changes), per_batch):
        events = []
        batch = changes[first : first + per_batch]
        for second, kind, key, document in batch:
            event = {"_id": {"_data": high_water_mark(Timestamp(second, 1))}, "documentKey": key}
            event |= {"operationType": kind, "ns": {"db": DATABASE, "coll": "a"}}
            if kind == "update" and document is not None:
                fields = {"updatedFields": {"n": document["n"]}, "removedFields": []}
                event["updateDescription"] = fields
            elif kind == "delete in a transaction":
                event |= {"operationType": "delete", "txnNumber": Int64(1)}
            elif document is not None and kind != "delete":
                event["fullDocument"] = document
            events.append(event)
        stage = ChangeStage(str(folder))
        stage.add(change_rows(events))
        CurrentTable(str(folder)).apply_staged(None, Upsert(stage.close(), Batch("q", first)))
        rows = DeltaTable(folder).to_pyarrow_table().to_pylist()
        last = batch[-1][3]
        found = [bson.decode(row["document"]) for row in rows]
        assert repr(found) == repr([] if last is None else [last])
        for row, document in zip(rows, found, strict=True):
            assert row["key"] == json_util.dumps(
                document["_id"], json_options=json_util.CANONICAL_JSON_OPTIONS
            )


def test_a_snapshot_may_begin_with_any_document(tmp_path: Path) -> None:
    name = {"db": DATABASE, "coll": "a"}
    streamed, token = (high_water_mark(Timestamp(second, 1)) for second in (1, 2))
    read: dict[str, Any] = {"_id": {"_data": token}, "operationType": "read", "ns": name}
    read |= {"documentKey": {"_id": 1}, "signal": {"streamed": streamed}}
    read["fullDocument"] = {"_id": 1, "beyond": DatetimeMS(10**15), "text": "cut"}
    rows = change_rows([read])
    no_text = pa.array([rows["event"][0].as_py().replace(b"cut\0", b"c\xc3t\0")])
    stage = ChangeStage(str(tmp_path))
    stage.add(rows.set_column(4, "event", no_text))
    report = stage.close()
    assert report.before_snapshot == streamed
    CurrentTable(str(tmp_path)).apply_staged(None, Upsert(report))
    [row] = DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert b"c\xc3t" in row["document"]


@pytest.mark.usefixtures("small")
def test_files_that_others_have_written_in_another_order_are_sorted(tmp_path: Path) -> None:
    stream, folder = RandomChanges(2), tmp_path / "current"
    kept = apply(folder, stream.changes(150), 0)
    rows = DeltaTable(folder).to_pyarrow_table().sort_by([("token", "descending")])
    write_deltalake(folder, rows, mode="overwrite", commit_properties=None)
    apply(folder, stream.changes(50), 1, table=kept)
    assert documents_in(folder) == stream.collections
    DeltaTable(folder).optimize.compact()
    apply(folder, [*stream.changes(50), stream.drop("b")], 2, table=kept)
    assert documents_in(folder) == stream.collections
    check_ranges(folder)


def test_rows_that_others_have_added_between_those_of_a_file_hide_none(tmp_path: Path) -> None:
    stream, folder = RandomChanges(4), tmp_path / "current"
    kept = apply(folder, stream.changes(150), 0)
    before = DeltaTable(folder).to_pyarrow_table().sort_by("key")
    rows = before.filter(pc.equal(before["collection"], pc.max(before["collection"])))
    other = pa.repeat(pa.scalar("other"), 1)
    added = rows.slice(rows.num_rows // 2, 1).drop_columns([KEY_RANGE])
    write_deltalake(folder, added.append_column(KEY_RANGE, other), mode="append")
    apply(folder, [stream.change(1000)], 1, table=kept)
    after = DeltaTable(folder).to_pyarrow_table()
    assert {*places_of(before).to_pylist()} <= {*places_of(after).to_pylist()}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("known", [("database", "collection"), ()])
def test_a_file_that_others_have_written_without_statistics_may_have_any_key(
    known: Sequence[str], tmp_path: Path
) -> None:
    stream, folder = RandomChanges(4), tmp_path / "current"
    apply(folder, [stream.change(number, text="x" * 200) for number in range(100, 400)], 0)
    files = DeltaLog(str(folder)).files().to_pylist()
    actions = sorted(files, key=lambda each: str(each["min.key"]))
    middle = actions[len(actions) // 2]
    (folder / middle["path"]).rename(folder / middle["path"].replace("part-", "other-"))
    stats: dict[str, Any] = {"numRecords": middle["num_records"]}
    for bound, kind in (("minValues", "min"), ("maxValues", "max")):
        stats[bound] = {name: middle[f"{kind}.{name}"] for name in known}
    partition = {KEY_RANGE: middle[f"partition.{KEY_RANGE}"]}
    file = TableFile(middle["path"], middle["size_bytes"], partition, 1)
    renamed = {**asdict(file), "path": middle["path"].replace("part-", "other-")}
    assert DeltaLog(str(folder)).exchange([file], [PartFile(**renamed, stats=stats)])
    apply(folder, stream.changes(100, keys=400), 1)
    apply(folder, [stream.change(number, n=1) for number in range(100, 400)], 2)
    assert documents_in(folder) == stream.collections
    check_ranges(folder)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("step", "after"),
    [*((step, False) for step in STEPS), ("before commit", True), ("before vacuum", True)],
)
def test_a_batch_that_is_killed_at_any_step_is_applied_once(
    step: str, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "_COMMITS_PER_VACUUM", 1)
    stream, folder = RandomChanges(3), tmp_path / "current"
    apply(folder, stream.changes(300), 0)
    update = {"updatedFields": {}, "removedFields": []}
    for number in (1, 2):
        events = stream.changes(100)
        if number == 2:
            events.append(stream.rename("c", "b"))
        lost = stream.change(100_000 + number)  # an update of a document that nobody has
        del stream.collections["a", 100_000 + number], lost["fullDocument"]
        lost = {**lost, "operationType": "update", "updateDescription": update}
        events = [*events, lost, *stream.changes(30)]
        before = documents_in(folder)
        assert killed(monkeypatch, step, after, lambda: apply(folder, events, number))  # noqa: B023
        assert documents_in(folder) in (before, stream.collections)
        apply(folder, events, number)
        assert documents_in(folder) == stream.collections
        check_ranges(folder)
        rows = DeltaTable(tmp_path / "quarantine").to_pyarrow_table().to_pylist()
        assert len(rows) == number


def test_an_event_that_cannot_be_applied_fails_without_a_quarantine(tmp_path: Path) -> None:
    stream, folder = RandomChanges(4), tmp_path / "current"
    apply(folder, [stream.change(1)])
    lost = {**stream.change(2), "operationType": "update", "updateDescription": {}}
    del lost["fullDocument"]
    with pytest.raises(StreamError, match="changes a document that the table does not have"):
        apply(folder, [lost])
    keyless = stream.change(2)
    del keyless["documentKey"]
    with pytest.raises(StreamError, match="has no documentKey"):
        apply(folder, [keyless])
    assert set(documents_in(folder)) == {("a", 1)}


@pytest.mark.parametrize(
    "form", [TableForm(), TableForm(StructType([]), True)], ids=["json", "typed"]
)
def test_a_document_that_cannot_be_read_leaves_the_table(tmp_path: Path, form: TableForm) -> None:
    stream, folder = RandomChanges(5), tmp_path / "current"
    table = CurrentTable(str(folder), form=form)
    first = [stream.change(number, n=1) for number in range(5)]
    first.append(stream.change(5, raw=1) | {"documentKey": {"_id": 5}})
    apply(folder, first, 0, table=table)
    unreadable = with_field({"_id": 3}, b"\x05b\0\x02\0\0\0\x02ab")  # subtype 2 without its size
    bad = stream.change(3) | {"fullDocument": unreadable}
    apply(folder, [bad, stream.change(4, n=2)], 1, table=table)
    del stream.collections["a", 3]
    keys = set(DeltaTable(folder).to_pyarrow_table()[form.column("key")].to_pylist())
    assert keys == {f'{{"$numberInt": "{number}"}}' for _, number in stream.collections}
    [row] = DeltaTable(tmp_path / "quarantine").to_pyarrow_table().to_pylist()
    assert "cannot be read" in row["problem"]
    assert (row["token"], row["event"]) == (bad["_id"]["_data"], bson.encode(bad))
    with pytest.raises(StreamError, match=r"a document of shop\.a cannot be read"):
        apply(folder, [stream.change(3) | {"fullDocument": unreadable}])


def test_the_quarantine_gets_the_event_of_the_document_that_cannot_be_read(tmp_path: Path) -> None:
    """Rows of a snapshot have one token, and a rename gives its token to the rows that it moves."""
    stream, folder = RandomChanges(5), tmp_path / "current"
    one, two = (
        with_field({"_id": number}, b"\x05b\0\x02\0\0\0\x02ab")  # subtype 2 without its size
        for number in (1, 2)
    )
    stream.collections = {("b", 1): {"_id": 1}, ("d", 1): {"_id": 1}}
    [of_b, of_d] = stream.part("bd", 1)
    moved = stream.change(2) | {"fullDocument": two}
    events = [of_b, of_d | {"fullDocument": one}, moved, stream.rename("a", "c")]
    apply(folder, events, 0)
    rows = DeltaTable(tmp_path / "quarantine").to_pyarrow_table().to_pylist()
    told = {row["collection"]: row["event"] for row in rows}
    assert told == {"d": bson.encode(events[1]), "c": bson.encode(moved)}
    assert set(documents_in(folder)) == {("b", 1)}


def test_a_restored_table_is_told_by_its_files_also_if_it_was_empty(tmp_path: Path) -> None:
    stream = RandomChanges(1)
    apply(tmp_path, [stream.change(number, n=1) for number in range(5)], 0)
    apply(tmp_path, [stream.drop("a")], 1)
    DeltaLog(str(tmp_path)).require_not_restored()
    table = DeltaTable(tmp_path)
    table.restore(0)
    table.create_checkpoint()
    for each in (tmp_path / "_delta_log").glob("*.json"):
        each.unlink()
    with pytest.raises(StreamError, match="was restored"):
        DeltaLog(str(tmp_path)).require_not_restored()


def test_a_new_query_may_begin_on_a_restored_table_with_a_snapshot_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = RandomChanges(1)
    for number in range(3):
        apply(tmp_path, [stream.change(number, n=1)], number)
    DeltaTable(tmp_path).restore(0)

    def write(number: int, *events: dict[str, Any], query: str = "new") -> None:
        monkeypatch.setattr(current_table, "reports_in", lambda *_: staged(tmp_path, events))
        CurrentTable(str(tmp_path)).apply(Mock(sparkSession=None), Batch(query, number))

    time = Timestamp(1_800_000_000, 1)
    head = {"_id": {"_data": high_water_mark(after(time).time)}, "clusterTime": time}
    read = head | {"operationType": "read", "ns": {"db": DATABASE, "coll": "a"}}
    read |= {"documentKey": {"_id": 9}, "fullDocument": {"_id": 9}}
    for refused in (stream.change(5, n=1), read | {"signal": {"id": "s"}}):
        with pytest.raises(StreamError, match="was restored"):
            write(0, refused)
    with pytest.raises(StreamError, match="was restored"):
        write(3, read, query="q")
    with pytest.raises(StreamError, match="was restored"):
        CurrentTable(str(tmp_path)).apply(Mock())  # without a query's batch
    write(0)
    write(1, read)
    end = {"operationType": "snapshotEnd", "readUntil": time, "ns": {"db": "", "coll": ""}}
    write(2, head | end)
    assert documents_in(tmp_path).keys() == {("a", 9)}


def test_the_changes_of_a_killed_attempt_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = RandomChanges(1)

    def write(epoch: int) -> list[str]:
        changes = ChangeStage(str(tmp_path), epoch=epoch)
        changes.add(change_rows([stream.change(epoch, n=1)]))
        monkeypatch.setattr(current_table, "reports_in", lambda *_: [changes.close()])
        CurrentTable(str(tmp_path), epoch=epoch).apply(Mock(sparkSession=None))
        return sorted(path.name.partition("-")[0] for path in tmp_path.glob("_changes/*"))

    for epoch in (0, 5, 8):
        (tmp_path / "_changes").mkdir(exist_ok=True)
        (tmp_path / f"_changes/{epoch}-a.parquet").touch()
    assert write(0) == ["5", "8"]
    assert write(5) == ["8"]


def test_another_table_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    with pytest.raises(OptionError, match="is no current table"):
        CurrentTable(str(tmp_path))


def test_a_row_that_another_writer_has_doubled_is_there_once_after_a_change(tmp_path: Path) -> None:
    stream = RandomChanges(1)
    apply(tmp_path, [stream.change(number, n=1) for number in range(5)])
    write_deltalake(tmp_path, DeltaTable(tmp_path).to_pyarrow_table().slice(1, 3), mode="append")
    apply(tmp_path, [stream.change(2, n=2)])
    assert documents_in(tmp_path) == stream.collections

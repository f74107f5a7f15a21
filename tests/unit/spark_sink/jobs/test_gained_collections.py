"""Collections that a job's scope gains: what its offsets and commits hold, and kills between."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import bson
import pytest
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from spark_sink.events.header import SNAPSHOT_END
from spark_sink.events.positions import AtTime, EventRange, after
from spark_sink.options.scope import Scope
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.snapshot.plan import Mark, SnapshotPlan
from spark_sink.snapshot.queue import SnapshotQueue, SnapshotRequest
from spark_sink.snapshot.scheduler import SnapshotScheduler
from spark_sink.snapshot.unread import token_in, unread_names
from spark_sink.source.batch_planner import BatchPlanner, QueryOutput
from spark_sink.source.offsets import Offset
from spark_sink.source.snapshot_tasks import tasks_of_queue
from spark_sink.source.task_rows import SnapshotTask, SourceEvent
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.ddl_events import TableScope
from spark_sink.tables.staged_changes import ChangeReport
from spark_sink.tables.state_files import commit_path
from spark_sink.tables.table_state import Batch, TableState
from tests.doubles.listed_collections import ListedCollections
from tests.doubles.table_changes import documents_in, staged

OLD = Scope("shop", ("old",))
TIME = Timestamp(1_700_000_000, 1)
START = Offset(AtTime(TIME), OLD)


class Gaining:
    """Starts of a job whose scope may change; `namespaces` are those that its table has."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.namespaces = {("shop", "old")}

    def start(self, **given: str) -> None:
        """Start the job anew with options."""
        uri = {"uri": "mongodb://127.0.0.1:1/", "snapshotMode": "initial"}
        self.options: StreamOptions = parse_options({**uri, **given})
        listed = (f"shop.{each}" for each in self.names)
        # A batch reads some two thousand.
        self.chunks = ListedCollections(listed, self.options.scope, 1, 1 / 1024)
        snapshots = SnapshotScheduler(self.chunks, self.options.snapshot.collections)
        client = Mock(with_retries=lambda call: call())
        client.clocks.return_value.cluster_time = TIME
        events = Mock(next_batch=lambda start, *_, **__: EventRange(start, start, 0))
        receiver = Mock(receive=lambda signals, _: signals, has_more=False)
        output = Mock(QueryOutput, follows_scope=True, namespaces=lambda: self.namespaces)
        output.unread.return_value = ({}, ())
        self.planner = BatchPlanner(
            self.options, output, client, events, self.chunks, snapshots, receiver
        )

    def plan(self, start: Offset) -> Offset | None:
        """Return the next offset, as it is after a restart."""
        found = self.planner.plan(start, None)
        return None if found is None else Offset.of(json.loads(json.dumps(found.document)))

    def events(self, start: Offset, end: Offset) -> list[dict[str, Any]]:
        """Return what the tasks of a batch read: a document of each collection, and ends."""
        signals, found = end.snapshots, list[dict[str, Any]]()
        args = signals, start.position, self.options, self.chunks, lambda: TIME
        for task in tasks_of_queue(*args):
            if isinstance(task, SourceEvent):
                found.append({"ns": {"db": "", "coll": ""}, **bson.decode(task.event)})
                continue
            assert isinstance(task, SnapshotTask)
            for each in task.reads:
                ns = {"db": each.chunk.collection.database, "coll": each.chunk.collection.name}
                token = {"_data": high_water_mark(after(TIME).time)}
                event = {"_id": token, "operationType": "read", "ns": ns}
                found.append({**event, "documentKey": {"_id": 1}, "fullDocument": {"_id": 1}})
        return found

    def rest(self, start: Offset) -> list[dict[str, Any]]:
        """Return what the tasks of all batches after an offset read."""
        found = list[dict[str, Any]]()
        while (end := self.plan(start)) is not None:
            found += self.events(start, end)
            start = end
        return found

    def commit(self, folder: Path, number: int, start: Offset, end: Offset) -> TableState:
        """Commit a batch to a table; return its state."""
        batch = Batch("q", number, end.document, start.document)
        changes = ChangeReport.total(staged(folder, self.events(start, end)))
        assert end.scope is not None
        table = CurrentTable(str(folder))
        scope = TableScope(end.scope.accepts, end.snapshots.gains)
        table.apply_staged(None, Upsert(changes, batch, None, scope))
        return table.state


def test_ten_thousand_collections_take_a_few_bytes_and_kills_lose_none(tmp_path: Path) -> None:
    chance, folder = random.Random(1), tmp_path / "current"
    job = Gaining([f"collection_of_a_tenant_{number:05}" for number in range(10_000)])
    job.start(database="shop")
    start, number, sizes = START, 0, list[int]()
    while (end := job.plan(start)) is not None:
        sizes.append(len(json.dumps(end.document)))
        if chance.random() < 0.3:  # killed before Spark has logged the offset
            job.start(database="shop")
            continue
        state = job.commit(folder, number, start, end)
        if chance.random() < 0.3:  # killed before Spark has noted that the batch is committed
            job.start(database="shop")
            assert job.commit(folder, number, start, end) == state
        assert bool(token_in(state.unread, "shop", job.names[-1])) == bool(end.snapshots.gains)
        start, number = end, number + 1
        if end.snapshots.batch.reading is None:  # a batch with files has a line for each of them
            sizes.append((folder / commit_path(number - 1)).stat().st_size)
    assert number > 5
    assert max(sizes) < 4096
    assert {name for name, _ in documents_in(folder)} == {*job.names}
    assert len(state.complete_in) == 1
    later = state.after(ChangeReport(through=high_water_mark(Timestamp(TIME.time + 9, 1))), ())
    assert not later.after(ChangeReport(), ()).complete_in


def test_a_scope_that_changes_twice_at_one_time_gains_twice() -> None:
    job = Gaining(["old", "b", "c"])
    job.start(database="shop", collection="old,b")
    first = job.plan(START)
    assert first is not None
    assert [*first.snapshots.gains.values()] == [high_water_mark(TIME)]
    reading = job.plan(first)
    assert reading is not None
    job.start(database="shop", collection="old,b,c")
    read = [*job.events(first, reading), *job.rest(reading)]
    assert [each["ns"]["coll"] for each in read if "fullDocument" in each] == ["b", "c"]


def test_what_a_scope_gains_during_a_snapshot_is_read_later() -> None:
    job, plan = Gaining(["b", "old"]), SnapshotPlan(TIME, end=Mark("shop.c"))  # b was passed
    signal = SnapshotRequest("s", "incremental", plan=plan)
    mode = SnapshotRequest("i", "initial", plan=plan)
    cases = (OLD, signal, [["old"], ["b"]]), (Scope("shop"), mode, [None, ["b", "old"]])
    for scope, request, expected in cases:
        start = Offset(AtTime(TIME), scope, snapshots=SnapshotQueue(requests=(request,)))
        job.start(database="shop", collection="old" if scope == OLD else "gone")
        between = job.plan(start)
        assert between is not None
        job.start(database="shop")
        ends = [each for each in job.rest(between) if each["operationType"] == SNAPSHOT_END]
        named = [each.get("collections") for each in ends]
        assert [found and [each["coll"] for each in found] for found in named] == expected


@pytest.mark.parametrize(
    ("given", "kept", "named"),
    [
        ({}, ["old"], ["b", "c"]),
        ({}, ["old", "dropped"], ["b", "c", "dropped"]),
        ({"collection": "old,c"}, ["dropped"], ["c"]),
        ({"snapshot.include.collection.list": "shop.b"}, [], ["b"]),
        ({"snapshot.include.collection.list": "shop.b"}, ["c"], ["b", "c"]),
        ({"snapshot.include.collection.list": "shop.x"}, [], None),
        ({"collection": "old"}, ["dropped"], None),
    ],
)
def test_what_a_scope_gains(
    given: Mapping[str, str], kept: list[str], named: list[str] | None
) -> None:
    """The end of its snapshot names what was read, and what the table has of dropped ones."""
    job = Gaining(["old", "b", "c"])
    job.namespaces = {("shop", name) for name in kept}
    job.start(database="shop", **given)
    ends = [each["collections"] for each in job.rest(START) if "collections" in each]
    assert [[each["coll"] for each in end] for end in ends] == ([] if named is None else [named])


def test_the_end_of_a_snapshot_without_collections_ends_what_was_gained(tmp_path: Path) -> None:
    """All of them may be dropped before it begins."""
    job = Gaining(["old", "b"])
    job.start(database="shop")
    gained = job.plan(START)
    assert gained is not None
    unread = job.commit(tmp_path, 0, START, gained).unread
    assert unread_names(unread) == "collections of database 'shop' outside of shop.old"
    job.chunks.present.clear()
    end = job.plan(gained)
    assert end is not None
    [ended] = job.events(gained, end)
    assert (ended["collections"], end.snapshots.gains) == ([], {})
    assert job.commit(tmp_path, 1, gained, end).unread == {}

"""An end of a snapshot names only collections whose documents were all read, whatever happens.

Signals, kills, repeated batches and changes of the scope come at random; what plans, and what Spark
calls, is real. The documents of a collection are numbers, each a piece of its own.
"""

import json
import random
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import bson
import pytest
from bson.timestamp import Timestamp

from spark_sink.events.positions import AtTime, EventRange, Position, time_of
from spark_sink.options.scope import Scope
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.snapshot.plan import Chunk, value_of
from spark_sink.snapshot.scheduler import SnapshotScheduler
from spark_sink.snapshot.selections import ScopeGain
from spark_sink.snapshot.signal_channels import SignalReceiver, send
from spark_sink.source.batch_planner import BatchPlanner, QueryOutput
from spark_sink.source.offsets import Offset
from spark_sink.source.readers import MergerouterStreamReader
from spark_sink.source.task_rows import SnapshotTask, SourceEvent
from tests.doubles.listed_collections import ListedCollections

NAMES = ("a", "b", "c", "d")
SCOPES = (NAMES, ("a", "b"), ("a",), ("b", "c"), ("a", "c", "d"))
PATTERNS = ("shop.*", "shop.a", "shop.b", "shop.[cd]", "shop.[bc]")
DOCUMENTS = 8
STEPS = 120


class CountedDocuments(ListedCollections):
    """Plans reads of the collections of NAMES in a scope."""

    def __init__(self, _client: Any, scope: Scope, _options: Any = None) -> None:
        super().__init__((f"shop.{each}" for each in NAMES), scope, DOCUMENTS, 4)


def documents_in(chunk: Chunk) -> set[tuple[str, int]]:
    first = 0 if chunk.lower is None else value_of(chunk.lower)
    end = DOCUMENTS if chunk.upper is None else value_of(chunk.upper)
    return {(chunk.collection.name, number) for number in range(first, end)}


class Query:
    """A query whose starts end at random; `read` has what each of its snapshots has read."""

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance, self.folder = chance, folder
        self.numbers, self.time = count(1), 1_700_000_000
        self.read: dict[str, set[tuple[str, int]]] = {}

    def start(self, names: Sequence[str]) -> StreamOptions:
        self.names = names
        uri, folder = "mongodb://127.0.0.1:1/", str(self.folder)
        scope = {"database": "shop", "collection": ",".join(names)}
        given = {"uri": uri, "signalFolder": folder, "snapshotMode": "initial", **scope}
        options = parse_options(given)
        client = Mock(with_retries=lambda call: call(), present=self.present)
        client.clocks = lambda: Mock(cluster_time=self.present())
        events = Mock(ends_at_present=False, quiet_after=None, next_batch=self.next_batch)
        chunks = CountedDocuments(client, options.scope)
        scheduler = SnapshotScheduler(chunks, options.snapshot.collections)
        receiver = SignalReceiver(client, options, scheduler)
        output = Mock(QueryOutput, follows_scope=True, namespaces=set)
        output.unread.return_value = ({}, ())
        self.planner = BatchPlanner(options, output, client, events, chunks, scheduler, receiver)
        self.reader = MergerouterStreamReader(options, 0.0, output)
        self.reader._planner = self.planner
        return options

    def present(self) -> Timestamp:
        return Timestamp(self.time, 1)

    def next_batch(self, start: Position, *_: Any, **__: Any) -> EventRange:
        is_empty = self.chance.random() < 0.5 or time_of(start) == self.present()
        return EventRange(start, start if is_empty else AtTime(self.present()), not is_empty)

    def send(self, *kinds: str) -> None:
        kind = self.chance.choice(kinds)
        data: dict[str, Any] = {"message": "x"} if kind == "log" else {}
        if kind == "execute-snapshot" or (kind == "stop-snapshot" and self.chance.random() < 0.7):
            data["data-collections"] = [self.chance.choice(PATTERNS)]
        if kind == "execute-snapshot":
            data["type"] = self.chance.choice(("incremental", "incremental", "blocking"))
        send(str(self.folder), {"id": f"{next(self.numbers):04}", "type": kind, "data": data})

    def batch(self, before: Offset) -> Offset:
        """Plan a batch, perhaps kill the query before or after, write it; return its end."""
        kinds = ("execute-snapshot", "execute-snapshot", "stop-snapshot", "pause-snapshot")
        for _ in range(self.chance.choice((0, 0, 0, 0, 1, 1, 4))):
            self.send(*kinds, "resume-snapshot", "log")
        end = self.planner.plan(before, None)
        if end is None:
            return before
        end = Offset.of(json.loads(json.dumps(end.document)))
        if self.chance.random() < 0.3:
            names = self.chance.choice(SCOPES) if self.chance.random() < 0.4 else self.names
            if self.chance.random() < 0.3:  # Spark has not logged the end
                self.start(names)
                return before
            for _ in range(self.chance.choice((0, 1, 3))):
                self.send("stop-snapshot", "log", "log", "pause-snapshot")
            self.start(names)
        self.write(before, end)
        return end

    def write(self, before: Offset, end: Offset) -> None:
        signals = end.snapshots
        for task in self.reader.added_tasks(before, end):
            if isinstance(task, SnapshotTask) and signals.running is not None:
                read = self.read.setdefault(signals.running.id, set())
                read.update(*(documents_in(part.chunk) for part in task.reads))
            elif isinstance(task, SourceEvent) and signals.batch.ending is not None:
                self.check(bson.decode(task.event), end)
        self.planner.signal_receiver.committed(end.snapshots)

    def check(self, event: dict[str, Any], end: Offset) -> None:
        """Check that an end of a snapshot claims no document that was not read."""
        ending, scope = end.snapshots.batch.ending, end.scope
        if event["operationType"] != "snapshotEnd" or ending is None or scope is None:
            return
        claimed = {name for name in NAMES if scope.accepts("shop", name)}
        if isinstance(ending.selection, ScopeGain):
            claimed = {name for name in claimed if ending.selection.accepts("shop", name)}
        elif "collections" in event:
            claimed = {named["coll"] for named in event["collections"]}
        # A scope that is gained once more stays unread until its own end.
        gained = [*end.snapshots.gains]
        claimed = {name for name in claimed if not any(e.accepts("shop", name) for e in gained)}
        of_claimed = {(name, number) for name in claimed for number in range(DOCUMENTS)}
        assert of_claimed <= self.read.get(ending.id, set()), f"of {ending.id}, {ending.kind}"


@pytest.mark.parametrize("seed", [*range(6), 27, 32, 35, 38, 74])
def test_no_end_of_a_snapshot_names_what_was_not_read(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.source.batch_planner.ChunkPlanner", CountedDocuments)
    monkeypatch.setattr("spark_sink.snapshot.signal_channels._POLL_LOCAL", 0.0)
    query = Query(random.Random(seed), tmp_path)
    options = query.start(query.chance.choice(SCOPES))
    offset = Offset(options.start, options.scope)
    for _ in range(STEPS):
        query.time += 1
        offset = query.batch(offset)
    assert query.read

"""Two starts of one job, each with a checkpoint of its own, paused at every step of their commits.

They take turns by seed. An offset is a number of the stream's events.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from deltalake import DeltaTable

from spark_sink.errors import SourceError
from spark_sink.events.positions import AtTime
from spark_sink.folders import Folder
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.rebuilding import restore_checkpoint
from spark_sink.jobs.tables_job import TablesJob, take_over
from spark_sink.jobs.task_tables import TaskReport, TaskTables, TaskWriter, bronze_schema
from spark_sink.rows.event_rows import EventRows
from spark_sink.signals.state import SignalState
from spark_sink.source.offsets import Offset
from spark_sink.tables.delta_log import Batch, DeltaLog
from tests.unit.spark_sink.tables.test_current_table import Stream

EVENTS, SECOND = 40, 1_700_000_000
RECORD = JobRecord(tables=("bronze", "current", "transactions"))


def stream_of(seed: int) -> Stream:
    """Return a stream whose `events` are changes in transactions, some of unknown documents."""
    stream = Stream(seed)
    events = []
    for number in range(EVENTS):
        if number % 5 == 4:  # an update of a document that nobody has
            event = stream.change(100 + number)
            del stream.collections["a", 100 + number], event["fullDocument"]
            event |= {"operationType": "update", "updateDescription": {"updatedFields": {"n": 1}}}
        else:
            [event] = stream.changes(1, keys=8)
        session = {"id": bson.Binary(b"s" * 16, 4), "uid": b""}
        event |= {"lsid": session, "txnNumber": number // 3}
        events.append({**event, "clusterTime": Timestamp(SECOND, number)})
    stream.events = events  # type: ignore[attr-defined]
    return stream


def end_of(number: int) -> dict[str, Any]:
    told = {"id": f"end {number}", "aggregate_type": "a", "type": "b", "additional_data": {}}
    signals = SignalState(notifications=({**told, "timestamp": 1},) if number % 2 else ())
    return Offset(AtTime(Timestamp(SECOND, number)), signals=signals).write()


class Start(threading.Thread):
    """A start of the job, which runs until its next step with each turn.

    It plans batches of its own until the end of the stream. `ended` is empty then, or tells why it
    has ended before; None while it runs.
    """

    def __init__(self, out: str, checkpoint: Path, stream: Stream, seed: int) -> None:
        super().__init__(daemon=True)
        self._out, self._checkpoint, self._stream = out, str(checkpoint), stream
        self._chance = random.Random(seed)
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self.ended: str | None = None

    def turn(self) -> None:
        """Run until the next step, or the end."""
        if self.ended is None:
            self._go.release()
            assert self._paused.acquire(timeout=60)

    def step(self) -> None:
        """Wait for the next turn."""
        self._paused.release()
        self._go.acquire()

    def run(self) -> None:
        self._go.acquire()
        ended = "a defect"
        try:
            self._follow()
            ended = ""
        except SourceError as error:
            ended = str(error)
        except FileNotFoundError as error:
            removed = "/current/_changes/" in str(error)  # which query_run tells as another start
            ended = "another start has removed staged changes" if removed else str(error)
        finally:
            self.ended = ended
            self._paused.release()

    def _follow(self) -> None:
        folder = JobFolder(self._out, self._checkpoint)
        epoch = take_over(folder)
        self.step()
        restore_checkpoint(folder)
        folder.begin(RECORD)
        job = ScriptedJob(folder, self._stream, epoch)
        Folder(self._checkpoint).write("metadata", '{"id": "q"}')
        while True:
            done = folder.last_committed()
            number, begin = (0, 0) if done is None else (done.number + 1, position(done.offset))
            if not folder.offset(number):
                if begin == EVENTS:
                    return
                end = min(EVENTS, begin + self._chance.randrange(1, 9))
                folder.plan_batch(number, end_of(end))
                self.step()
            job._commit(SimpleNamespace(sparkSession=None), number)  # type: ignore[arg-type]
            self.step()
            Folder(self._checkpoint).write(f"commits/{number}", "v1\n{}")


def position(offset: dict[str, Any]) -> int:
    time = Offset.read(offset).time
    assert time is not None
    return time.inc


class ScriptedJob(TablesJob):
    """A job that reads the events of a stream between two offsets, without Spark."""

    def __init__(self, folder: JobFolder, stream: Stream, epoch: int) -> None:
        super().__init__(folder, RECORD, "mongodb://none", epoch=epoch)
        self._stream, self._at, self._by = stream, folder, epoch
        self._rows = bronze_schema(EventRows().schema)

    def _reports(self, batch: Any, of: Batch, at: Offset) -> list[TaskReport]:
        first = position(dict(of.begin)) if of.begin else 0
        names = [self._at.table(name) for name in ("bronze", "current", "quarantine")]
        tables = TaskTables(*names, True, epoch=self._by)
        rows, events = EventRows(), self._stream.events[first : at.time.inc]  # type: ignore
        with TaskWriter(tables, rows.schema, of.number) as writer:
            for each in rows.arrow_batches(RawBSONDocument(bson.encode(e)) for e in events):
                writer.add(each)
            return [writer.close()]


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the threads of starts pause before and after the steps of their commits."""

    def pausing(owner: type, name: str, *, after: bool) -> None:
        original = getattr(owner, name)

        def paused(*args: Any, **named: Any) -> Any:
            thread = threading.current_thread()
            if isinstance(thread, Start):
                thread.step()
            found = original(*args, **named)
            if after and isinstance(thread, Start):
                thread.step()
            return found

        monkeypatch.setattr(owner, name, paused)

    pausing(ScriptedJob, "_reports", after=True)
    pausing(DeltaLog, "reload", after=True)
    pausing(DeltaLog, "_write", after=True)
    pausing(DeltaLog, "_create", after=False)


def take_turns(starts: list[Start], chance: random.Random) -> None:
    """Run the first start for a while, then others with it, until all have ended."""
    for each in starts:
        each.start()
    for _ in range(chance.randrange(80)):
        starts[0].turn()
    while left := [each for each in starts if each.ended is None]:
        chosen = chance.choice(left)
        for _ in range(chance.randrange(1, 60)):
            chosen.turn()


def check_two_starts(out: str, folder: Path, seed: int) -> None:
    """Run two starts, and a last one, which finds what they left; then check the tables."""
    chance, stream = random.Random(seed), stream_of(seed)
    first, second = (Start(out, folder / str(n), stream, seed + n) for n in range(2))
    take_turns([first, second], chance)
    last = Start(out, folder / "last", stream, seed)
    take_turns([last], chance)
    assert last.ended == "", (last.ended, first.ended, second.ended)
    refused = [str(each.ended) for each in (first, second) if each.ended]
    assert all("another start" in each for each in refused), refused
    check_tables(out, stream)


def check_tables(out: str, stream: Stream) -> None:
    """Check that no event is lost, doubled or applied wrongly, in each table."""
    names = ("bronze", "current", "transactions", "quarantine", "notifications")
    tables = {n: DeltaTable(f"{out}/{n}").to_pyarrow_table().to_pylist() for n in names}
    events: list[dict[str, Any]] = stream.events  # type: ignore[attr-defined]
    tokens = [each["_id"]["_data"] for each in events]
    assert sorted(each["token"] for each in tables["bronze"]) == tokens
    documents = {(r["collection"], bson.decode(r["document"])["_id"]): r for r in tables["current"]}
    assert {k: bson.decode(r["document"]) for k, r in documents.items()} == stream.collections
    counted: Counter[str] = Counter()
    for each in tables["transactions"]:
        counted[each["id"]] += each["event_count"]
    numbers = Counter(each["txnNumber"] for each in events)
    assert sorted(counted.values()) == sorted(numbers.values())
    unknown = [each["_id"]["_data"] for each in events if each["documentKey"]["_id"] >= 100]
    assert sorted(each["token"] for each in tables["quarantine"]) == unknown
    ends = {position(each["offset"]) for each in DeltaLog(f"{out}/bronze").positions().values()}
    told = sorted(each["id"] for each in tables["notifications"])
    assert told == sorted(f"end {number}" for number in ends if number % 2)


@pytest.mark.usefixtures("paused")
@pytest.mark.parametrize("seed", range(12))
def test_of_two_starts_no_event_is_lost_or_doubled(tmp_path: Path, seed: int) -> None:
    check_two_starts(str(tmp_path / "job"), tmp_path, seed)

"""A job without Spark and a router, whose stream is a list of events.

Its batches go through the job's own commits to all six tables. An offset lies between two events.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
from bson.timestamp import Timestamp
from deltalake import DeltaTable

from shard_client.bson.resume_token import cluster_time_of
from spark_sink.events.positions import AtTime
from spark_sink.events.runs import run_of
from spark_sink.folders import Folder
from spark_sink.jobs.history.newest_batch import restore_checkpoint
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_tables import dated_schema
from spark_sink.jobs.table_commits import TableCommits, take_over
from spark_sink.jobs.task_writer import TaskReport, TaskTables, TaskWriter
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.rows.event_rows import EventRows
from spark_sink.snapshot.queue import BatchPart, SnapshotQueue
from spark_sink.source.offsets import Offset
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_state import Batch
from tests.doubles import table_changes
from tests.doubles.table_changes import Documents, RandomChanges

RECORD = JobRecord(
    tables=("bronze", "messages", "current", "transactions"),
    messages={"prefix": "shop"},
    options={"snapshotMode": "no_data", "database": "shop"},
)
BESIDE = ("transactions", "notifications", "quarantine")
"""The tables that not all batches have."""
CURRENT_ALONE = replace(RECORD, tables=("current",))
"""A job whose batches begin with the quarantine."""
SIX = ("bronze", "messages", "current", *BESIDE)


class Script:
    """A stream of changes in transactions of some `size`, a few of documents that nobody has."""

    def __init__(self, seed: int, count: int = 40, size: int = 3) -> None:
        stream = RandomChanges(seed)
        self.collections = stream.collections
        """The documents in the end."""
        self.handled: tuple[str, ...] = ()
        """The ids of signals that the next batches have processed."""
        self.events: list[dict[str, Any]] = []
        for number in range(count):
            stream.number += 1  # so that an offset lies between two events
            if number % 5 == 4:
                event = stream.change(100 + number)
                del stream.collections["a", 100 + number], event["fullDocument"]
                update = {"updatedFields": {"n": 1}}
                event |= {"operationType": "update", "updateDescription": update}
            else:
                [event] = stream.changes(1, keys=8)
            session = {"id": bson.Binary(b"s" * 16, 4), "uid": b""}
            event |= {"lsid": session, "txnNumber": number // size}
            self.events.append({**event, "clusterTime": cluster_time_of(event["_id"]["_data"])})

    def time(self, count: int) -> Timestamp:
        """Return the cluster time of the last of the first events."""
        found: Timestamp = self.events[count - 1]["clusterTime"]
        return found

    def end(self, count: int) -> dict[str, Any]:
        """Return the offset behind the first events; each second one has a notification."""
        told = {"id": f"end {count}", "aggregate_type": "a", "type": "b", "additional_data": {}}
        notified = ({**told, "timestamp": 1},) if count % 2 else ()
        signals = SnapshotQueue(self.handled, batch=BatchPart(notifications=notified))
        time = self.time(count)
        return Offset(AtTime(Timestamp(time.time, time.inc + 1)), snapshots=signals).document

    def before(self, offset: Mapping[str, Any]) -> int:
        """Return how many events are before an offset."""
        cut = Offset.of(offset).time if offset else Timestamp(0, 0)
        assert cut is not None
        return sum(each["clusterTime"] < cut for each in self.events)


class ScriptedJob:
    """A start of a job that reads the events of a script between two offsets."""

    def __init__(
        self, folder: JobFolder, script: Script, epoch: int, record: JobRecord = RECORD
    ) -> None:
        rows = dated_schema(arrow_schema(EventRows().schema))
        self._commits = TableCommits(folder, record, epoch, TableForm(), rows)
        self._script = script
        addresses = {name: folder.table(name) for name in SIX}
        self._written_to = TaskTables(addresses, RECORD.messages, epoch)

    def commit(self, number: int) -> None:
        """Commit a batch, as Spark calls a job."""
        batch = self._commits.planned(number)
        self._commits.commit(None, batch, self.written(batch))

    def written(self, batch: Batch) -> TaskReport:
        """Write the files of a batch, as a task does."""
        first, last = map(self._script.before, (batch.begin, batch.offset))
        made, events = EventRows(), self._script.events[first:last]
        with TaskWriter(self._written_to, made.schema, batch.number) as writer:
            for each in made.batches(run_of([bson.encode(event)]) for event in events):
                writer.add(each)
            return writer.close()


def follow(
    out: str,
    checkpoint: Path,
    script: Script,
    seed: int = 0,
    pause: Callable[[], None] = lambda: None,
    batches: int = 1_000,
    record: JobRecord = RECORD,
) -> None:
    """Run a start of the job for some batches, at most until the script's end.

    It plans batches of its own, by seed, and calls `pause` between the steps.
    """
    chance, folder = random.Random(seed), JobFolder(out, str(checkpoint))
    epoch = take_over(folder)
    pause()
    restore_checkpoint(folder)
    folder.begin(record)
    job, log = ScriptedJob(folder, script, epoch, record), Folder(str(checkpoint))
    if folder.checkpoint.query() is None:
        log.write("metadata", json.dumps({"id": f"q{seed}"}))
    for _ in range(batches):
        done = folder.checkpoint.last_committed()
        number, begin = (0, 0) if done is None else (done.number + 1, script.before(done.offset))
        if not folder.checkpoint.offset(number):
            if begin == len(script.events):
                return
            end = min(len(script.events), begin + chance.randrange(1, 9))
            log.write(f"offsets/{number}", f"v1\n{{}}\n{json.dumps(script.end(end))}")
            pause()
        job.commit(number)
        pause()
        log.write(f"commits/{number}", "v1\n{}")


def rows_in(out: str, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    found: list[dict[str, Any]] = DeltaTable(f"{out}/{name}").to_pyarrow_table().to_pylist()
    return found


def documents_in(out: str) -> Documents:
    """Return the documents of a folder's current table, each of which has one row."""
    return table_changes.documents_in(f"{out}/current")


def check_tables(out: str, script: Script, record: JobRecord = RECORD) -> None:
    """Check that each table has each event of the script once, and applied."""
    assert documents_in(out) == script.collections
    unknown = [e["_id"]["_data"] for e in script.events if e["documentKey"]["_id"] >= 100]
    assert sorted(each["token"] for each in rows_in(out, "quarantine")) == unknown
    if record == CURRENT_ALONE:
        return
    tables = {name: rows_in(out, name) for name in SIX}
    tokens = [each["_id"]["_data"] for each in script.events]
    assert sorted(each["token"] for each in tables["bronze"]) == tokens
    messages = [(each["token"], each["index"]) for each in tables["messages"]]
    assert len(messages) == len({*messages})
    assert {token for token, _ in messages} == {*tokens}
    counted: Counter[str] = Counter()
    for each in tables["transactions"]:
        counted[each["id"]] += each["event_count"]
    numbers = Counter(each["txnNumber"] for each in script.events)
    assert sorted(counted.values()) == sorted(numbers.values())
    last = {r["batch"]: r["token"] for r in sorted(tables["bronze"], key=lambda r: r["token"])}
    ends = {tokens.index(token) + 1 for token in last.values()}
    told = sorted(each["id"] for each in tables["notifications"])
    assert told == sorted(f"end {number}" for number in ends if number % 2)

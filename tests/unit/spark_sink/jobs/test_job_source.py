"""Which batches a job's driver reads by itself."""

from dataclasses import replace
from typing import Any

import pytest
from bson.timestamp import Timestamp

from spark_sink.events.heartbeats import heartbeat
from spark_sink.events.positions import AtTime
from spark_sink.jobs.job_query import job_options
from spark_sink.jobs.job_source import JobStreamReader
from spark_sink.jobs.task_writer import TaskTables
from spark_sink.options.stream_options import parse_options
from spark_sink.snapshot.queue import BatchPart, SnapshotQueue
from spark_sink.source.event_tasks import EventsTask
from spark_sink.source.offsets import Offset
from spark_sink.source.task_rows import SourceEvent

START, END = AtTime(Timestamp(100, 1)), AtTime(Timestamp(200, 1))
BEFORE = Offset(START, heartbeat=Timestamp(90, 1))
AT = Offset(END, events=3, heartbeat=Timestamp(90, 1))


def reader(**options: str) -> JobStreamReader:
    given = parse_options({"uri": "mongodb://127.0.0.1:1/", "database": "shop", **options})
    return JobStreamReader(given, 0.0, TaskTables({"bronze": "bronze", "quarantine": "quarantine"}))


def test_a_few_events_are_one_task() -> None:
    assert reader().small_batch(BEFORE, AT) == [EventsTask(START, END)]


def test_reading_begins_where_the_stream_was_idle() -> None:
    idle = Timestamp(150, 1)
    tasks = reader().small_batch(BEFORE, replace(AT, quiet_until=idle))
    assert tasks == [EventsTask(AtTime(idle), END)]


def test_a_batch_without_events_has_its_other_rows() -> None:
    beat = Timestamp(200, 1)
    assert reader().small_batch(BEFORE, replace(AT, events=0)) == []
    assert reader().small_batch(BEFORE, replace(AT, events=0, heartbeat=beat)) == [
        SourceEvent(heartbeat(beat))
    ]


@pytest.mark.parametrize(
    "at",
    [
        replace(AT, events=5001),
        replace(AT, events=None),
        replace(AT, events=0, snapshots=SnapshotQueue(batch=BatchPart(END.time))),
    ],
    ids=["many events", "of an unknown size", "a part of a snapshot"],
)
def test_other_batches_are_read_in_tasks(at: Offset) -> None:
    """The reader decides without a server, which planning asks once for parts of collections."""
    assert reader().small_batch(BEFORE, at) is None


def test_tasks_report_sizes_where_bytes_are_limited() -> None:
    options: dict[str, Any] = {"maxBytesPerTrigger": "1000000"}
    assert reader(**options).small_batch(BEFORE, AT) is None


def test_a_job_s_tasks_divide_a_backlog_of_one_shard() -> None:
    """Tables order a document's changes by their tokens, whichever tasks have read them."""
    options = parse_options(job_options({"uri": "mongodb://127.0.0.1:1/"}, 8))
    most, each = options.max_events_per_trigger, options.events_per_partition
    assert (most, each, options.snapshot.tasks) == (400_000, 50_000, 8)
    given = {"uri": "mongodb://127.0.0.1:1/", "eventsperpartition": "7", "snapshotTasks": "3"}
    options = parse_options(job_options(given, 8))
    assert (options.events_per_partition, options.snapshot.tasks) == (7, 3)

"""What tasks of Spark read, and how: the same for streams and for batch reads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import bson
import pyarrow as pa
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pyspark.sql.datasource import InputPartition

from spark_sink.batch_planner import BatchPlanner
from spark_sink.event_rows import EventRows
from spark_sink.event_runs import run_of
from spark_sink.field_edits import FieldEdits
from spark_sink.fragments import joined
from spark_sink.heartbeats import Heartbeat
from spark_sink.options import StreamOptions
from spark_sink.planned_batch import Cluster, Limits
from spark_sink.positions import AtTime, Position, Token, high_water_mark, time_of
from spark_sink.query_start import cluster_time_at, query_started
from spark_sink.read_reports import ReportInbox, report
from spark_sink.read_task import ReadTask, TaskReader
from spark_sink.router_client import RouterClient
from spark_sink.row_schema import typed_documents
from spark_sink.signals.state import SignalState
from spark_sink.snapshot.plan import Chunk, SnapshotPlan, after
from spark_sink.snapshot.planner import SnapshotPlanner
from spark_sink.snapshot.reader import ChunkReader, Requested, SnapshotTask

SNAPSHOT_END = "snapshotEnd"
"""The operation type of the row that follows the documents of a stream's snapshot."""

# Seconds that a getMore may wait: short where a micro-batch waits for its end to be found.
_PLANNING_AWAIT = 0.1
_READING_AWAIT = 0.5


@dataclass(frozen=True)
class SnapshotEnd:
    """A task whose only row is the end of a snapshot.

    mark: the snapshot's; collections: the databases and names of those that it has read, empty for
    all of the scope; requested: whether a signal has asked for it.
    """

    mark: Timestamp
    collections: tuple[tuple[str, str], ...] = ()
    requested: bool = False


Task = ReadTask | SnapshotTask | SnapshotEnd | Heartbeat


@dataclass
class TaskPartition(InputPartition):
    """What one task of Spark reads."""

    value: Task


def rows_for(options: StreamOptions) -> EventRows:
    """The rows that the options ask for. Raises OptionError for a schema that cannot be used."""
    return EventRows(
        raw_documents=options.raw_documents,
        canonical=options.canonical_json,
        typed=typed_documents(options),
    )


def planner_for(
    client: RouterClient,
    options: StreamOptions,
    inbox: ReportInbox | None,
    *,
    loaded: float | None = None,
) -> BatchPlanner:
    """A planner of batches. loaded: when a query's `load()` was called; None for no query."""

    def beginning() -> AtTime:
        clocks = client.clocks()
        started = time.time() if loaded is None else query_started(loaded)
        return AtTime(cluster_time_at(started, clocks.wall - time.time(), clocks.cluster_time))

    patiently = client.patiently
    cluster = Cluster(
        watch=partial(client.watch_tokens, max_await=_PLANNING_AWAIT),
        newest=lambda: patiently(client.clocks).cluster_time,
        present=lambda: patiently(client.present),
        beginning=lambda: patiently(beginning),
        shards=lambda: patiently(client.shards),
    )
    idle_advance: float = options.idle_advance_seconds
    if options.heartbeat_interval:
        idle_advance = min(idle_advance, options.heartbeat_interval)
    limits = Limits(
        max_bytes=options.max_bytes_per_trigger,
        events_per_task=options.events_per_partition,
        in_total_order=options.in_total_order,
        idle_advance=idle_advance,
    )
    return BatchPlanner(cluster, limits, inbox, patience=options.patience)


def snapshot_planner(client: RouterClient, options: StreamOptions) -> SnapshotPlanner:
    """A planner of snapshots of the collections that the options let a snapshot read."""
    accepts = options.snapshot.accepts if options.snapshot.collections else None
    return SnapshotPlanner(client.plain(), options.scope, options.rows_per_chunk, accepts)


def snapshot_tasks(plan: SnapshotPlan, options: StreamOptions) -> list[Task]:
    """What the tasks of a snapshot's batch read; the last batch tells the end, if any was read."""
    if plan.ended:
        return [] if plan.only == () else [SnapshotEnd(plan.mark, plan.only or ())]
    return [chunk_task(chunk, plan.mark, options) for chunk in plan.chunks]


def chunk_task(chunk: Chunk, mark: Timestamp, options: StreamOptions) -> SnapshotTask:
    """The task of a chunk, with the filter that the options have for its collection."""
    filters = options.snapshot.filters or {}
    return SnapshotTask(chunk, mark, filters.get(str(chunk.collection)))


def signal_tasks(state: SignalState, start: Position, options: StreamOptions) -> list[Task]:
    """The tasks that signals add to a batch. start: the batch's beginning in the stream."""
    tasks: list[Task] = []
    reading = state.reading
    if reading is not None:
        request = state.request(reading.request)
        requested = Requested(request.id, request.blocking, _token_at(start))
        for chunk in reading.chunks:
            task = chunk_task(chunk, reading.at, options)
            own, given = task.condition, request.condition(str(chunk.collection))
            both = {"$and": [own, given]} if own and given else own or given
            tasks.append(replace(task, condition=both, requested=requested))
    if state.ended is not None:
        tasks.append(SnapshotEnd(state.ended.mark, state.ended.collections, requested=True))
    return tasks


def _token_at(position: Position) -> str:
    """A token that sorts below the events after a position; empty for "now"."""
    if isinstance(position, Token):
        return position.data
    time = time_of(position)
    return "" if time is None else high_water_mark(time)


def read_task(task: Task, options: StreamOptions) -> Iterator[pa.RecordBatch]:
    """The rows of one task, as Arrow batches. Raises StreamError."""
    rows = rows_for(options)
    edits = FieldEdits(options.field_edits)
    if isinstance(task, Heartbeat):
        yield from rows.arrow_batches([task.event()])
        return
    client = RouterClient(options)
    try:
        if isinstance(task, SnapshotEnd):
            now = client.patiently(client.clocks).cluster_time
            end = _end_of_snapshot(task, now)
            yield from rows.arrow_batches([end])
            return
        if isinstance(task, SnapshotTask):
            chunk = ChunkReader(
                client.mongo,
                task,
                lambda: client.clocks().cluster_time,
                patience=options.patience,
            )
            yield from rows.batches_of_runs(edits.runs(chunk.runs()))
            return
        watch = partial(client.watch_events, batch_size=0, max_await=_READING_AWAIT)
        reader = TaskReader(task, watch, options.patience)
        if options.splits_large_events:
            whole = (run_of([event]) for event in joined(reader.events()))
            yield from rows.batches_of_runs(edits.runs(whole), shard=task.shard)
        else:
            yield from rows.batches_of_runs(edits.runs(reader.runs()), shard=task.shard)
    finally:
        client.close()
    if task.report_to is not None:
        report(reader.passage, task.batch, task.report_to)


def _end_of_snapshot(end: SnapshotEnd, now: Timestamp) -> RawBSONDocument:
    """The event of a snapshot's end. now: a time that all chunks had been read by."""
    mark = end.mark
    token = {"_data": high_water_mark(after(mark).time)}
    event: dict[str, Any] = {"_id": token, "operationType": SNAPSHOT_END, "clusterTime": mark}
    event["readUntil"] = max(mark, now)
    if end.collections:
        event["collections"] = [{"db": name, "coll": coll} for name, coll in end.collections]
    if end.requested:
        event["requested"] = True
    return RawBSONDocument(bson.encode(event))

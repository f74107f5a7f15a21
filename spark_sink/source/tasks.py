"""The tasks of Spark: what they read, and how; the same for streams and for batch reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import bson
import pyarrow as pa
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure
from pyspark.sql.datasource import InputPartition

from shard_client.bson.resume_token import high_water_mark
from spark_sink.batches.event_rate import report
from spark_sink.batches.event_tasks import EventsTask, TaskReader
from spark_sink.events.header import SNAPSHOT_END, join_fragments
from spark_sink.events.positions import AtTime, Position, Token, after, time_of
from spark_sink.events.runs import Run, run_of, sort_key
from spark_sink.events.update_descriptions import described
from spark_sink.options.scope import Scope
from spark_sink.options.stream_options import RetryPolicy, StreamOptions
from spark_sink.rows.event_rows import EventRows
from spark_sink.rows.field_edits import FieldEdits, key_is_masked
from spark_sink.signals.requests import CollectionPatterns, SnapshotRequest
from spark_sink.signals.state import SnapshotQueue
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.snapshot.plan import Chunk
from spark_sink.snapshot.reader import ChunkRead, ChunkReader
from spark_sink.snapshot.unread import ScopeGain
from spark_sink.source.schema import typed_documents
from spark_sink.stream.raw_replies import one_ahead
from spark_sink.stream.router_client import RouterClient


@dataclass(frozen=True)
class SnapshotTask:
    """Chunks of a snapshot to read, one after the other."""

    reads: tuple[ChunkRead, ...]


@dataclass(frozen=True)
class GivenEvent:
    """An event of the source's own, as BSON, for which nothing is read."""

    event: bytes


Task = EventsTask | SnapshotTask | GivenEvent
"""What a task returns the rows of."""


@dataclass
class TaskPartition(InputPartition):
    """What one task of Spark reads, and its scope if that differs from the options'."""

    value: Task
    scope: Scope | None = None


def rows_for(options: StreamOptions) -> EventRows:
    """Return the rows that the options request. Raises OptionError for an invalid schema."""
    return EventRows(
        raw_documents=options.raw_documents,
        canonical=options.canonical_json,
        typed=typed_documents(options),
        tolerant=options.tolerant,
    )


def chunk_planner(client: RouterClient, options: StreamOptions) -> ChunkPlanner:
    """Return a planner of snapshots of the collections that the options include."""
    snapshot = options.snapshot
    return ChunkPlanner(client.mongo, options.scope, snapshot.tasks, snapshot.chunk_rows)


def require_maskable(client: RouterClient, options: StreamOptions) -> None:
    """Raise StreamError if a field is to be masked that is a part of a collection's shard key.

    Without the right to read shard keys, the task of the first event raises it.
    """
    planner = chunk_planner(client, options)
    try:
        collections = client.with_retries(planner.collections)
    except OperationFailure:
        return
    for collection in collections:
        for edit in options.masked_fields:
            is_of_key = any(edit.meets(field.encode().split(b".")) for field in collection.key)
            if is_of_key and edit.concerns(collection.database, collection.name):
                raise key_is_masked(edit, str(collection))


def chunk_read(chunk: Chunk, snapshot_time: Timestamp, options: StreamOptions) -> ChunkRead:
    """Return what is read of a chunk, with the options' filter for its collection."""
    filters = options.snapshot.filters or {}
    return ChunkRead(chunk, snapshot_time, filters.get(str(chunk.collection)))


def snapshot_tasks(
    state: SnapshotQueue,
    start: Position,
    options: StreamOptions,
    planner: ChunkPlanner,
    present: Callable[[], Timestamp],
) -> list[Task]:
    """Return the tasks that snapshots add to a batch, which begins at `start` in the stream.

    `present` returns a time after all reads of earlier batches. Raises PyMongoError.
    """
    tasks: list[Task] = []
    request, reading, ended = state.running, state.reading, state.ending
    if request is not None and reading is not None:
        signal = {"id": request.id, "type": request.kind, "streamed": _token_at(start)}
        shown = None if request.kind == "initial" else signal

        def read_of(chunk: Chunk) -> ChunkRead:
            read = chunk_read(chunk, reading, options)
            own, given = read.condition, request.reads.condition(str(chunk.collection))
            both = {"$and": [own, given]} if own and given else own or given
            return replace(read, condition=both, signal=shown)

        assert request.plan is not None
        planned = planner.tasks(request.plan, request.selection)
        tasks += [SnapshotTask(tuple(map(read_of, chunks))) for chunks in planned]
    if ended is not None:
        of_all = ended.kind == "initial" and ended.reads == CollectionPatterns()
        names = None if of_all else {*ended.unread, *planner.names(ended.reads_whole)}
        if names and not ended.is_required:  # what the scope has gained meanwhile is read later
            gains = [each.reads for each in state.requests if isinstance(each.reads, ScopeGain)]
            names = {name for name in names if not any(gain.accepts(*name) for gain in gains)}
        if names != set() or isinstance(ended.reads, ScopeGain):
            tasks.append(GivenEvent(_end_of_snapshot(ended, names, present())))
    return tasks


def _token_at(position: Position) -> str:
    """Return a token that sorts below the events after a position; empty for "now"."""
    if isinstance(position, Token):
        return position.data
    time = time_of(position)
    return "" if time is None else high_water_mark(time)


def rows_of_task(task: Task, options: StreamOptions) -> Iterator[pa.RecordBatch]:
    """Return the rows of one task, as Arrow batches. Raises StreamError."""
    rows = rows_for(options)
    if isinstance(task, GivenEvent):
        yield from rows.batches([run_of([task.event])])
        return
    with closing(RouterClient(options)) as client:
        if isinstance(task, SnapshotTask):
            yield from read_chunks(client, task.reads, options)
            return
        if options.splits_large_events:
            start, end = (
                _in_fragments(position, task, options) for position in (task.start, task.end)
            )
            task = replace(task, start=start, end=end)
        reader = TaskReader(task, client.watch_events, options.retry_policy)
        runs: Iterable[Run] = one_ahead(reader.runs())
        if options.splits_large_events:
            runs = (run_of([event]) for event in join_fragments(reader.events()))
        runs = FieldEdits(options.edits).runs(map(described, runs))
        yield from rows.batches(runs, shard=task.shard)
    if task.report_to is not None:
        report(reader.stats, task.report_to)


def read_chunks(
    client: RouterClient, reads: Iterable[ChunkRead], options: StreamOptions
) -> Iterator[pa.RecordBatch]:
    """Return the documents of chunks as rows, as Arrow batches. Raises StreamError."""
    runs_of = partial(_chunk_runs, client, policy=options.retry_policy)
    read_ahead = one_ahead(run for read in reads for run in runs_of(read))
    runs = FieldEdits(options.edits).runs(read_ahead)
    yield from rows_for(options).batches(runs)


def _chunk_runs(client: RouterClient, read: ChunkRead, policy: RetryPolicy) -> Iterator[Run]:
    newest = partial(client.newest_time, read.snapshot_time)
    return ChunkReader(client.mongo, read, newest, retry_policy=policy).runs()


def _in_fragments(position: Position, task: EventsTask, options: StreamOptions) -> Position:
    """Return a position in a stream that splits large events. Raises StreamError.

    Servers of 6.0 give events tokens of another version there, which sort above those of the same
    events in other streams (docs/protocol.md#resume-tokens). The position may be of a batch that
    was planned before the option was set: it is found by the number of events before it.
    """
    if not isinstance(position, Token) or not position.is_of_version_1:
        return position
    time = position.cluster_time
    section = EventsTask(AtTime(time), after(time), task.shard)
    tokens = replace(options, pipeline=(*options.pipeline[:-1], {"$project": {"_id": 1}}))
    fragments: list[list[bytes]] = []
    for chosen in (tokens, options):
        with closing(RouterClient(chosen)) as client:
            events = TaskReader(section, client.watch_events, options.retry_policy).events()
            fragments.append(list(join_fragments(events)))
    number = sum(sort_key(token) <= position.data for token in fragments[0])
    return Token.of(fragments[1][number - 1]) if number else AtTime(time)


def _end_of_snapshot(
    request: SnapshotRequest, names: set[tuple[str, str]] | None, now: Timestamp
) -> bytes:
    """Return the event of the end of a requested snapshot, or of the initial one.

    `names` are the databases and collections that it has read, None for all of the scope.
    """
    assert request.plan is not None
    snapshot_time = request.plan.snapshot_time
    token = {"_data": high_water_mark(after(snapshot_time).time)}
    event: dict[str, Any] = {"_id": token, "operationType": SNAPSHOT_END}
    event |= {"clusterTime": snapshot_time, "readUntil": max(snapshot_time, now)}
    if names is not None:
        event["collections"] = [{"db": database, "coll": name} for database, name in sorted(names)]
    if request.kind != "initial":
        event["requested"] = request.id
    return bson.encode(event)

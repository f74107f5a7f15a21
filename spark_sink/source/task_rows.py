"""The tasks of Spark: what they read, and how; the same for streams and for batch reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from bson.timestamp import Timestamp
from pyspark.sql.datasource import InputPartition

from spark_sink.events.header import join_fragments
from spark_sink.events.positions import AtTime, Position, Token, after
from spark_sink.events.runs import Run, run_of, sort_key
from spark_sink.events.update_descriptions import described
from spark_sink.options.scope import Scope
from spark_sink.options.stream_options import StreamOptions
from spark_sink.rows.event_rows import EventRows
from spark_sink.rows.field_edits import FieldEdits
from spark_sink.snapshot.plan import Chunk
from spark_sink.snapshot.reader import ChunkRead, ChunkReader
from spark_sink.source.event_tasks import EventsTask, TaskReader
from spark_sink.source.schema import typed_documents
from spark_sink.source.task_reports import report
from spark_sink.stream.raw_replies import one_ahead
from spark_sink.stream.router_client import RouterClient


@dataclass(frozen=True)
class SnapshotTask:
    """Chunks of a snapshot to read, one after the other."""

    reads: tuple[ChunkRead, ...]


@dataclass(frozen=True)
class SourceEvent:
    """An event of the source's own, as BSON, for which nothing is read."""

    event: bytes


Task = EventsTask | SnapshotTask | SourceEvent
"""What a task returns the rows of."""


@dataclass
class TaskPartition(InputPartition):
    """What one task of Spark reads, and its scope if that differs from the options'."""

    value: Task  # Spark's own name: it passes an InputPartition(None) where there are none
    scope: Scope | None = None


def rows_for(options: StreamOptions) -> EventRows:
    """Return the rows that the options request. Raises OptionError for an invalid schema."""
    return EventRows(
        raw_documents=options.raw_documents,
        canonical=options.canonical_json,
        typed=typed_documents(options),
        tolerant=options.tolerant,
    )


def chunk_read(
    chunk: Chunk,
    snapshot_time: Timestamp,
    options: StreamOptions,
    condition: Mapping[str, Any] | None = None,
    **form: Any,
) -> ChunkRead:
    """Return what is read of a chunk: what meets the options' filter and a further `condition`.

    `form` are the other fields of the result.
    """
    filters = options.snapshot.filters or {}
    both = [each for each in (filters.get(str(chunk.collection)), condition) if each]
    return ChunkRead(chunk, snapshot_time, {"$and": both} if both else None, **form)


def rows_of_task(task: Task, options: StreamOptions) -> Iterator[pa.RecordBatch]:
    """Return the rows of one task, as Arrow batches. Raises StreamError."""
    rows = rows_for(options)
    if isinstance(task, SourceEvent):
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

    def runs_of(read: ChunkRead) -> Iterator[Run]:
        newest = partial(client.newest_time, read.snapshot_time)
        return ChunkReader(client.mongo, read, newest, retry_policy=options.retry_policy).runs()

    read_ahead = one_ahead(run for read in reads for run in runs_of(read))
    runs = FieldEdits(options.edits).runs(read_ahead)
    yield from rows_for(options).batches(runs)


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

"""The tasks of a batch that read a part of a snapshot, and the event of its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bson
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from spark_sink.events.header import SNAPSHOT_END
from spark_sink.events.positions import Position, Token, after, time_of
from spark_sink.options.stream_options import StreamOptions
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.snapshot.queue import SnapshotQueue, SnapshotRequest
from spark_sink.snapshot.selections import EVERYTHING, Namespace, ScopeGain
from spark_sink.snapshot.unread import token_in
from spark_sink.source.task_rows import SnapshotTask, SourceEvent, Task, chunk_read


def tasks_of_queue(
    queue: SnapshotQueue,
    start: Position,
    options: StreamOptions,
    planner: ChunkPlanner,
    present: Callable[[], Timestamp],
) -> list[Task]:
    """Return the tasks that snapshots add to a batch, which begins at `start` in the stream.

    `present` returns a time after all reads of earlier batches. Raises PyMongoError.
    """
    request, part = queue.running, queue.batch
    tasks: list[Task] = []
    if request is not None and request.plan is not None and part.reading is not None:
        signal = {"id": request.id, "type": request.kind, "streamed": _token_at(start)}
        shown = None if request.kind == "initial" else signal
        for chunks in planner.tasks(request.plan, request.selection):
            reads = []
            for chunk in chunks:
                condition = request.selection.condition(str(chunk.collection))
                reads.append(chunk_read(chunk, part.reading, options, condition, signal=shown))
            tasks.append(SnapshotTask(tuple(reads)))
    end = None if part.ending is None else _end_of_snapshot(part.ending, queue, planner, present)
    if end is not None:
        tasks.append(SourceEvent(end))
    return tasks


def _token_at(position: Position) -> str:
    """Return a token that sorts below the events after a position; empty for "now"."""
    if isinstance(position, Token):
        return position.data
    time = time_of(position)
    return "" if time is None else high_water_mark(time)


def _end_of_snapshot(
    request: SnapshotRequest,
    queue: SnapshotQueue,
    planner: ChunkPlanner,
    present: Callable[[], Timestamp],
) -> bytes | None:
    """Return the event of the end of a snapshot; None if it has read no collection as a whole.

    The event names the collections, but not those of an initial snapshot of the whole scope.
    """
    assert request.plan is not None
    snapshot_time = request.plan.snapshot_time
    token = {"_data": high_water_mark(after(snapshot_time).time)}
    event: dict[str, Any] = {"_id": token, "operationType": SNAPSHOT_END}
    event["clusterTime"] = snapshot_time
    names: list[Namespace] = []
    reads_all = request.kind == "initial" and request.selection == EVERYTHING
    if not reads_all:
        names = sorted({*request.selection.unread, *planner.names(request.selection)})
        if not request.is_required:  # what the scope has gained meanwhile is read later
            names = [name for name in names if not token_in(queue.gains, *name)]
        if not (names or isinstance(request.selection, ScopeGain)):
            return None
    event["readUntil"] = max(snapshot_time, present())
    if not reads_all:
        event["collections"] = [{"db": database, "coll": name} for database, name in names]
    if request.kind != "initial":
        event["requested"] = request.id
    return bson.encode(event)

"""The tasks of a batch that read a part of a snapshot, and the event of its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import bson
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from spark_sink.events.header import SNAPSHOT_END
from spark_sink.events.positions import Position, Token, after, time_of
from spark_sink.options.stream_options import StreamOptions
from spark_sink.signals.snapshot_queue import SnapshotQueue, SnapshotRequest
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.snapshot.selections import EVERYTHING, ScopeGain
from spark_sink.source.tasks import SnapshotTask, SourceEvent, Task, chunk_read


def snapshot_tasks(
    queue: SnapshotQueue,
    start: Position,
    options: StreamOptions,
    planner: ChunkPlanner,
    present: Callable[[], Timestamp],
) -> list[Task]:
    """Return the tasks that snapshots add to a batch, which begins at `start` in the stream.

    `present` returns a time after all reads of earlier batches. Raises PyMongoError.
    """
    request, ended = queue.running, queue.ending
    tasks: list[Task] = []
    if request is not None and request.plan is not None and queue.reading is not None:
        signal = {"id": request.id, "type": request.kind, "streamed": _token_at(start)}
        shown = None if request.kind == "initial" else signal
        for chunks in planner.tasks(request.plan, request.selection):
            reads = (
                chunk_read(chunk, queue.reading, options).where(
                    request.selection.condition(str(chunk.collection))
                )
                for chunk in chunks
            )
            tasks.append(SnapshotTask(tuple(replace(read, signal=shown) for read in reads)))
    if ended is not None:
        of_all = ended.kind == "initial" and ended.selection == EVERYTHING
        names = None if of_all else {*ended.selection.unread, *planner.names(ended.selection)}
        if names and not ended.is_required:  # what the scope has gained meanwhile is read later
            names = {name for name in names if not any(g.accepts(*name) for g in queue.gains)}
        if names != set() or isinstance(ended.selection, ScopeGain):
            tasks.append(SourceEvent(_end_of_snapshot(ended, names, present())))
    return tasks


def _token_at(position: Position) -> str:
    """Return a token that sorts below the events after a position; empty for "now"."""
    if isinstance(position, Token):
        return position.data
    time = time_of(position)
    return "" if time is None else high_water_mark(time)


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

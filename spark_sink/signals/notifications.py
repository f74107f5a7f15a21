"""Notifications of snapshots, with the fields and types of Debezium's.

They are part of the offset of the batch that they are about, so a repeated batch has the same ones.
docs/spark-reference.md#notifications lists them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from bson.timestamp import Timestamp

from spark_sink.events.positions import AtTime, Position, time_of, to_offset
from spark_sink.snapshot.plan import Collection, SnapshotPlan

INITIAL = "Initial Snapshot"
"""The aggregate type of the snapshots of a query's mode."""

INCREMENTAL, BLOCKING = "Incremental Snapshot", "Blocking Snapshot"
SIGNAL = "Signal"
"""The aggregate type for signals that do not request a snapshot, or are refused."""

STARTED, IN_PROGRESS, SCANNED = "STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED"
PAUSED, RESUMED, ABORTED, COMPLETED = "PAUSED", "RESUMED", "ABORTED", "COMPLETED"
SKIPPED = "SKIPPED"
REFUSED, LOGGED = "REFUSED", "LOGGED"

SEEK = "Seek"
"""The aggregate type of a change of the position."""

_MAX_LENGTH = 2000


def notification(
    identifier: str, aggregate: str, kind: str, at: float, **additional: str
) -> dict[str, Any]:
    """Return a notification as JSON values; `at` is in seconds since 1970."""
    return {
        "id": identifier,
        "aggregate_type": aggregate,
        "type": kind,
        "additional_data": {name: text[:_MAX_LENGTH] for name, text in additional.items()},
        "timestamp": int(at * 1000),
    }


def names_of(collections: tuple[Collection, ...]) -> str:
    """Return the collections as `data_collections` names them."""
    return ", ".join(map(str, collections))


def progress_of(
    identifier: str, aggregate: str, plan: SnapshotPlan, at: float
) -> Iterator[dict[str, Any]]:
    """Return a notification of what a plan's chunks read, and one of each collection that ended."""
    unread = {str(each) for each in plan.waiting}
    if plan.current is not None:
        unread.add(str(plan.current.collection))
    names = dict.fromkeys(str(chunk.collection) for chunk in plan.chunks)
    progress = {
        "chunks": str(len(plan.chunks)),
        "chunks_planned": str(plan.progress.chunks_planned),
        "current_collection_in_progress": ", ".join(names),
    }
    yield notification(identifier, aggregate, IN_PROGRESS, at, **progress)
    for name in names:
        if name not in unread:
            scanned = {"scanned_collection": name, "status": "SUCCEEDED"}
            yield notification(identifier, aggregate, SCANNED, at, **scanned)


def started(plan: SnapshotPlan, at: float) -> dict[str, Any]:
    """Return the notification that the snapshot of the query's mode begins; no chunk is planned."""
    names = names_of(plan.waiting)
    return notification(_id_of(plan), INITIAL, STARTED, at, data_collections=names)


def advanced(plan: SnapshotPlan, at: float) -> list[dict[str, Any]]:
    """Return the notifications of what a batch of such a snapshot reads, or of its end."""
    if plan.ended:
        return [notification(_id_of(plan), INITIAL, COMPLETED, at)]
    return list(progress_of(_id_of(plan), INITIAL, plan, at))


def skipped(at: float) -> dict[str, Any]:
    """Return the notification of a start of the query without a snapshot."""
    return notification(str(uuid.uuid4()), INITIAL, SKIPPED, at)


def sought(passed: Position, position: AtTime, at: float) -> dict[str, Any]:
    """Return the notification that the events between two positions were left out."""
    return _skipped(SEEK, passed, position, at)


def signals_lost(passed: Position, position: Position, at: float) -> dict[str, Any]:
    """Return the notification that the oplogs no longer have the signals between two positions."""
    return _skipped(SIGNAL, passed, position, at)


def _skipped(aggregate: str, passed: Position, position: Position, at: float) -> dict[str, Any]:
    texts = {"from": json.dumps(to_offset(passed)), "to": json.dumps(to_offset(position))}
    time = time_of(position) or Timestamp(0, 0)
    identifier = f"{aggregate.lower()}-{time.time}-{time.inc}"
    return notification(identifier, aggregate, SKIPPED, at, **texts)


def _id_of(plan: SnapshotPlan) -> str:
    """Return the same id for all notifications of a snapshot, from its time."""
    return f"initial-{plan.snapshot_time.time}-{plan.snapshot_time.inc}"

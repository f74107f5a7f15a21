"""Notifications of snapshots, with the fields and types of Debezium's.

They are part of the offset of the batch that they are about, so a repeated batch has the same ones.
docs/spark-reference.md#notifications lists them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
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

_MAX_LENGTH = 600
# The most characters of the names in a notification.
_MAX_NAMES = 600


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


def names_of(collections: Sequence[Collection]) -> str:
    """Return the names of collections, as far as they fit into an offset."""
    text = ", ".join(map(str, collections[:_MAX_NAMES]))
    if len(text) <= _MAX_NAMES and len(collections) <= _MAX_NAMES:
        return text
    kept = text[:_MAX_NAMES].rpartition(", ")[0]
    return f"{kept} and {len(collections) - kept.count(', ') - 1:,} more"


def progress_of(
    identifier: str, aggregate: str, plan: SnapshotPlan, found: Sequence[Collection], at: float
) -> Iterator[dict[str, Any]]:
    """Return a notification of what a batch reads, and one of the collections that end with it.

    `found` are the collections of the snapshot, in its order.
    """
    end = plan.end
    read = [
        each
        for each in found
        if plan.start.collection <= each.id
        and (end is None or each.id < end.collection or (each.id == end.collection and end.key))
    ]
    scanned = [each for each in read if end is None or each.id < end.collection]
    progress = {
        "chunks_planned": str(plan.progress.chunks_planned),
        "current_collection_in_progress": names_of(read),
    }
    yield notification(identifier, aggregate, IN_PROGRESS, at, **progress)
    if scanned:
        names = {"scanned_collection": names_of(scanned), "status": "SUCCEEDED"}
        yield notification(identifier, aggregate, SCANNED, at, **names)


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

"""Notifications of snapshots, with the fields and types of Debezium's.

They are part of the offset of the batch that they are about, so a batch that is repeated has the
same ones. docs/spark.md#notifications lists them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from spark_sink.snapshot.plan import Collection, SnapshotPlan

INITIAL = "Initial Snapshot"
"""The aggregate type of the snapshots that a query's mode asks for."""

INCREMENTAL, BLOCKING = "Incremental Snapshot", "Blocking Snapshot"
SIGNAL = "Signal"
"""The aggregate type of notifications about signals that ask for no snapshot, or are refused."""

STARTED, IN_PROGRESS, SCANNED = "STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED"
PAUSED, RESUMED, ABORTED, COMPLETED = "PAUSED", "RESUMED", "ABORTED", "COMPLETED"
SKIPPED = "SKIPPED"
REFUSED, LOGGED = "REFUSED", "LOGGED"

_LONGEST = 2000


def notification(
    identifier: str, aggregate: str, kind: str, at: float, **additional: str
) -> dict[str, Any]:
    """A notification that json.dumps accepts.

    identifier: the signal's id; at: seconds since 1970.
    """
    return {
        "id": identifier,
        "aggregate_type": aggregate,
        "type": kind,
        "additional_data": {name: text[:_LONGEST] for name, text in additional.items()},
        "timestamp": int(at * 1000),
    }


def names_of(collections: tuple[Collection, ...]) -> str:
    """The collections as `data_collections` names them."""
    return ", ".join(map(str, collections))


def progress_of(
    identifier: str, aggregate: str, plan: SnapshotPlan, at: float
) -> Iterator[dict[str, Any]]:
    """What the chunks of a plan read: one notification of them all, one of each collection's end.

    identifier: the snapshot's; at: seconds since 1970.
    """
    unread = {str(each) for each in plan.waiting}
    if plan.current is not None:
        unread.add(str(plan.current.collection))
    names = dict.fromkeys(str(chunk.collection) for chunk in plan.chunks)
    progress = {
        "chunks": str(len(plan.chunks)),
        "chunks_planned": str(plan.planned),
        "current_collection_in_progress": ", ".join(names),
    }
    yield notification(identifier, aggregate, IN_PROGRESS, at, **progress)
    for name in names:
        if name not in unread:
            scanned = {"scanned_collection": name, "status": "SUCCEEDED"}
            yield notification(identifier, aggregate, SCANNED, at, **scanned)


def started(plan: SnapshotPlan, at: float) -> dict[str, Any]:
    """The beginning of a snapshot that the query's mode asks for. plan: with no chunk planned."""
    names = names_of(plan.waiting)
    return notification(_id_of(plan), INITIAL, STARTED, at, data_collections=names)


def advanced(plan: SnapshotPlan, at: float) -> list[dict[str, Any]]:
    """What a batch of such a snapshot reads, or the snapshot's end."""
    if plan.ended:
        return [notification(_id_of(plan), INITIAL, COMPLETED, at)]
    return list(progress_of(_id_of(plan), INITIAL, plan, at))


def skipped(at: float) -> dict[str, Any]:
    """A start of the query that needs no snapshot."""
    return notification(str(uuid.uuid4()), INITIAL, SKIPPED, at)


def _id_of(plan: SnapshotPlan) -> str:
    """The same id for all notifications of a snapshot, from its mark."""
    return f"initial-{plan.mark.time}-{plan.mark.inc}"

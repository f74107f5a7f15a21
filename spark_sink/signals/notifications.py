"""Notifications of snapshots, with the fields and types of Debezium's."""

from __future__ import annotations

from typing import Any

INCREMENTAL, BLOCKING = "Incremental Snapshot", "Blocking Snapshot"
SIGNAL = "Signal"
"""The aggregate type of notifications about signals that are refused."""

STARTED, IN_PROGRESS, SCANNED = "STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED"
PAUSED, RESUMED, ABORTED, COMPLETED = "PAUSED", "RESUMED", "ABORTED", "COMPLETED"
REFUSED = "REFUSED"

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

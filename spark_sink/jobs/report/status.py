"""The progress of a job, from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc

from spark_sink.errors import HistoryLostError
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_tables import CURRENT, QUARANTINE
from spark_sink.options.stream_options import parse_options
from spark_sink.rows.typed_documents import RESCUED
from spark_sink.snapshot.plan import Progress
from spark_sink.snapshot.queue import SnapshotQueue, SnapshotRequest
from spark_sink.source.offsets import Offset
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.delta_log import DeltaLog


def status_of(folder: JobFolder, uri: str | None = None) -> dict[str, Any]:
    """Return the progress of a job, as a document for json.dumps.

    With a `uri` the router gives the newest cluster time, for the lag. Raises OptionError if there
    is no job, and StreamError if the router cannot be reached.
    """
    record, last = folder.record(), folder.checkpoint.last_committed()
    planned = folder.checkpoint.last_planned()
    current = DeltaLog(folder.table(CURRENT))
    status: dict[str, Any] = {
        "folder": folder.address,
        "checkpoint": folder.checkpoint.address,
        "namespaces": list(record.namespaces),
        "tables": list(record.tables),
        "batch": None if last is None else last.number,
        "committedAt": None if last is None or last.committed is None else _iso(last.committed),
        "uncommitted": planned.number if planned and planned.committed is None else None,
        "snapshots": [],
        "through": None,
        "verified": current.state().batch.verified or None,
        "quarantinedEvents": DeltaLog(folder.table(QUARANTINE)).count(),
        "rescuedDocuments": _rescued(current),
    }
    if last is None:
        return status
    offset = last.end
    status["snapshots"] = [_counts(offset.snapshots, each) for each in offset.snapshots.requests]
    if offset.time is not None:
        status["through"] = _iso(offset.time.as_datetime())
        if uri is not None:
            status["lagSeconds"] = _lag(offset, record.source_options(uri))
    return status


def lines_of(status: dict[str, Any]) -> list[str]:
    """Return the status as lines of text."""
    rows = [
        ("folder", status["folder"]),
        ("follows", ", ".join(status["namespaces"]) or "the whole cluster"),
        ("tables", ", ".join(status["tables"])),
        ("last batch", _or_none(status["batch"], f" in the checkpoint {status['checkpoint']}")),
        ("committed", _or_none(status["committedAt"])),
        ("uncommitted", "no batch" if (number := status["uncommitted"]) is None else str(number)),
        ("up to", _or_none(status["through"])),
        ("quarantine", f"{status['quarantinedEvents']} events that the current table cannot apply"),
    ]
    if status["rescuedDocuments"] is not None:
        text = f"{status['rescuedDocuments']} documents with fields that fit no column"
        rows.append(("rescued", text))
    for number, snapshot in enumerate(status["snapshots"]):
        text = f"{snapshot['type']} {snapshot['id']}: {_planned(snapshot)}"
        rows.append(("" if number else "snapshots", text))
    if status["verified"] is not None:
        rows.append(("verified", verified_line(status["verified"])))
    if "lagSeconds" in status:
        rows.append(("lag", f"{status['lagSeconds']} s"))
    return [f"{name:<11} {text}" for name, text in rows]


def _rescued(log: DeltaLog) -> int | None:
    """Return how many documents have a value in RESCUED; None unless the table is typed."""
    if not log.exists or RESCUED not in log.schema.names:
        return None
    rescued = log.rows([RESCUED], [pc.field(RESCUED).is_valid()])
    return sum(int(rows.num_rows) for rows in rescued)


def verified_line(verified: Mapping[str, Any]) -> str:
    """Return what the commits of a table say about its verification, as a line of text."""
    rows, differences = verified["rows"], verified["differences"]
    return f"through {verified['through']}: {rows:,} rows and keys, {differences} differences"


def _planned(progress: dict[str, Any]) -> str:
    """Return how far a snapshot is, as text."""
    rows = f" with about {progress['rowsPlanned']:,} rows" if progress["rowsPlanned"] else ""
    if progress["aborted"]:
        return "aborted, as the table of notifications says; the next start tries it again"
    stage = "paused" if progress["paused"] else f"{progress['chunksPlanned']} chunks{rows}"
    return f"{stage}; {progress['collectionsPlanned']} of {progress['collections']} collections"


def _counts(queue: SnapshotQueue, request: SnapshotRequest) -> dict[str, Any]:
    """Return how far a snapshot is that has not ended."""
    progress = Progress() if request.plan is None else request.plan.progress
    return {
        "id": request.id,
        "type": request.kind,
        "paused": queue.paused and not request.blocks_stream,
        "aborted": request.aborted,
        "collections": progress.collections,
        "collectionsPlanned": progress.collections_planned,
        "chunksPlanned": progress.chunks_planned,
        "rowsPlanned": progress.rows_planned,
    }


def _lag(end: Offset, options: Mapping[str, str]) -> int:
    """Return by how many seconds a job is behind whose last batch ends at an offset.

    If its stream has no further event, the stream's position counts.
    """
    parsed = parse_options(dict(options))
    assert end.time is not None
    through = end.time
    with closing(RouterClient(parsed)) as client:
        client.require_reachable()
        if not end.is_in_snapshot:
            with closing(client.tokens(end.position)) as stream, suppress(HistoryLostError):
                if not stream.next_run().keys and stream.position is not None:
                    through = max(through, stream.position.cluster_time)
        return max(0, int(client.clocks().cluster_time.time - through.time))


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def _or_none(value: Any, where: str = "") -> str:
    return f"none yet{where}" if value is None else str(value)

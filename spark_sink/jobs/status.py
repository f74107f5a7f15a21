"""The progress of a job, from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc

from spark_sink.jobs.job_folder import JobFolder
from spark_sink.options.stream_options import parse_options
from spark_sink.rows.typed_documents import RESCUED
from spark_sink.signals.state import SignalState
from spark_sink.snapshot.plan import Progress
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.delta_log import DeltaLog


def status_of(out: str, uri: str | None = None) -> dict[str, Any]:
    """Return the state of the job in a folder, as a document for json.dumps.

    With a `uri` the router gives the newest cluster time, for the lag. Raises OptionError if there
    is no job, and StreamError if the router cannot be reached.
    """
    folder = JobFolder(out)
    record = folder.record()
    batches = folder.batches()
    last = folder.last_committed()
    found: dict[str, Any] = {
        "folder": folder.address,
        "namespaces": list(record.namespaces),
        "tables": list(record.tables),
        "batch": None if last is None else last.number,
        "committedAt": None if last is None or last.committed is None else _iso(last.committed),
        "running": [batch.number for batch in batches if batch.committed is None],
        "snapshot": None,
        "requestedSnapshots": [],
        "through": None,
        "verified": DeltaLog(folder.table("current")).position().get("verified"),
        "quarantinedEvents": DeltaLog(folder.table("quarantine")).count(),
        "rescuedDocuments": _rescued(folder),
    }
    if last is None:
        return found
    at = last.end
    found["requestedSnapshots"] = _requested(at.signals)
    if at.snapshot is not None:
        found["snapshot"] = {**_counts(at.snapshot.progress), "ended": at.snapshot.ended}
    if at.time is not None:
        found["through"] = _iso(datetime.fromtimestamp(at.time.time, UTC))
        if uri is not None:
            found["lagSeconds"] = max(0, _newest(uri) - at.time.time)
    return found


def lines_of(status: dict[str, Any]) -> list[str]:
    """Return the status as lines of text."""
    snapshot = status["snapshot"]
    rows = [
        ("folder", status["folder"]),
        ("follows", ", ".join(status["namespaces"]) or "the whole cluster"),
        ("tables", ", ".join(status["tables"])),
        ("last batch", _or_none(status["batch"])),
        ("committed", _or_none(status["committedAt"])),
        ("running", ", ".join(map(str, status["running"])) or "no batch"),
        ("up to", _or_none(status["through"])),
        ("quarantine", f"{status['quarantinedEvents']} events that the current table cannot apply"),
    ]
    if status["rescuedDocuments"] is not None:
        text = f"{status['rescuedDocuments']} documents with fields that fit no column"
        rows.append(("rescued", text))
    if snapshot is not None and not snapshot["ended"]:
        rows.append(("snapshot", f"{_chunks(snapshot)}; {_collections(snapshot)}"))
    for number, each in enumerate(status["requestedSnapshots"]):
        stage = "paused" if each["paused"] else _chunks(each)
        text = f"{each['type']} snapshot {each['id']}: {stage}; {_collections(each)}"
        rows.append(("" if number else "requested", text))
    if status["verified"] is not None:
        rows.append(("verified", verified_line(status["verified"])))
    if "lagSeconds" in status:
        rows.append(("lag", f"{status['lagSeconds']} s"))
    return [f"{name:<11} {text}" for name, text in rows]


def _rescued(folder: JobFolder) -> int | None:
    """Return how many documents of a typed table have something in RESCUED; else None."""
    log = DeltaLog(folder.table("current"))
    if not log.exists or RESCUED not in [each["name"] for each in log.schema["fields"]]:
        return None
    found = log.scan([RESCUED], pc.is_valid(pc.field(RESCUED)))
    return sum(int(rows.num_rows) for rows in found)


def verified_line(found: Mapping[str, Any]) -> str:
    """Return what the commits of a table say about its verification, as a line of text."""
    return f"through {found['through']}: {found['rows']:,} rows, {found['differences']} differences"


def _chunks(progress: dict[str, Any]) -> str:
    rows = f" with about {progress['rowsPlanned']:,} rows" if progress["rowsPlanned"] else ""
    return f"{progress['chunksPlanned']} chunks{rows}"


def _collections(progress: dict[str, Any]) -> str:
    return f"{progress['collectionsPlanned']} of {progress['collections']} collections"


def _requested(signals: SignalState) -> list[dict[str, Any]]:
    """Return the snapshots that signals requested and that have not ended."""
    return [
        {
            "id": request.id,
            "type": "blocking" if request.blocking else "incremental",
            "paused": signals.paused and not request.blocking,
            **_counts(Progress() if request.plan is None else request.plan.progress),
        }
        for request in signals.requests
    ]


def _counts(progress: Progress) -> dict[str, int]:
    return {
        "collections": progress.collections,
        "collectionsPlanned": progress.collections_planned,
        "chunksPlanned": progress.chunks_planned,
        "rowsPlanned": progress.rows_planned,
    }


def _newest(uri: str) -> int:
    with closing(RouterClient(parse_options({"uri": uri}))) as client:
        client.require_reachable()
        return int(client.clocks().cluster_time.time)


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def _or_none(value: Any) -> str:
    return "none yet" if value is None else str(value)

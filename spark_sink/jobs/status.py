"""The progress of a job, from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc

from spark_sink.events.positions import Position, PositionError, from_offset, time_of
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.options.stream_options import parse_options
from spark_sink.rows.typed_documents import RESCUED
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.delta_log import DeltaLog

_POSITION = ("_data", "_typeBits", "startAtOperationTime", "start")


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
    found["requestedSnapshots"] = _requested(last.offset.get("signals", {}))
    plan = last.offset.get("snapshot")
    if plan is not None:
        found["snapshot"] = {**plan["progress"], "ended": bool(plan.get("ended"))}
    time = position_time(last.offset)
    if time is not None:
        found["through"] = _iso(datetime.fromtimestamp(time, UTC))
        if uri is not None:
            found["lagSeconds"] = max(0, _newest(uri) - time)
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
    rows = f" with about {progress['rowsPlanned']:,} rows" if progress.get("rowsPlanned") else ""
    return f"{progress['chunksPlanned']} chunks{rows}"


def _collections(progress: dict[str, Any]) -> str:
    return f"{progress['collectionsPlanned']} of {progress['collections']} collections"


def _requested(signals: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the snapshots that signals requested and that have not ended."""
    nothing = {"collections": 0, "collectionsPlanned": 0, "chunksPlanned": 0, "rowsPlanned": 0}
    return [
        {
            "id": request["id"],
            "type": "blocking" if request["blocking"] else "incremental",
            "paused": signals["paused"] and not request["blocking"],
            **request.get("plan", {}).get("progress", nothing),
        }
        for request in signals.get("requests", ())
    ]


def position_time(offset: Mapping[str, Any]) -> int | None:
    """Return the cluster time of an offset, in seconds since 1970; None before it has one."""
    position = offset_position(offset)
    time = None if position is None else time_of(position)
    return None if time is None else int(time.time)


def offset_position(offset: Mapping[str, Any]) -> Position | None:
    """Return the position of an offset; None before it has one."""
    try:
        return from_offset({key: offset[key] for key in offset if key in _POSITION})
    except PositionError:
        return None


def _newest(uri: str) -> int:
    client = RouterClient(parse_options({"uri": uri}))
    try:
        client.require_reachable()
        return int(client.clocks().cluster_time.time)
    finally:
        client.close()


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def _or_none(value: Any) -> str:
    return "none yet" if value is None else str(value)

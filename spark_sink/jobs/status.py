"""How far a job has come, from its folder."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from spark_sink.jobs.job_folder import JobFolder
from spark_sink.options import parse_options
from spark_sink.positions import PositionError, from_offset, time_of
from spark_sink.router_client import RouterClient

_POSITION = ("_data", "_typeBits", "startAtOperationTime", "start")


def status_of(out: str, uri: str | None = None) -> dict[str, Any]:
    """The state of the job in a folder, as a document that json.dumps accepts.

    uri: the router, which knows the newest cluster time; None leaves the lag out.
    Raises OptionError if there is no job, and StreamError if the router cannot be reached.
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
        "quarantinedBatches": folder.count("quarantine"),
    }
    if last is None:
        return found
    found["requestedSnapshots"] = _requested(last.offset.get("signals", {}))
    plan = last.offset.get("snapshot")
    if plan is not None:
        found["snapshot"] = {**plan["progress"], "ended": bool(plan.get("ended"))}
    time = _time(last.offset)
    if time is not None:
        found["through"] = _iso(datetime.fromtimestamp(time, UTC))
        if uri is not None:
            found["lagSeconds"] = max(0, _newest(uri) - time)
    return found


def lines_of(status: dict[str, Any]) -> list[str]:
    """The status as lines of text."""
    snapshot = status["snapshot"]
    rows = [
        ("folder", status["folder"]),
        ("follows", ", ".join(status["namespaces"]) or "the whole cluster"),
        ("tables", ", ".join(status["tables"])),
        ("last batch", _or_none(status["batch"])),
        ("committed", _or_none(status["committedAt"])),
        ("running", ", ".join(map(str, status["running"])) or "no batch"),
        ("up to", _or_none(status["through"])),
        ("quarantine", f"{status['quarantinedBatches']} batches had events that do not fit"),
    ]
    if snapshot is not None and not snapshot["ended"]:
        rows.append(("snapshot", f"{_chunks(snapshot)}; {_collections(snapshot)}"))
    for number, each in enumerate(status["requestedSnapshots"]):
        stage = "paused" if each["paused"] else _chunks(each)
        text = f"{each['type']} snapshot {each['id']}: {stage}; {_collections(each)}"
        rows.append(("" if number else "requested", text))
    if "lagSeconds" in status:
        rows.append(("lag", f"{status['lagSeconds']} s"))
    return [f"{name:<11} {text}" for name, text in rows]


def _chunks(progress: dict[str, Any]) -> str:
    rows = f" with about {progress['rowsPlanned']:,} rows" if progress.get("rowsPlanned") else ""
    return f"{progress['chunksPlanned']} chunks{rows}"


def _collections(progress: dict[str, Any]) -> str:
    return f"{progress['collectionsPlanned']} of {progress['collections']} collections"


def _requested(signals: dict[str, Any]) -> list[dict[str, Any]]:
    """The snapshots that signals have asked for and that have not ended."""
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


def _time(offset: dict[str, Any]) -> int | None:
    try:
        time = time_of(from_offset({key: offset[key] for key in offset if key in _POSITION}))
    except PositionError:
        return None
    return None if time is None else int(time.time)


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

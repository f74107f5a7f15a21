"""The progress of a job, from its folder, and the wait for a part of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow.compute as pc
from bson.timestamp import Timestamp

from spark_sink.errors import HistoryLostError
from spark_sink.events.documents import from_document
from spark_sink.events.positions import AtTime, Position, Token, after, key_of
from spark_sink.folders import Folder
from spark_sink.jobs.job_folder import ALL_BATCHES, CURRENT, QUARANTINE, JobFolder
from spark_sink.options.stream_options import parse_options
from spark_sink.options.values import argument, position
from spark_sink.rows.typed_documents import RESCUED
from spark_sink.signals.signal import LOG
from spark_sink.signals.state import SignalState
from spark_sink.snapshot.plan import Progress
from spark_sink.source.offsets import Offset
from spark_sink.stream.event_stream import EventStream
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.state_files import end_of, newest_state
from spark_sink.tables.table_rows import scan
from spark_sink.tables.table_state import TableState, unread_names

# Seconds between two reads of the tables, and for which the lag waits for an event.
_POLL_SECONDS = 0.5


def status_of(folder: JobFolder, uri: str | None = None) -> dict[str, Any]:
    """Return the state of a job, as a document for json.dumps.

    With a `uri` the router gives the newest cluster time, for the lag. Raises OptionError if there
    is no job, and StreamError if the router cannot be reached.
    """
    record, batches = folder.record(), folder.batches()
    last = next((each for each in reversed(batches) if each.committed is not None), None)
    current = DeltaLog(folder.table(CURRENT))
    found: dict[str, Any] = {
        "folder": folder.address,
        "checkpoint": folder.checkpoint,
        "namespaces": list(record.namespaces),
        "tables": list(record.tables),
        "batch": None if last is None else last.number,
        "committedAt": None if last is None or last.committed is None else _iso(last.committed),
        "running": [each.number for each in batches if each.committed is None],
        "snapshot": None,
        "requestedSnapshots": [],
        "through": None,
        "verified": current.state().get("verified"),
        "quarantinedEvents": DeltaLog(folder.table(QUARANTINE)).count(),
        "rescuedDocuments": _rescued(current),
    }
    if last is None:
        return found
    offset = last.end
    found["requestedSnapshots"] = _requested(offset.signals)
    ended = offset.signals.ended
    plan = offset.signals.initial or (ended.plan if ended is not None and ended.initial else None)
    if plan is not None:
        found["snapshot"] = {**_counts(plan.progress), "ended": offset.signals.initial is None}
    if offset.time is not None:
        found["through"] = _iso(datetime.fromtimestamp(offset.time.time, UTC))
        if uri is not None:
            found["lagSeconds"] = _lag(offset, record.source_options(uri))
    return found


def lines_of(status: dict[str, Any]) -> list[str]:
    """Return the status as lines of text."""
    snapshot = status["snapshot"]
    rows = [
        ("folder", status["folder"]),
        ("follows", ", ".join(status["namespaces"]) or "the whole cluster"),
        ("tables", ", ".join(status["tables"])),
        ("last batch", _or_none(status["batch"], f" in the checkpoint {status['checkpoint']}")),
        ("committed", _or_none(status["committedAt"])),
        ("running", ", ".join(map(str, status["running"])) or "no batch"),
        ("up to", _or_none(status["through"])),
        ("quarantine", f"{status['quarantinedEvents']} events that the current table cannot apply"),
    ]
    if status["rescuedDocuments"] is not None:
        text = f"{status['rescuedDocuments']} documents with fields that fit no column"
        rows.append(("rescued", text))
    if snapshot is not None and not snapshot["ended"]:
        rows.append(("snapshot", _planned(snapshot)))
    for number, each in enumerate(status["requestedSnapshots"]):
        text = f"{each['type']} snapshot {each['id']}: {_planned(each)}"
        rows.append(("" if number else "requested", text))
    if status["verified"] is not None:
        rows.append(("verified", verified_line(status["verified"])))
    if "lagSeconds" in status:
        rows.append(("lag", f"{status['lagSeconds']} s"))
    return [f"{name:<11} {text}" for name, text in rows]


def _rescued(log: DeltaLog) -> int | None:
    """Return how many documents have a value in RESCUED; None unless the table is typed."""
    if not log.exists or RESCUED not in [each["name"] for each in log.schema["fields"]]:
        return None
    found = scan(log, [RESCUED], [pc.field(RESCUED).is_valid()])
    return sum(int(rows.num_rows) for rows in found)


def verified_line(found: Mapping[str, Any]) -> str:
    """Return what the commits of a table say about its verification, as a line of text."""
    return f"through {found['through']}: {found['rows']:,} rows, {found['differences']} differences"


def _planned(progress: dict[str, Any]) -> str:
    """Return how far a snapshot is, as text."""
    rows = f" with about {progress['rowsPlanned']:,} rows" if progress["rowsPlanned"] else ""
    stage = "paused" if progress.get("paused") else f"{progress['chunksPlanned']} chunks{rows}"
    return f"{stage}; {progress['collectionsPlanned']} of {progress['collections']} collections"


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
        if not request.initial
    ]


def _counts(progress: Progress) -> dict[str, int]:
    return {
        "collections": progress.collections,
        "collectionsPlanned": progress.collections_planned,
        "chunksPlanned": progress.chunks_planned,
        "rowsPlanned": progress.rows_planned,
    }


def position_to_reach(to: str | datetime | Timestamp, uri: str, name: str = "to") -> Position:
    """Return the position after the events that a text, a time or a token names.

    "now" is after all writes that have ended, by the router at `uri`. Raises OptionError, with the
    argument's `name`, and StreamError if the router cannot be reached.
    """
    if to == "now":
        with closing(RouterClient(parse_options({"uri": uri}))) as client:
            client.require_reachable()
            return after(client.with_retries(client.snapshot_time))
    if isinstance(to, Timestamp):
        to = f"{to.time},{to.inc}"
    found = argument(position, to if isinstance(to, str) else to.isoformat(), name)
    if isinstance(found, Token):
        return AtTime(found.cluster_time) if found.is_high_water_mark else found
    return after(found.time)


def wait_until(
    folder: JobFolder, target: Position, seconds: float, turn: Callable[[], None] = lambda: None
) -> None:
    """Wait until all tables of a job have all events before a position.

    A signal requests that an idle job moves to the end of the stream. `turn` is called before each
    read of the tables. Raises TimeoutError, which says what is missing, what `turn` raises, and
    SourceError if there is no job.
    """
    deadline = time.monotonic() + seconds
    signals, sent, refused = Folder(folder.signals), "", ""
    signal = json.dumps({"type": LOG, "data": {"message": "job wait"}})
    try:
        while True:
            turn()
            tables = _Tables(folder)
            if not (missing := [*tables.missing(target)]):
                return
            if time.monotonic() >= deadline:
                last = folder.last_committed()
                batch = "none" if last is None else f"{last.number}, committed {last.committed}"
                raise TimeoutError(
                    f"after {max(0.0, seconds):.0f} s {'; '.join(missing)}. Check that the job in "
                    f"{folder.address} runs (its last batch is {batch}), or wait longer{refused}"
                )
            if not refused and (not sent or tables.have_signal(sent)):
                try:
                    signals.remove(f"{sent}.json")
                    sent = f"wait-{uuid4().hex}"
                    signals.write(f"{sent}.json", signal)
                except OSError as error:
                    refused = f". No signal could be sent; the job moves on by itself: {error}"
            time.sleep(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))
    finally:
        with suppress(OSError):
            signals.remove(f"{sent}.json")


class _Tables:
    """How far the tables of a job are at one time, by their states alone.

    If no table has all batches, the checkpoint counts.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        names = folder.record().tables if folder.exists else ()
        self._states = {name: newest_state(folder.table(name)) for name in names}
        ends = {n: end_of(state) for n, state in self._states.items() if n in ALL_BATCHES}
        last = None if ends else folder.last_committed()
        self._ends = ends or {"the job": None if last is None else last.end}

    def have_signal(self, identifier: str) -> bool:
        """Return whether a batch has processed a signal."""
        ends = filter(None, self._ends.values())
        return any(each.signals.has_handled(identifier) for each in ends)

    def missing(self, target: Position) -> Iterator[str]:
        """Return what the tables lack of the events before a position, as texts."""
        if not self._folder.exists:
            yield f"there is no job in {self._folder.address} yet"
            return
        for name, end in self._ends.items():
            if end is None:
                yield f"{name} has no batch yet"
            elif end.signals.initial is not None:
                yield f"{name} has a snapshot in progress"
            elif key_of(end.position) < key_of(target):
                cut = end.cut
                text = "" if cut is None else f" {_iso(cut.as_datetime())} ({cut.time},{cut.inc})"
                yield f"{name} has reached{text or ' no time'}"
            elif name == CURRENT:
                unread_or_lost = from_document(TableState, self._states[name]).unread_or_lost
                if unread_or_lost:
                    yield f"{name} must read {unread_names(unread_or_lost)} again"
        written = [each.get("written", {}) for each in self._states.values()]
        for name, number in (pair for each in written for pair in each.items()):
            if name in self._states and self._states[name].get("batch", -1) < number:
                yield f"{name} lacks batch {number}"


def _lag(end: Offset, options: Mapping[str, str]) -> int:
    """Return by how many seconds a job is behind whose last batch ends at an offset.

    If its stream has no further event, the stream's position counts.
    """
    parsed = parse_options(dict(options))
    assert end.time is not None
    through = end.time
    with closing(RouterClient(parsed)) as client:
        client.require_reachable()
        if end.signals.initial is None:
            watch = partial(client.watch_tokens, max_await=_POLL_SECONDS)
            stream = EventStream(watch, end.position, retry_policy=parsed.retry_policy)
            with closing(stream), suppress(HistoryLostError):
                if not stream.next_run().keys and stream.position is not None:
                    through = max(through, stream.position.cluster_time)
        return max(0, int(client.clocks().cluster_time.time - through.time))


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def _or_none(value: Any, where: str = "") -> str:
    return f"none yet{where}" if value is None else str(value)

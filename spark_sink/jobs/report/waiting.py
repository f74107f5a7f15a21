"""Waits until the tables of a job have all events before a position."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime
from uuid import uuid4

from bson.timestamp import Timestamp

from spark_sink.errors import OptionError
from spark_sink.events.positions import AtTime, Position, Token, after, key_of
from spark_sink.folders import Folder
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_tables import CURRENT, with_all_batches
from spark_sink.options.parsers import position
from spark_sink.options.stream_options import parse_options
from spark_sink.snapshot.signal import LOG
from spark_sink.snapshot.unread import unread_names
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.state_files import newest_state

# Seconds between two reads of the tables.
_POLL_SECONDS = 0.5


def position_to_reach(to: str | datetime | Timestamp, uri: str, name: str = "to") -> Position:
    """Return the position after the events that a text, a time or a token names.

    "now" is after all writes that have ended, by the router at `uri`. Raises OptionError, with the
    argument's `name`, and StreamError if the router cannot be reached.
    """
    if to == "now":
        with closing(RouterClient(parse_options({"uri": uri}))) as client:
            client.require_reachable()
            return after(client.with_retries(client.present))
    if isinstance(to, Timestamp):
        to = f"{to.time},{to.inc}"
    try:
        target = position(to if isinstance(to, str) else to.isoformat())
    except ValueError:
        forms = "now, a time such as 2026-01-31T12:00:00Z or a resume token"
        raise OptionError(f"{name}: must be {forms}, not {to!r}") from None
    if isinstance(target, Token):
        return AtTime(target.cluster_time) if target.is_high_water_mark else target
    return after(target.time)


def wait_until(
    folder: JobFolder, target: Position, seconds: float, turn: Callable[[], None] = lambda: None
) -> None:
    """Wait until all tables of a job have all events before a position.

    A signal requests that an idle job moves to the end of the stream. `turn` is called before each
    read of the tables. Raises TimeoutError, which says what is missing, what `turn` raises, and
    SourceError if there is no job.
    """
    deadline = time.monotonic() + seconds
    signals, refused = Folder(folder.signals), ""
    sent: str | None = None
    signal = json.dumps({"type": LOG, "data": {"message": "job wait"}})
    try:
        while True:
            turn()
            tables = _Tables(folder)
            if not (missing := [*tables.missing(target)]):
                return
            if time.monotonic() >= deadline:
                last = folder.checkpoint.last_committed()
                batch = "none" if last is None else f"{last.number}, committed {last.committed}"
                raise TimeoutError(
                    f"after {max(0.0, seconds):.0f} s {'; '.join(missing)}. Check that the job in "
                    f"{folder.address} runs (its last batch is {batch}), or wait longer{refused}"
                )
            if not refused and (sent is None or tables.have_signal(sent)):
                try:
                    if sent is not None:
                        signals.remove(f"{sent}.json")
                    sent = f"wait-{uuid4().hex}"
                    signals.write(f"{sent}.json", signal)
                except OSError as error:
                    refused = f". No signal could be sent; the job moves on by itself: {error}"
            time.sleep(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))
    finally:
        if sent is not None:
            with suppress(OSError):
                signals.remove(f"{sent}.json")


class _Tables:
    """How far the tables of a job are at one time, by their states alone."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        names = folder.record().tables if folder.exists else ()
        self._states = {name: newest_state(folder.table(name)) for name in names}
        self._ends = {n: self._states[n].batch.end for n in with_all_batches(names)}

    def have_signal(self, identifier: str) -> bool:
        """Return whether a batch has processed a signal."""
        ends = filter(None, self._ends.values())
        return any(end.snapshots.has_handled(identifier) for end in ends)

    def missing(self, target: Position) -> Iterator[str]:
        """Return what the tables lack of the events before a position, as texts."""
        if not self._folder.exists:
            yield f"there is no job in {self._folder.address} yet"
            return
        for name, end in self._ends.items():
            if end is None:
                yield f"{name} has no batch yet"
            elif end.is_in_snapshot:
                yield f"{name} has a snapshot in progress"
            elif key_of(end.position) < key_of(target):
                text, cut = "no time", end.cut
                if cut is not None:
                    moment = cut.as_datetime().isoformat(timespec="seconds")
                    text = f"{moment} ({cut.time},{cut.inc})"
                yield f"{name} has reached {text}"
            elif name == CURRENT and (
                lacks := {**end.snapshots.lost, **self._states[name].unread_or_lost}
            ):
                yield f"{name} must read {unread_names(lacks)} again"
        written = [state.batch.written for state in self._states.values()]
        for name, number in (pair for by_name in written for pair in by_name.items()):
            if name in self._states and self._states[name].batch.number < number:
                yield f"{name} lacks batch {number}"

"""Comparing watchers' events with the history, and the history with the ledger, after a run."""

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pymongo
from pymongo.errors import PyMongoError

from tests.faults.watchers import Opener, Watcher
from tests.faults.writers import DATABASE, MARKERS, Ledger
from tests.harness.cluster_base import Client
from tests.simulation.checks import segment_problems
from tests.simulation.truth import Event, key_of

_READ_SECONDS = 180.0
_SHOWN = 5


class History:
    """The database's events, read through a mongos between faults."""

    def __init__(self, uri: str) -> None:
        self.events: list[Event] = []
        self._uri = uri
        self._token: Any = None

    def begin(self) -> None:
        """Start the history now."""
        client: Client
        with pymongo.MongoClient(self._uri) as client, client[DATABASE].watch() as stream:
            self._token = stream.resume_token

    def read_to(self, marker: int) -> None:
        """Read up to and including the marker's event."""
        deadline = time.monotonic() + _READ_SECONDS
        failure: PyMongoError | None = None
        client: Client
        while time.monotonic() < deadline:
            try:
                with (
                    pymongo.MongoClient(self._uri) as client,
                    client[DATABASE].watch(
                        start_after=self._token, max_await_time_ms=500, batch_size=1000
                    ) as stream,
                ):
                    while time.monotonic() < deadline:
                        event = stream.try_next()
                        if event is None:
                            continue
                        self.events.append(event)
                        self._token = event["_id"]
                        if event["documentKey"]["_id"] == f"{MARKERS}{marker}":
                            return
            except PyMongoError as error:
                failure = error
        raise RuntimeError(f"mongos has not returned marker {marker}: {failure}")


def ledger_problems(ledger: Ledger, history: Sequence[Event]) -> Iterator[str]:
    """Compare the history with the acknowledged writes; both must have the same writes."""
    keys = [key_of(event) for event in history]
    for before, after in pairwise(keys):
        if after <= before:
            yield f"mongos gave {after} after {before}"
    lives: dict[str, list[str]] = {}
    for event in history:
        lives.setdefault(event["documentKey"]["_id"], []).append(event["operationType"])
    for document in sorted(lives.keys() | ledger.acknowledged.keys()):
        written, shown = ledger.acknowledged.get(document, []), lives.get(document, [])
        if written != shown:
            yield f"of {document}, {written} were acknowledged and mongos shows {shown}"


def watcher_problems(watcher: Watcher, history: Sequence[Event]) -> Iterator[str]:
    """Compare all events of a watcher with the history."""
    wanted = [event for event in history if watcher.watch.selects(event)]
    for number, segment in enumerate(watcher.segments):
        last = number == len(watcher.segments) - 1
        for problem in segment_problems(segment, wanted, last=last):
            yield f"{watcher.name}, stream {number}: {problem}"


def opener_problems(
    opener: Opener, history: Sequence[Event], ledger: Ledger, end: str
) -> Iterator[str]:
    """Compare the events of streams from now with the history up to ``end``."""
    for number, (watch, segment, opened) in enumerate(opener.found):
        wanted = [event for event in history if watch.selects(event)]
        segment.events = [event for event in segment.events if key_of(event) <= end]
        segment.end = min(segment.end, end)
        for problem in segment_problems(segment, wanted):
            yield f"{opener.name}, stream {number}: {problem}"
        if watch.preference != "primary":
            continue  # a secondary cannot advance its primary's clock
        late = [
            event
            for event in wanted
            if key_of(event) <= segment.start and _begun(event, ledger) > opened
        ]
        for event in late[:_SHOWN]:
            after = _begun(event, ledger) - opened
            yield (
                f"{opener.name}, stream {number} ({watch}) begins at {segment.start}, after"
                f" {event['documentKey']} ({key_of(event)}), written {after:.2f} s later"
            )


def _begun(event: Event, ledger: Ledger) -> float:
    """Return when an event's write began; 0 if the event does not show the write's number."""
    document = event.get("fullDocument") or event.get("updateDescription", {}).get("updatedFields")
    number = None if document is None else document.get("n")
    if number is None:
        return 0.0
    return ledger.begun.get((event["documentKey"]["_id"], number), 0.0)

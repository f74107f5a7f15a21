"""Comparing watchers' events with the history, and the history with the ledger, after a run."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pymongo.errors import PyMongoError

from tests.faults.ddl import DDL_PREFIX, DdlWriter
from tests.faults.watchers import Opener, Watch, Watcher
from tests.faults.writers import MARKERS, Ledger
from tests.harness.cluster_base import Client
from tests.harness.until import Deadline
from tests.simulation.segments import Event, Segment, key_of, segment_problems

_READ_SECONDS = 180.0
_SHOWN = 5

MOST_SHARDS = 3
"""The number of shards while one has been added."""


class History:
    """The events of a stream of the database, read through a mongos between faults."""

    def __init__(self, uri: str, watch: Watch) -> None:
        self.events: list[Event] = []
        self._uri = uri
        self._watch = watch
        self._token: Any = None

    def begin(self) -> None:
        """Start the history now."""
        with Client(self._uri) as client, self._watch.open(client, None) as stream:
            self._token = stream.resume_token

    def read_to(self, marker: int) -> None:
        """Read up to and including the marker's event."""
        deadline, what = Deadline(_READ_SECONDS), f"marker {marker} from mongos"
        while True:
            try:
                with Client(self._uri) as client, self._watch.open(client, self._token) as stream:
                    while True:
                        deadline.check(what)
                        event = stream.try_next()
                        if event is None:
                            continue
                        self.events.append(event)
                        self._token = event["_id"]
                        if event.get("documentKey", {}).get("_id") == f"{MARKERS}{marker}":
                            return
            except PyMongoError as error:
                deadline.check(what, error)


def ledger_problems(ledger: Ledger, history: Sequence[Event]) -> Iterator[str]:
    """Compare the history with the acknowledged writes; both must have the same writes."""
    for event, following in pairwise(history):
        before, after = key_of(event), key_of(following)
        # DDL events of several shards may share a token.
        if after < before or (after == before and not _is_ddl(event)):
            yield f"mongos gave {after} after {before}"
    lives: dict[str, list[str]] = {}
    for event in history:
        if not _is_ddl(event) and not event["ns"]["coll"].startswith(DDL_PREFIX):
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
        for problem in _stream_problems(segment, wanted, last=last):
            yield f"{watcher.name}, stream {number}: {problem}"


def ddl_problems(writer: DdlWriter, history: Sequence[Event]) -> Iterator[str]:
    """Check that the history with all kinds of events has the acknowledged DDL."""
    told = Counter((event["operationType"], event["ns"].get("coll")) for event in history)
    for step, count in writer.acknowledged.items():
        if told[step] < count:
            yield f"{step} was acknowledged {count} times, and mongos tells of {told[step]}"


def lookup_problems(watcher: Watcher, history: Sequence[Event]) -> Iterator[str]:
    """Check that each update came with a state of its document not older than the update."""
    deleted = {
        event["documentKey"]["_id"] for event in history if event["operationType"] == "delete"
    }
    for event in watcher.received("update"):
        document, key = event.get("fullDocument"), event["documentKey"]["_id"]
        written = event["updateDescription"]["updatedFields"]["n"]
        if document is None and key not in deleted:
            yield f"{watcher.name}: no document for update {written} of {key}, which is not deleted"
        elif document is not None and (document["_id"] != key or document["n"] < written):
            yield f"{watcher.name}: {document} for update {written} of {key}"


def image_problems(watcher: Watcher, history: Sequence[Event]) -> Iterator[str]:
    """Compare the post-images of a watcher's updates with the history's."""
    images = {key_of(event): event.get("fullDocument") for event in history}
    for event in watcher.received("update"):
        image = images.get(key_of(event))
        if event.get("fullDocument") != image:
            yield f"{watcher.name}: {event.get('fullDocument')} instead of {image}"


def _stream_problems(
    segment: Segment, history: Sequence[Event], *, last: bool = False
) -> Iterator[str]:
    """Compare a stream's events with the history, whose events the stream selects.

    Several shards' DDL events may share a token. A driver that resumes from the first of them, as
    MongoDB's tokens have it, misses the others: one is enough, and one from each shard is allowed.
    """
    events, repeated = _once(segment.events)
    wanted, _ = _once(history)
    for event, times in repeated:
        if times > MOST_SHARDS:
            yield f"given {times} times: {event}"
    yield from segment_problems(replace(segment, events=events), wanted, last=last)


def _once(events: Sequence[Event]) -> tuple[list[Event], list[tuple[Event, int]]]:
    """Return the events with one of each run of equal DDL events, and the runs' lengths."""
    left: list[Event] = []
    repeated: list[tuple[Event, int]] = []
    for event in events:
        if not _is_ddl(event):
            left.append(event)
            continue
        plain = {name: value for name, value in event.items() if name != "wallTime"}
        if left and key_of(left[-1]) == key_of(event):
            times = repeated.pop()[1] if repeated and repeated[-1][0] is left[-1] else 1
            repeated.append((left[-1], times + 1))
        else:
            left.append(plain)
    return left, repeated


def _is_ddl(event: Event) -> bool:
    return "documentKey" not in event


def opener_problems(
    opener: Opener, history: Sequence[Event], ledger: Ledger, end: str
) -> Iterator[str]:
    """Compare the events of streams from now with the history up to ``end``."""
    for number, (watch, segment, opened) in enumerate(opener.found):
        wanted = [event for event in history if watch.selects(event)]
        segment.events = [event for event in segment.events if key_of(event) <= end]
        segment.end = min(segment.end, end)
        for problem in _stream_problems(segment, wanted):
            yield f"{opener.name}, stream {number}: {problem}"
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

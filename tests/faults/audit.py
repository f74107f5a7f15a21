"""Comparing watchers' events with the history, and the history with the ledger, after a run."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pymongo.errors import PyMongoError

from tests.faults.watchers import Opener, Watch, Watcher
from tests.faults.writers import MARKERS, REMADE, Ledger
from tests.harness.cluster_base import Client
from tests.harness.until import Deadline
from tests.simulation.segments import Event, key_of, segment_problems

_READ_SECONDS = 180.0
_SHOWN = 5


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
        if after <= before:
            yield f"mongos gave {after} after {before}"
    lives: dict[str, list[str]] = {}
    for event in history:
        if event["ns"]["coll"] != REMADE:
            lives.setdefault(event["documentKey"]["_id"], []).append(event["operationType"])
    for document in sorted(lives.keys() | ledger.acknowledged.keys()):
        written, shown = ledger.acknowledged.get(document, []), lives.get(document, [])
        if written != shown:
            yield f"of {document}, {written} were acknowledged and mongos shows {shown}"
    drops = sum(event["operationType"] == "drop" for event in history)
    if drops < ledger.drops:
        yield f"{ledger.drops} drops were acknowledged and mongos shows {drops}"


def watcher_problems(watcher: Watcher, history: Sequence[Event]) -> Iterator[str]:
    """Compare all events of a watcher with the history."""
    wanted = [event for event in history if watcher.watch.selects(event)]
    for number, segment in enumerate(watcher.segments):
        last = number == len(watcher.segments) - 1
        for problem in segment_problems(segment, wanted, last=last):
            yield f"{watcher.name}, stream {number}: {problem}"


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

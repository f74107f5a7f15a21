"""Watchers on a driver, which record the events of each of their streams."""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_preferences import ReadPreference

from tests.faults.writers import DATABASE, SHARDED
from tests.harness.cluster_base import Client
from tests.simulation.segments import Segment

_INVALID_RESUME_TOKEN = 260

PREFERENCES = {
    "primary": ReadPreference.PRIMARY,
    "secondary": ReadPreference.SECONDARY,
    "nearest": ReadPreference.NEAREST,
    "secondaryPreferred": ReadPreference.SECONDARY_PREFERRED,
}


@dataclass(frozen=True, slots=True)
class Watch:
    """A stream: its collection (empty: the whole database), read preference, pipeline, options."""

    collection: str = SHARDED
    preference: str = "primary"
    pipeline: tuple[Any, ...] = ()
    expanded: bool = False
    """Whether it has all kinds of events, and pre- and post-images."""
    lookup: bool = False
    """Whether documents of updates are looked up."""

    def selects(self, event: dict[str, Any]) -> bool:
        """Return whether an event of the database belongs to the stream."""
        names = (event["ns"].get("coll"), event.get("to", {}).get("coll"))
        if self.collection and self.collection not in names:
            return False
        return not self.pipeline or event["operationType"] in ("insert", "delete")

    def open(self, client: Client, token: Any) -> Any:
        """Open the stream after ``token``, or from now if it is None."""
        target: Any = client.get_database(DATABASE, read_preference=PREFERENCES[self.preference])
        if self.collection:
            target = target[self.collection]
        options: dict[str, Any] = {"full_document": "updateLookup"} if self.lookup else {}
        if self.expanded:
            options = {
                "show_expanded_events": True,
                "full_document": "whenAvailable",
                "full_document_before_change": "whenAvailable",
            }
        return target.watch(
            list(self.pipeline), start_after=token, max_await_time_ms=200, **options
        )


INSERTS_AND_DELETES = ({"$match": {"operationType": {"$in": ["insert", "delete"]}}},)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that the driver raised."""

    at: float
    error: str

    @classmethod
    def of(cls, error: Exception, begun: float) -> Self:
        """Return the failure, seen now, of what was ``begun`` then (monotonic clock)."""
        now = time.monotonic()
        return cls(now, f"{error!r} after {now - begun:.1f} s")


@dataclass(slots=True)
class Watcher:
    """Watches until ``stopping`` is set; resumes from the last token after each stream.

    The first stream is from now. ``patience`` is the number of reads of each stream, if limited.
    """

    name: str
    uri: str
    watch: Watch
    patience: int | None = None
    segments: list[Segment] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    events: int = 0
    replies: int = 0
    """The number of reads that the driver has answered, with or without an event."""
    last_id: Any = None
    opened: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)

    def has_passed(self, key: str) -> bool:
        """Return whether the stream has delivered everything up to this sort key."""
        return bool(self.segments) and self.segments[-1].end >= key

    def received(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the events of this operation type."""
        for segment in self.segments:
            yield from (event for event in segment.events if event["operationType"] == kind)

    def run(self) -> None:
        """Read until ``stopping`` is set; record errors and resume from the last token."""
        token: Any = None
        with Client(self.uri, appname=self.name) as client:
            while not self.stopping.is_set():
                begun = time.monotonic()
                try:
                    with self.watch.open(client, token) as stream:
                        token = token or stream.resume_token
                        segment = Segment(token["_data"])
                        self.segments.append(segment)
                        self.opened.set()
                        token = self._read(stream, segment, token)
                except PyMongoError as error:
                    if self.segments:
                        last = self.segments[-1]
                        token = {"_data": last.end or last.start}
                    if not self.tolerates(error):
                        self.failures.append(Failure.of(error, begun))
                    time.sleep(0.2)

    def tolerates(self, error: PyMongoError) -> bool:
        """Return whether the driver has resumed by ``resumeAfter`` after an invalidate.

        mongos and the router end the cursor in the reply after the invalidate's. A driver that does
        not get that reply resumes, which no server allows after an invalidate.
        """
        events = self.segments[-1].events if self.segments else []
        return (
            bool(events)
            and events[-1]["operationType"] == "invalidate"
            and isinstance(error, OperationFailure)
            and error.code == _INVALID_RESUME_TOKEN
        )

    def _read(self, stream: Any, segment: Segment, token: Any) -> Any:
        left = self.patience or 10**9
        while left and stream.alive and not self.stopping.is_set():
            event = stream.try_next()
            self.replies += 1
            # The token advances without events too, and the next stream resumes from it.
            token = stream.resume_token
            left -= 1
            if event is not None:
                segment.events.append(event)
                self.events += 1
                self.last_id = event.get("documentKey", {}).get("_id")
            segment.end = token["_data"]
        return token


@dataclass(slots=True)
class Opener:
    """Opens streams from now, one after the other, and reads each for a short time."""

    name: str
    uri: str
    seed: int
    preferences: tuple[str, ...] = ("primary",)
    found: list[tuple[Watch, Segment, float]] = field(default_factory=list)
    """Each stream, its events, and when it was open (monotonic clock)."""
    failures: list[Failure] = field(default_factory=list)
    slowest: float = 0.0
    replies: int = 0
    """The number of reads that the driver has answered, with or without an event."""
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Open, read and close streams until ``stopping`` is set."""
        chance = random.Random(f"{self.seed} {self.name}")
        with Client(self.uri, appname=self.name) as client:
            while not self.stopping.wait(chance.uniform(0.1, 0.8)):
                watch = Watch(
                    chance.choice((SHARDED, SHARDED, "")), chance.choice(self.preferences)
                )
                begun = time.monotonic()
                try:
                    with watch.open(client, None) as stream:
                        opened = time.monotonic()
                        self.slowest = max(self.slowest, opened - begun)
                        segment = Segment(stream.resume_token["_data"])
                        segment.end = segment.start
                        self.found.append((watch, segment, opened))
                        until = opened + chance.uniform(0, 2)
                        while time.monotonic() < until and not self.stopping.is_set():
                            event = stream.try_next()
                            self.replies += 1
                            if event is not None:
                                segment.events.append(event)
                            segment.end = stream.resume_token["_data"]
                except PyMongoError as error:
                    self.failures.append(Failure.of(error, begun))
                    time.sleep(0.2)

"""The state of a query's snapshots and of its signals, as a part of Spark's offset.

A killed query continues from its offset: with the same requests, the same chunks, and the ids of
the processed signals, none of which is processed twice.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bson.timestamp import Timestamp

from spark_sink.events.positions import Position
from spark_sink.options.java_patterns import matches_any
from spark_sink.options.scope import Gained
from spark_sink.signals.signal import DocumentFilter, SnapshotKind, digest
from spark_sink.snapshot.plan import SnapshotPlan, filter_of
from spark_sink.snapshot.planner import Selection

LOGGED = "LOGGED"
"""The type of the notification that a signal `log` requests."""

# Ids of processed signals that are kept.
_MAX_HANDLED = 50


@dataclass(frozen=True)
class SnapshotRequest:
    """A snapshot that the mode of the query (the initial one), a signal or the table requests.

    Args:
        kind: initial, blocking or incremental. The stream waits for all but incremental ones.
        collections, excluded: regular expressions for names, of which none means all; plain names
            if `required`.
        plan: how far it is; None before the beginning.
        required: the table lacks these collections; no signal stops the request.
        gained: the collections of a required request that names none.
        documents: the keys to read in collections that are not read as a whole, by namespace.
    """

    id: str
    kind: SnapshotKind
    collections: tuple[str, ...] = ()
    conditions: tuple[DocumentFilter, ...] = ()
    excluded: tuple[str, ...] = ()
    plan: SnapshotPlan | None = None
    required: bool = False
    documents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gained: Gained | None = None

    @classmethod
    def initial(
        cls, time: Timestamp, plan: SnapshotPlan | None = None, collections: tuple[str, ...] = ()
    ) -> SnapshotRequest:
        """Return the request of the initial snapshot, at a cluster time."""
        return cls(f"initial-{time.time}-{time.inc}", "initial", collections, plan=plan)

    @property
    def blocks_stream(self) -> bool:
        """Whether the stream waits for the snapshot."""
        return self.kind != "incremental"

    def wants(self, namespace: str) -> bool:
        """Return whether the snapshot reads this collection."""
        if self.gained is not None:
            database, _, name = namespace.partition(".")
            return self.gained.accepts(database, name)
        if self.required:
            return namespace in self.collections
        chosen = not self.collections or matches_any(self.collections, namespace)
        return chosen and not matches_any(self.excluded, namespace)

    @property
    def selection(self) -> Selection:
        """What the snapshot reads, for a planner."""
        return Selection(self.wants, self.documents)

    def reads_whole(self, namespace: str) -> bool:
        """Return whether the snapshot reads this collection without a condition."""
        return self.wants(namespace) and self.condition(namespace) is None

    @property
    def unread(self) -> list[tuple[str, str]]:
        """The collections that the request names, and that the table lacks as a whole."""
        if self.gained is not None:
            return [*self.gained.names]
        named = self.collections if self.required else ()
        names = (name.partition(".") for name in named if name not in self.documents)
        return [(database, name) for database, _, name in names]

    def condition(self, namespace: str) -> dict[str, Any] | None:
        """Return the filter on the documents of a collection; None: all are read."""
        if namespace in self.documents:
            return filter_of(self.documents[namespace])
        for condition in self.conditions:
            if condition.matches(namespace):
                return condition.document
        return None

    @property
    def characters(self) -> int:
        """The characters of the names and filters that a signal has given."""
        texts = () if self.required else (*self.collections, *self.excluded)
        filters = (
            text
            for condition in self.conditions
            for text in (condition.collections, condition.filter)
        )
        return sum(map(len, (*texts, *filters)))

    def without(self, patterns: tuple[str, ...]) -> SnapshotRequest:
        """Return the request without the collections that match one of these patterns."""
        return replace(self, excluded=(*self.excluded, *patterns))


@dataclass(frozen=True)
class SignalState:
    """The signals processed so far, and the snapshots that have not ended.

    `handled` are digests of ids, the oldest first. `position` is that of the collection of
    signals, None for the stream's. `required_at` is the newest token at which a table lacked a
    requested collection. `reading`, `ending` and `notifications` belong to the batch that ends
    here. It reads a part of the running snapshot, whose plan says up to where, at the cluster time
    `reading`. The request `ending` ends with it, if that has read whole collections.
    """

    handled: tuple[str, ...] = ()
    requests: tuple[SnapshotRequest, ...] = ()
    paused: bool = False
    position: Position | None = None
    required_at: str = ""
    reading: Timestamp | None = None
    ending: SnapshotRequest | None = None
    notifications: tuple[Mapping[str, Any], ...] = ()

    @property
    def running(self) -> SnapshotRequest | None:
        """The snapshot whose chunks are read next."""
        for request in self.requests:
            if request.blocks_stream:
                return request
        return None if self.paused or not self.requests else self.requests[0]

    @property
    def initial_plan(self) -> SnapshotPlan | None:
        """The plan of the initial snapshot; None if it is not running."""
        return next((request.plan for request in self.requests if request.kind == "initial"), None)

    @property
    def blocks_stream(self) -> bool:
        """Whether the stream waits for a blocking snapshot."""
        return any(request.blocks_stream for request in self.requests)

    @property
    def characters(self) -> int:
        """The characters of the names and filters of all requests."""
        return sum(request.characters for request in self.requests)

    @property
    def has_output(self) -> bool:
        """Whether the batch has rows or notifications."""
        return bool(self.reading or self.ending or self.notifications)

    @property
    def asks_present(self) -> bool:
        """Whether a signal of the batch requests that the batch moves to the end of the stream."""
        return any(notification["type"] == LOGGED for notification in self.notifications)

    def has_handled(self, identifier: str) -> bool:
        """Return whether the state has the id of this signal as processed."""
        return digest(identifier) in self.handled

    def without_batch(self) -> SignalState:
        """Return the state without the batch's part."""
        return replace(self, reading=None, ending=None, notifications=())

    def with_handled(self, identifier: str, waiting: Container[str]) -> SignalState:
        """Return the state with a further id; digests in `waiting` stay: they may recur."""
        handled = [*self.handled, digest(identifier)]
        surplus = len(handled) - _MAX_HANDLED
        kept = [known for n, known in enumerate(handled) if n >= surplus or known in waiting]
        return replace(self, handled=tuple(kept))

    def has_request(self, identifier: str) -> bool:
        """Return whether a snapshot with this id has not ended."""
        return any(request.id == identifier for request in self.requests)

    def free_id(self, name: str) -> str:
        """Return a name for a snapshot of the query, or a longer one while a snapshot has it."""
        while self.has_request(name):
            name += "-more"
        return name

    def with_request(self, request: SnapshotRequest) -> SignalState:
        """Return the state with a changed request, or with a further one."""
        if not self.has_request(request.id):
            return replace(self, requests=(*self.requests, request))
        changed = (request if old.id == request.id else old for old in self.requests)
        return replace(self, requests=tuple(changed))

    def without_request(self, identifier: str) -> SignalState:
        """Return the state without a request."""
        kept = (request for request in self.requests if request.id != identifier)
        return replace(self, requests=tuple(kept))

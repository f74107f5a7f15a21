"""The state of a query's snapshots and of its signals, as a part of Spark's offset.

A killed query continues from its offset: with the same requests, the same chunks, and the ids of
the processed signals, none of which is processed twice.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bson.timestamp import Timestamp

from spark_sink.events.positions import Position
from spark_sink.signals.requests import SnapshotRequest
from spark_sink.signals.signal import digest
from spark_sink.snapshot.plan import SnapshotPlan

LOGGED = "LOGGED"
"""The type of the notification that a signal `log` requests."""

# Ids of processed signals that are kept.
_MAX_HANDLED = 50


@dataclass(frozen=True)
class SnapshotQueue:
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

    def without_batch(self) -> SnapshotQueue:
        """Return the state without the batch's part."""
        return replace(self, reading=None, ending=None, notifications=())

    def with_handled(self, identifier: str, waiting: Container[str]) -> SnapshotQueue:
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

    def with_request(self, request: SnapshotRequest) -> SnapshotQueue:
        """Return the state with a changed request, or with a further one."""
        if not self.has_request(request.id):
            return replace(self, requests=(*self.requests, request))
        changed = (request if old.id == request.id else old for old in self.requests)
        return replace(self, requests=tuple(changed))

    def without_request(self, identifier: str) -> SnapshotQueue:
        """Return the state without a request."""
        kept = (request for request in self.requests if request.id != identifier)
        return replace(self, requests=tuple(kept))

"""The queue of a query's snapshots, and its processed signals, as a part of Spark's offset.

A killed query continues from its offset: with the same requests, the same chunks, and the ids of
the processed signals, none of which is processed twice. A next queue that depends on the servers,
or has a notification, is made by `scheduler`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bson.timestamp import Timestamp

from shard_client.bson.resume_token import cluster_time_of
from spark_sink.dataclass_json import tagged
from spark_sink.events.positions import Position
from spark_sink.snapshot.plan import SnapshotPlan
from spark_sink.snapshot.selections import (
    EVERYTHING,
    CollectionPatterns,
    MissingDocuments,
    Namespace,
    ScopeGain,
    Selection,
)
from spark_sink.snapshot.signal import SnapshotKind, digest
from spark_sink.snapshot.unread import CollectionTokens, LostDocument

# Ids of processed signals that are kept.
_MAX_HANDLED = 50


@dataclass(frozen=True)
class SnapshotRequest:
    """A snapshot that the mode of the query (the initial one), a signal or the table requests.

    Args:
        kind: initial, blocking or incremental. The stream waits for all but incremental ones.
        selection: the collections that it reads, and which of their documents.
        plan: how far it is; None before the beginning.
        aborted: whether it could not begin. A required one waits for the next start of the query.
    """

    id: str
    kind: SnapshotKind
    selection: Selection = field(
        default=EVERYTHING, metadata=tagged(CollectionPatterns, MissingDocuments, ScopeGain)
    )
    plan: SnapshotPlan | None = None
    aborted: bool = False

    @property
    def blocks_stream(self) -> bool:
        """Whether the stream waits for the snapshot."""
        return self.kind != "incremental"

    @property
    def is_required(self) -> bool:
        """Whether the table lacks what the snapshot reads; then no signal stops it."""
        return not isinstance(self.selection, CollectionPatterns)

    def unread_tokens(self, required_at: str) -> CollectionTokens:
        """Return what the request reads again, and the tokens from which the table lacks it.

        `required_at` is the token of the collections that it names.
        """
        tokens: dict[Namespace | ScopeGain, str] = dict.fromkeys(self.selection.unread, required_at)
        if isinstance(self.selection, ScopeGain):
            tokens[self.selection] = self.selection.token
        return tokens

    @property
    def ends_unread(self) -> bool:
        """Whether collections are no longer unread at its end, also those that are gone by then."""
        return isinstance(self.selection, ScopeGain) or bool(self.selection.unread)


@dataclass(frozen=True)
class BatchPart:
    """What snapshots and signals add to one batch.

    Args:
        reading: the cluster time at which the batch reads a part of the running snapshot, whose
            plan says up to where; None if it reads none.
        ending: the request that ends with the batch, if it has read whole collections.
        notifications: of what has changed with the batch.
    """

    reading: Timestamp | None = None
    ending: SnapshotRequest | None = None
    notifications: tuple[Mapping[str, Any], ...] = ()

    @property
    def has_output(self) -> bool:
        """Whether the batch has rows or notifications."""
        return bool(self.reading or self.ending or self.notifications)


@dataclass(frozen=True)
class SnapshotQueue:
    """The snapshots that have not ended, in their order, and the signals processed so far.

    Args:
        handled: digests of the ids of processed signals, the oldest first.
        requests: one that `blocks_stream` is read first, then the first of the others.
        paused: whether a signal has paused all that do not block the stream.
        signal_position: in the stream of the collection of signals; None for the query's position.
        required_at: the newest token at which a table lacked a requested collection.
        batch: what they add to the batch that ends here.
    """

    handled: tuple[str, ...] = ()
    requests: tuple[SnapshotRequest, ...] = ()
    paused: bool = False
    signal_position: Position | None = None
    required_at: str = ""
    batch: BatchPart = BatchPart()

    @property
    def running(self) -> SnapshotRequest | None:
        """The snapshot whose chunks are read next."""
        waiting = [request for request in self.requests if not request.aborted]
        for request in waiting:
            if request.blocks_stream:
                return request
        return None if self.paused or not waiting else waiting[0]

    @property
    def initial_plan(self) -> SnapshotPlan | None:
        """The plan of the initial snapshot; None if it is not running."""
        return next((request.plan for request in self.requests if request.kind == "initial"), None)

    @property
    def gains(self) -> CollectionTokens:
        """What the scope has gained and no snapshot has read to its end, with the tokens since."""
        selections = (request.selection for request in self.requests)
        return {each: each.token for each in selections if isinstance(each, ScopeGain)}

    @property
    def lost(self) -> CollectionTokens:
        """The collections of which a table lacks single documents, until a request has read them.

        Each has the newest token at which it lacked something.
        """
        selections = [request.selection for request in self.requests]
        missing = [each for each in selections if isinstance(each, MissingDocuments)]
        names = (name.partition(".") for each in missing for name in each.documents)
        return {(database, name): self.required_at for database, _, name in names}

    @property
    def characters(self) -> int:
        """The characters of the names and filters of all requests."""
        return sum(request.selection.characters for request in self.requests)

    def has_handled(self, identifier: str) -> bool:
        """Return whether the queue has the id of this signal as processed."""
        return digest(identifier) in self.handled

    def without_batch(self) -> SnapshotQueue:
        """Return the queue at the beginning of the next batch."""
        return replace(self, batch=BatchPart())

    def adding(self, **part: Any) -> SnapshotQueue:
        """Return the queue with other fields of the batch's part."""
        return replace(self, batch=replace(self.batch, **part))

    def with_handled(self, identifier: str, waiting: Container[str]) -> SnapshotQueue:
        """Return the queue with a further id; digests in `waiting` stay: they may recur."""
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

    def requiring(
        self, unread: CollectionTokens, lost: Iterable[LostDocument] = ()
    ) -> SnapshotQueue:
        """Return the queue with a request for what a table lacks.

        Args:
            unread: collections, and the token since which. Each is requested once; those that a
                scope has gained were requested then.
            lost: documents of other collections; each is requested once, too.
        """
        new = {
            ".".join(names): token
            for names, token in unread.items()
            if not isinstance(names, ScopeGain) and token > self.required_at
        }
        documents = [document for document in lost if document.token > self.required_at]
        if not new and not documents:
            return self
        last = max([*new.values(), *(document.token for document in documents)])
        time = cluster_time_of(last)
        name = self.free_id(f"again-{time.time}-{time.inc}")
        request, missing = SnapshotRequest(name, "incremental"), MissingDocuments()
        for waiting in self.requests:
            is_waiting = waiting.plan is None and not waiting.aborted
            if isinstance(waiting.selection, MissingDocuments) and is_waiting:
                request, missing = waiting, waiting.selection  # one request for both
        keys = ((".".join(document.namespace), document.key) for document in documents)
        required = replace(request, selection=missing.with_more(new, keys))
        return replace(self, required_at=last).with_request(required)

    def restarted(self) -> SnapshotQueue:
        """Return the queue at a start of the query, which may read what could not be read before.

        A right may have been granted, or an option set.
        """
        requests = (replace(request, aborted=False) for request in self.requests)
        return replace(self, requests=tuple(requests))

    def with_aborted(self, request: SnapshotRequest) -> SnapshotQueue:
        """Return the queue in which what a request reads waits for the next start of the query.

        Documents that a table lacks are one request.
        """
        for other in (other for other in self.requests if other.aborted):
            more, known = request.selection, other.selection
            if isinstance(more, MissingDocuments) and isinstance(known, MissingDocuments):
                both = known.with_more(more.collections, more.keys)
                rest = self.without_request(request.id)
                return rest.with_request(replace(other, selection=both))
        return self.with_request(replace(request, plan=None, aborted=True))

    def with_request(self, request: SnapshotRequest) -> SnapshotQueue:
        """Return the queue with a changed request, or with a further one."""
        if not self.has_request(request.id):
            return replace(self, requests=(*self.requests, request))
        changed = (request if old.id == request.id else old for old in self.requests)
        return replace(self, requests=tuple(changed))

    def without_request(self, identifier: str) -> SnapshotQueue:
        """Return the queue without a request."""
        kept = (request for request in self.requests if request.id != identifier)
        return replace(self, requests=tuple(kept))

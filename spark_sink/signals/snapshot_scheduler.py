"""The snapshots of a query: the initial one, and those that signals and the table request.

A snapshot is divided into chunks, and each batch reads some of them beside its events. All chunks
of a batch are read at one cluster time, which the batch's events do not exceed: no row of a
snapshot is older than an earlier event, and later events supersede it by their tokens. A blocking
snapshot is the same without events, and so is the initial one, which is read at its own time and
before the first events.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace

from bson.timestamp import Timestamp

from shard_client.bson.resume_token import cluster_time_of
from spark_sink.events.positions import Position, position_document, time_of
from spark_sink.signals.requests import CollectionPatterns, MissingDocuments, SnapshotRequest
from spark_sink.signals.signal import (
    EXECUTE,
    LOG,
    PAUSE,
    STOP,
    ReceivedSignal,
    Signal,
    SignalError,
    signal_of,
)
from spark_sink.signals.state import LOGGED, SnapshotQueue
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.snapshot.plan import SnapshotCollection, SnapshotPlan
from spark_sink.snapshot.unread import CollectionTokens, LostDocument, ScopeGain

REFUSAL = (
    "the query has a pipeline, whose stages work on events: start it with option snapshotFilters, "
    "which selects the documents of snapshots ({} is all)"
)
"""Why a query with such a pipeline reads no snapshots on request."""
# The most characters of a text in a notification.
_MAX_LENGTH = 600
# The most snapshots that wait, and the most characters of their names and filters.
_MAX_REQUESTS, _MAX_CHARACTERS = 20, 20_000
# The most bytes of keys of documents in a request: beyond them, whole collections are read.
_MAX_KEY_BYTES = 100_000
# The aggregate type of notifications of signals that request no snapshot.
SIGNAL = "Signal"


class SnapshotScheduler:
    """Processes signals, and plans the snapshots that they, the mode and the table request.

    Args:
        collections: regular expressions for the names of those that the initial snapshot reads;
            none means all.
        refusal: why the query cannot read snapshots on request; None if it can.
    """

    def __init__(
        self,
        planner: ChunkPlanner,
        collections: tuple[str, ...] = (),
        refusal: str | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._planner = planner
        self._collections = collections
        self._refusal = refusal
        self._clock = clock

    def begin(self, state: SnapshotQueue, time: Timestamp) -> SnapshotQueue:
        """Return the state in which the initial snapshot begins, before all others.

        `time` is a cluster time at or after all finished writes. Raises PyMongoError.
        """
        request = SnapshotRequest.initial(time, None, self._collections)
        request = replace(request, id=state.free_id(request.id))
        state = replace(state, requests=(request, *state.requests))
        return self._begun(state, request, time)

    def skipped(self, state: SnapshotQueue) -> SnapshotQueue:
        """Return the state with a notification of a start of the query without a snapshot."""
        return self._notified(state, str(uuid.uuid4()), "Initial Snapshot", "SKIPPED")

    def left_out(
        self, state: SnapshotQueue, passed: Position, position: Position, aggregate: str = "Seek"
    ) -> SnapshotQueue:
        """Return the state with a notification that what lies between two positions is left out."""
        texts = {
            "from": json.dumps(position_document(passed)),
            "to": json.dumps(position_document(position)),
        }
        time = time_of(position) or Timestamp(0, 0)
        identifier = f"{aggregate.lower()}-{time.time}-{time.inc}"
        return self._notified(state, identifier, aggregate, "SKIPPED", **texts)

    def process(
        self, state: SnapshotQueue, signals: Iterable[ReceivedSignal], waiting: Container[str] = ()
    ) -> SnapshotQueue:
        """Return the state after these signals. Each id is processed once.

        `waiting` contains digests of the ids that may be received again. Raises PyMongoError.
        """
        for received in signals:
            if state.has_handled(received.id):
                continue
            state = state.with_handled(received.id, waiting)
            try:
                if isinstance(received.document, str):
                    raise SignalError(received.document)
                applied = self._applied(state, signal_of(received.id, received.document))
                if applied.characters > max(state.characters, _MAX_CHARACTERS):
                    raise SignalError(
                        f"names and filters of all requested snapshots have more than "
                        f"{_MAX_CHARACTERS:,} characters: name collections by a pattern, or send "
                        "the signal again later"
                    )
                state = applied
            except SignalError as error:
                state = self._notified(state, received.id, SIGNAL, "REFUSED", reason=str(error))
        return state

    def require(
        self,
        state: SnapshotQueue,
        unread: CollectionTokens,
        lost: Iterable[LostDocument] = (),
    ) -> SnapshotQueue:
        """Return the state with a request for what a table lacks.

        Args:
            unread: collections, and the token since which. Each is requested once; those that a
                scope has gained were requested then.
            lost: documents of other collections; each is requested once, too.
        """
        new = {
            names: token
            for names, token in unread.items()
            if not isinstance(names, ScopeGain) and token > state.required_at
        }
        documents = [document for document in lost if document.token > state.required_at]
        if not new and not documents:
            return state
        last = max([*new.values(), *(document.token for document in documents)])
        state = replace(state, required_at=last)
        time = cluster_time_of(last)
        name = state.free_id(f"again-{time.time}-{time.inc}")
        request = SnapshotRequest(name, "incremental", MissingDocuments())
        if self._refusal is not None:
            return self._notified_of(state, request, "ABORTED", reason=self._refusal)
        for asked in state.requests:
            if isinstance(asked.reads, MissingDocuments) and asked.plan is None:  # it has not begun
                request = asked
        assert isinstance(request.reads, MissingDocuments)
        names = {*request.reads.collections, *map(".".join, new)}
        keys = {name: set(known) for name, known in request.reads.documents.items()}
        for document in documents:
            keys.setdefault(".".join(document.namespace), set()).add(document.key)
        wanted = {name: tuple(sorted(keys[name])) for name in sorted(keys.keys() - names)}
        if sum(len(key) for keys in wanted.values() for key in keys) > _MAX_KEY_BYTES:
            names |= wanted.keys()
            wanted = {}
        return state.with_request(
            replace(request, reads=MissingDocuments(tuple(sorted(names)), wanted))
        )

    def advance(self, state: SnapshotQueue, time: Timestamp) -> SnapshotQueue:
        """Return the state with what the next batch reads of the running snapshot.

        It is read at `time`, a cluster time that the batch's events do not exceed, or at its own
        time if it is the initial one. Raises PyMongoError.
        """
        while (request := state.running) is not None:
            if request.plan is None:
                state = self._begun(state, request, time)
                if state.ending is not None:
                    return state
                continue
            plan = self._planner.next_batch(request.plan, request.selection)
            if plan.ended:
                return self._ended(state, request)
            own = plan.snapshot_time
            state = self._progressed(state, request, plan).with_request(replace(request, plan=plan))
            return replace(state, reading=own if request.kind == "initial" else max(time, own))
        return state

    def _applied(self, state: SnapshotQueue, signal: Signal) -> SnapshotQueue:
        if signal.action == EXECUTE:
            if self._refusal is not None:
                raise SignalError(self._refusal)
            if len(state.requests) >= _MAX_REQUESTS:
                raise SignalError(
                    f"{_MAX_REQUESTS} snapshots are waiting: send the signal again later"
                )
            if state.has_request(signal.id):
                raise SignalError("a snapshot with this id has not ended: use another id")
            reads = CollectionPatterns(signal.collections, signal.conditions)
            return state.with_request(SnapshotRequest(signal.id, signal.kind, reads))
        if signal.action == LOG:
            return self._notified(state, signal.id, SIGNAL, LOGGED, message=signal.message)
        chosen = [request for request in state.requests if not request.blocks_stream]
        if signal.action == STOP:
            chosen = [request for request in chosen if not request.is_required]
        if not chosen:
            raise SignalError("no incremental snapshot is in progress")
        if signal.action == STOP:
            return self._stopped(state, chosen, signal)
        state = replace(state, paused=signal.action == PAUSE)
        told = "PAUSED" if state.paused else "RESUMED"
        for request in chosen:
            state = self._notified_of(state, request, told, signal=signal.id)
        return state

    def _stopped(
        self, state: SnapshotQueue, chosen: list[SnapshotRequest], signal: Signal
    ) -> SnapshotQueue:
        """Return the state without what a signal stops, with a notification of each such request.

        Raises SignalError if no request reads a collection that the signal names.
        """
        aborted: list[tuple[SnapshotRequest, str]] = []
        for request in chosen:
            assert isinstance(request.reads, CollectionPatterns)
            if not signal.collections:
                state = state.without_request(request.id)
                aborted.append((request, ", ".join(request.reads.patterns)))
                continue
            rest = request.reads.without(signal.collections)
            collections = self._planner.collections(request.reads.wants)
            stopped = [collection for collection in collections if not rest.wants(str(collection))]
            if stopped:
                state = (
                    state.without_request(request.id)
                    if len(stopped) == len(collections)
                    else state.with_request(replace(request, reads=rest))
                )
                aborted.append((request, names_of(stopped)))
        if not aborted:
            raise SignalError("no snapshot in progress reads a collection of data-collections")
        for request, names in aborted:
            texts = {"signal": signal.id, "data_collections": names}
            state = self._notified_of(state, request, "ABORTED", **texts)
        is_empty = all(request.blocks_stream or request.is_required for request in state.requests)
        return replace(state, paused=state.paused and not is_empty)

    def _begun(
        self, state: SnapshotQueue, request: SnapshotRequest, time: Timestamp
    ) -> SnapshotQueue:
        """Return the state with the snapshot begun, or without it if it cannot begin."""
        plan = self._planner.begin(time, request.reads.wants)
        collections = self._planner.collections(request.reads.wants)
        request = replace(request, plan=plan)
        if request.ends_unread and not collections:  # they were dropped
            return replace(state.without_request(request.id), ending=request)
        problem = None if request.kind == "initial" else self._problem(request, collections)
        if problem is not None:
            state = state.without_request(request.id)
            return self._notified_of(state, request, "ABORTED", reason=problem)
        state, names = state.with_request(request), names_of(collections)
        return self._notified_of(state, request, "STARTED", data_collections=names)

    def _problem(
        self, request: SnapshotRequest, collections: Sequence[SnapshotCollection]
    ) -> str | None:
        if not collections:
            return "no collection of the query's scope matches data-collections"
        names = [str(collection) for collection in collections]
        conditions = (
            request.reads.conditions if isinstance(request.reads, CollectionPatterns) else ()
        )
        for condition in conditions:
            if not any(map(condition.matches, names)):
                return f"no collection to read matches the condition's {condition.collections!r}"
        for collection in collections:
            problem = self._planner.problem(collection, request.reads.condition(str(collection)))
            if problem is not None:
                return problem
        return None

    def _ended(self, state: SnapshotQueue, request: SnapshotRequest) -> SnapshotQueue:
        given = request.kind == "initial" or request.ends_unread
        whole = given or self._planner.names(request.reads_whole)
        state = self._notified_of(state.without_request(request.id), request, "COMPLETED")
        return replace(state, ending=request if whole else None)

    def _progressed(
        self, state: SnapshotQueue, request: SnapshotRequest, plan: SnapshotPlan
    ) -> SnapshotQueue:
        """Return the state with notifications of what a batch reads, and of what ends with it."""
        end = plan.end
        read = [
            collection
            for collection in self._planner.collections(request.reads.wants, plan)
            if plan.start.collection <= collection.id
            and (
                end is None
                or collection.id < end.collection
                or (collection.id == end.collection and end.key)
            )
        ]
        scanned = [
            collection for collection in read if end is None or collection.id < end.collection
        ]
        progress = {
            "chunks_planned": str(plan.progress.chunks_planned),
            "current_collection_in_progress": names_of(read),
        }
        state = self._notified_of(state, request, "IN_PROGRESS", **progress)
        if scanned:
            names = {"scanned_collection": names_of(scanned), "status": "SUCCEEDED"}
            state = self._notified_of(state, request, "TABLE_SCAN_COMPLETED", **names)
        return state

    def _notified_of(
        self, state: SnapshotQueue, request: SnapshotRequest, told: str, **texts: str
    ) -> SnapshotQueue:
        aggregate = f"{request.kind.capitalize()} Snapshot"
        return self._notified(state, request.id, aggregate, told, **texts)

    def _notified(
        self, state: SnapshotQueue, identifier: str, aggregate: str, told: str, **texts: str
    ) -> SnapshotQueue:
        """Return the state with a notification, which has the fields and types of Debezium's.

        It is a part of the offset of its batch, so a repeated batch has the same ones.
        docs/spark-reference.md#notifications lists them.
        """
        notification = {
            "id": identifier[:_MAX_LENGTH],
            "aggregate_type": aggregate,
            "type": told,
            "additional_data": {name: text[:_MAX_LENGTH] for name, text in texts.items()},
            "timestamp": int(self._clock() * 1000),
        }
        return replace(state, notifications=(*state.notifications, notification))


def names_of(collections: Sequence[SnapshotCollection]) -> str:
    """Return the names of collections, as far as they fit into an offset."""
    text = ", ".join(map(str, collections[:_MAX_LENGTH]))
    if len(text) <= _MAX_LENGTH and len(collections) <= _MAX_LENGTH:
        return text
    kept = text[:_MAX_LENGTH].rpartition(", ")[0]
    return f"{kept} and {len(collections) - kept.count(', ') - 1:,} more"

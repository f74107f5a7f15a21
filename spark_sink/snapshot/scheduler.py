"""Decides which snapshot of a query a batch reads, and how far.

It is the initial one, or one that a signal, the table or a new scope requests.

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

from spark_sink.events.positions import Position, position_document, time_of
from spark_sink.snapshot.chunk_planner import ChunkPlanner
from spark_sink.snapshot.plan import SnapshotCollection, SnapshotPlan
from spark_sink.snapshot.queue import SnapshotQueue, SnapshotRequest
from spark_sink.snapshot.selections import CollectionPatterns
from spark_sink.snapshot.signal import (
    EXECUTE,
    LOG,
    PAUSE,
    STOP,
    ReceivedSignal,
    Signal,
    SignalError,
    signal_of,
)

REFUSAL = (
    "the query has a pipeline, whose stages work on events: start it with option snapshotFilters, "
    "which selects the documents of snapshots ({} is all)"
)
"""Why a query with such a pipeline reads no snapshots on request."""
_AGAIN = ". The table lacks documents of data_collections until a start of the job reads them"
# The most characters of a text in a notification.
_MAX_LENGTH = 600
# The most snapshots that wait, and the most characters of their names and filters.
_MAX_REQUESTS, _MAX_CHARACTERS = 20, 20_000
# The aggregate type of notifications of signals that request no snapshot.
SIGNAL = "Signal"


class SnapshotScheduler:
    """Makes the next queue of a query's snapshots. It has no state but the chunk planner's.

    A request comes into the queue by `begin`, `process` or `SnapshotQueue.requiring`. Once it is
    the running one, `advance` begins it, then has each batch read some of its chunks, and at last
    ends it. A signal may pause or stop it before. What cannot be read is aborted at its beginning:
    it leaves the queue, or waits for the next start of the query if a table lacks it. All that
    happens to it is a notification.

    Args:
        planner: says what a batch reads of a snapshot.
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

    def begin(self, queue: SnapshotQueue, at: Timestamp) -> SnapshotQueue:
        """Return the queue in which the initial snapshot begins, before all others.

        `at` is a cluster time at or after all finished writes. Raises PyMongoError.
        """
        name = queue.free_id(f"initial-{at.time}-{at.inc}")
        request = SnapshotRequest(name, "initial", CollectionPatterns(self._collections))
        queue = replace(queue, requests=(request, *queue.requests))
        return self._begun(queue, request, at)

    def skipped(self, queue: SnapshotQueue) -> SnapshotQueue:
        """Return the queue with a notification of a start of the query without a snapshot."""
        return self._notified(queue, str(uuid.uuid4()), "Initial Snapshot", "SKIPPED")

    def notified_left_out(
        self, queue: SnapshotQueue, passed: Position, position: Position, aggregate: str = "Seek"
    ) -> SnapshotQueue:
        """Return the queue with a notification that what lies between two positions is left out."""
        texts = {
            "from": json.dumps(position_document(passed)),
            "to": json.dumps(position_document(position)),
        }
        at = time_of(position) or Timestamp(0, 0)
        identifier = f"{aggregate.lower()}-{at.time}-{at.inc}"
        return self._notified(queue, identifier, aggregate, "SKIPPED", **texts)

    def process(
        self, queue: SnapshotQueue, signals: Iterable[ReceivedSignal], waiting: Container[str] = ()
    ) -> SnapshotQueue:
        """Return the queue after these signals. Each id is processed once.

        `waiting` contains digests of the ids that may be received again. Raises PyMongoError.
        """
        for received in signals:
            if queue.has_handled(received.id):
                continue
            queue = queue.with_handled(received.id, waiting)
            try:
                if isinstance(received.document, str):
                    raise SignalError(received.document)
                applied = self._applied(queue, signal_of(received.id, received.document))
                if applied.characters > max(queue.characters, _MAX_CHARACTERS):
                    raise SignalError(
                        f"names and filters of all requested snapshots have more than "
                        f"{_MAX_CHARACTERS:,} characters: name collections by a pattern, or send "
                        "the signal again later"
                    )
                queue = applied
            except SignalError as error:
                queue = self._notified(queue, received.id, SIGNAL, "REFUSED", reason=str(error))
        return queue

    def advance(self, queue: SnapshotQueue, at: Timestamp) -> SnapshotQueue:
        """Return the queue with what the next batch reads of the running snapshot.

        It is read at `at`, a cluster time that the batch's events do not exceed, or at its own
        time if it is the initial one. Raises PyMongoError.
        """
        while (request := queue.running) is not None:
            if request.plan is None:
                queue = self._begun(queue, request, at)
                if queue.batch.ending is not None:
                    return queue
                continue
            plan = self._planner.next_batch(request.plan, request.selection)
            if plan.ended:
                return self._ended(queue, request)
            reading = plan.snapshot_time
            if request.kind != "initial":
                reading = max(at, reading)
            queue = self._progressed(queue, request, plan).with_request(replace(request, plan=plan))
            return queue.adding(reading=reading)
        return queue

    def _applied(self, queue: SnapshotQueue, signal: Signal) -> SnapshotQueue:
        if signal.action == EXECUTE:
            if self._refusal is not None:
                raise SignalError(self._refusal)
            if len(queue.requests) >= _MAX_REQUESTS:
                raise SignalError(
                    f"{_MAX_REQUESTS} snapshots are waiting: send the signal again later"
                )
            if queue.has_request(signal.id):
                raise SignalError("a snapshot with this id has not ended: use another id")
            reads = CollectionPatterns(signal.collections, signal.conditions)
            return queue.with_request(SnapshotRequest(signal.id, signal.kind, reads))
        if signal.action == LOG:
            return self._notified(queue, signal.id, SIGNAL, "LOGGED", message=signal.message)
        incremental = [each for each in queue.requests if not (each.blocks_stream or each.aborted)]
        if signal.action == STOP:
            incremental = [request for request in incremental if not request.is_required]
        if not incremental:
            raise SignalError("no incremental snapshot is in progress")
        if signal.action == STOP:
            return self._stopped(queue, incremental, signal)
        queue = replace(queue, paused=signal.action == PAUSE)
        status = "PAUSED" if queue.paused else "RESUMED"
        for request in incremental:
            queue = self._notified_of(queue, request, status, signal=signal.id)
        return queue

    def _stopped(
        self, queue: SnapshotQueue, requests: list[SnapshotRequest], signal: Signal
    ) -> SnapshotQueue:
        """Return the queue without what a signal stops, with a notification of each such request.

        Raises SignalError if no request reads a collection that the signal names.
        """
        before = queue
        for request in requests:
            assert isinstance(request.selection, CollectionPatterns)
            names, rest = ", ".join(request.selection.patterns), None
            if signal.collections:
                rest = request.selection.without(signal.collections)
                collections = self._planner.collections(request.selection)
                stopped = [each for each in collections if not rest.wants(str(each))]
                if not stopped:
                    continue
                names, rest = names_of(stopped), None if stopped == collections else rest
            if rest is None:
                queue = queue.without_request(request.id)
            else:
                queue = queue.with_request(replace(request, selection=rest))
            texts = {"signal": signal.id, "data_collections": names}
            queue = self._notified_of(queue, request, "ABORTED", **texts)
        if queue is before:
            raise SignalError("no snapshot in progress reads a collection of data-collections")
        is_empty = all(request.blocks_stream or request.is_required for request in queue.requests)
        return replace(queue, paused=queue.paused and not is_empty)

    def _begun(
        self, queue: SnapshotQueue, request: SnapshotRequest, at: Timestamp
    ) -> SnapshotQueue:
        """Return the queue with the snapshot begun, or without it if it cannot begin."""
        plan = self._planner.begin(at, request.selection)
        collections = self._planner.collections(request.selection, plan)
        request = replace(request, plan=plan)
        if request.ends_unread and not collections:  # they were dropped
            return queue.without_request(request.id).adding(ending=request)
        texts = {"data_collections": names_of(collections)}
        problem = None if request.kind == "initial" else self._problem(request, collections)
        if problem is None:
            return self._notified_of(queue.with_request(request), request, "STARTED", **texts)
        if request.is_required and collections:
            queue = queue.with_aborted(request)
            texts["reason"] = f"{problem}{_AGAIN}"
        else:
            queue, texts = queue.without_request(request.id), {"reason": problem}
        return self._notified_of(queue, request, "ABORTED", **texts)

    def _problem(
        self, request: SnapshotRequest, collections: Sequence[SnapshotCollection]
    ) -> str | None:
        """Return why a snapshot on request cannot be read, as a text; None if it can."""
        if self._refusal is not None:
            return self._refusal
        if not collections:
            return "no collection of the query's scope matches data-collections"
        names, selection = [str(collection) for collection in collections], request.selection
        for condition in selection.conditions if isinstance(selection, CollectionPatterns) else ():
            if not any(map(condition.matches, names)):
                return f"no collection to read matches the condition's {condition.collections!r}"
        for collection in collections:
            problem = self._planner.problem(collection, selection.condition(str(collection)))
            if problem is not None:
                return problem
        return None

    def _ended(self, queue: SnapshotQueue, request: SnapshotRequest) -> SnapshotQueue:
        """Return the queue without a snapshot that has read all.

        Its end is a row, unless it has read only documents that meet a condition.
        """
        queue = self._notified_of(queue.without_request(request.id), request, "COMPLETED")
        completes = request.kind == "initial" or request.ends_unread
        is_whole = completes or self._planner.names(request.selection)
        return queue.adding(ending=request if is_whole else None)

    def _progressed(
        self, queue: SnapshotQueue, request: SnapshotRequest, plan: SnapshotPlan
    ) -> SnapshotQueue:
        """Return the queue with notifications of what a batch reads, and of what ends with it."""
        collections = self._planner.collections(request.selection, plan)
        read = [each for each in collections if plan.bounds(each) is not None]
        scanned = [each for each in read if plan.end is None or each.id < plan.end.collection]
        progress = {
            "chunks_planned": str(plan.progress.chunks_planned),
            "current_collection_in_progress": names_of(read),
        }
        queue = self._notified_of(queue, request, "IN_PROGRESS", **progress)
        if scanned:
            names = {"scanned_collection": names_of(scanned), "status": "SUCCEEDED"}
            queue = self._notified_of(queue, request, "TABLE_SCAN_COMPLETED", **names)
        return queue

    def _notified_of(
        self, queue: SnapshotQueue, request: SnapshotRequest, status: str, /, **texts: str
    ) -> SnapshotQueue:
        aggregate = f"{request.kind.capitalize()} Snapshot"
        return self._notified(queue, request.id, aggregate, status, **texts)

    def _notified(
        self, queue: SnapshotQueue, identifier: str, aggregate: str, status: str, /, **texts: str
    ) -> SnapshotQueue:
        """Return the queue with a notification, which has the fields and types of Debezium's.

        It is a part of the offset of its batch, so a repeated batch has the same ones.
        docs/spark-reference.md#notifications lists them.
        """
        notification = {
            "id": identifier[:_MAX_LENGTH],
            "aggregate_type": aggregate,
            "type": status,
            "additional_data": {name: text[:_MAX_LENGTH] for name, text in texts.items()},
            "timestamp": int(self._clock() * 1000),
        }
        return queue.adding(notifications=(*queue.batch.notifications, notification))


def names_of(collections: Sequence[SnapshotCollection]) -> str:
    """Return the names of collections, as far as they fit into an offset."""
    text = ", ".join(map(str, collections))
    if len(text) <= _MAX_LENGTH:
        return text
    kept = text[:_MAX_LENGTH].rpartition(", ")[0]
    return f"{kept} and {len(collections) - kept.count(', ') - 1:,} more"

"""Decides what a batch does for the snapshots that signals ask for.

A snapshot on demand is cut into chunks as any other, and each batch reads some of them beside its
events. All chunks of a batch are read at one cluster time, which the batch's events do not go
beyond: no row of a snapshot is older than an event that came before it, and events that come after
it supersede it by their tokens. A blocking snapshot is the same without events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bson.timestamp import Timestamp

from spark_sink.signals import notifications as told
from spark_sink.signals.signal import (
    EXECUTE,
    LOG,
    PAUSE,
    STOP,
    Signal,
    SignalError,
    signal_of,
)
from spark_sink.signals.state import Ended, Reading, Request, SignalState
from spark_sink.snapshot import plan as snapshots

# Snapshots that wait for their turn at most.
_MOST_REQUESTS = 100


@dataclass(frozen=True)
class Received:
    """A signal as it came. document: with `type` and `data`, or a text that says why there is
    none."""

    id: str
    document: Mapping[str, Any] | str


class Planning(Protocol):
    """The part of SnapshotPlanner that is used here. All methods raise PyMongoError."""

    def begin(
        self, mark: Timestamp, wanted: Callable[[str], bool] | None = None
    ) -> snapshots.SnapshotPlan:
        """A plan of collections, with no chunk planned yet."""

    def next_batch(
        self, plan: snapshots.SnapshotPlan, max_rows: int | None
    ) -> snapshots.SnapshotPlan:
        """The plan after a further batch."""

    def problem(
        self, collection: snapshots.Collection, condition: Mapping[str, Any] | None
    ) -> str | None:
        """Why documents of a collection cannot be read with a filter; None if they can."""

    def name_now(self, collection: snapshots.Collection) -> str | None:
        """What the collection is called now; None if it is gone."""


class AdHocSnapshots:
    """Takes signals, and plans the snapshots that they ask for.

    refusal: why the query cannot read snapshots, None if it can; clock: seconds since 1970.
    """

    def __init__(
        self,
        planner: Planning,
        refusal: str | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._planner = planner
        self._refusal = refusal
        self._clock = clock

    def take(
        self, state: SignalState, signals: Iterable[Received], present: Container[str] = ()
    ) -> SignalState:
        """The state after these signals, of which each id is taken once.

        present: ids that may be received again.
        """
        for received in signals:
            if received.id in state.handled:
                continue
            state = state.remembering(received.id, present)
            try:
                if isinstance(received.document, str):
                    raise SignalError(received.document)
                state = self._taken(state, signal_of(received.id, received.document))
            except SignalError as error:
                refused = told.notification(
                    received.id, told.SIGNAL, told.REFUSED, self._clock(), reason=str(error)
                )
                state = state.notified(refused)
        return state

    def advance(self, state: SignalState, at: Timestamp, max_rows: int) -> SignalState:
        """The state with the next batch's chunks of the running snapshot.

        at: when they are read, a cluster time that the batch's events do not go beyond; max_rows:
        about how many documents they have. Raises PyMongoError.
        """
        while (request := state.running) is not None:
            if request.plan is None:
                state = self._begun(state, request, at)
                continue
            plan = self._planner.next_batch(request.plan, max_rows)
            if plan.ended:
                return self._ended(state, request, plan.mark)
            reading = Reading(request.id, max(at, plan.mark), plan.chunks)
            state = self._scanned(state, request, plan)
            state = state.with_request(replace(request, plan=replace(plan, chunks=())))
            return replace(state, reading=reading)
        return state

    def _taken(self, state: SignalState, signal: Signal) -> SignalState:
        if signal.kind == EXECUTE:
            if self._refusal is not None:
                raise SignalError(self._refusal)
            if len(state.requests) >= _MOST_REQUESTS:
                raise SignalError(f"{_MOST_REQUESTS} snapshots wait already: send it again later")
            request = Request(signal.id, signal.blocking, signal.collections, signal.conditions)
            return state.with_request(request)
        if signal.kind == LOG:
            logged = told.notification(
                signal.id, told.SIGNAL, told.LOGGED, self._clock(), message=signal.message
            )
            return state.notified(logged)
        running = [each for each in state.requests if not each.blocking]
        if not running:
            raise SignalError("no incremental snapshot is under way")
        if signal.kind == STOP:
            return self._stopped(state, running, signal)
        state = replace(state, paused=signal.kind == PAUSE)
        kind = told.PAUSED if state.paused else told.RESUMED
        for request in running:
            state = state.notified(self._told(request, kind, signal=signal.id))
        return state

    def _stopped(self, state: SignalState, running: list[Request], signal: Signal) -> SignalState:
        for request in running:
            if signal.collections:
                state = state.with_request(request.without(signal.collections))
            else:
                state = state.without_request(request.id)
            names = ", ".join(signal.collections or request.collections)
            aborted = self._told(request, told.ABORTED, signal=signal.id, data_collections=names)
            state = state.notified(aborted)
        paused = state.paused and bool(signal.collections)
        return replace(state, paused=paused)

    def _begun(self, state: SignalState, request: Request, at: Timestamp) -> SignalState:
        """The state after the beginning of a snapshot, or without it if it cannot begin."""
        plan = self._planner.begin(at, request.wants)
        problem = self._problem(request, plan)
        if problem is not None:
            aborted = self._told(request, told.ABORTED, reason=problem)
            return state.without_request(request.id).notified(aborted)
        whole = tuple(each for each in plan.waiting if request.condition(str(each)) is None)
        state = state.with_request(replace(request, plan=plan, whole=whole))
        names = told.names_of(plan.waiting)
        return state.notified(self._told(request, told.STARTED, data_collections=names))

    def _problem(self, request: Request, plan: snapshots.SnapshotPlan) -> str | None:
        if not plan.waiting:
            return "no collection of the query's scope matches data-collections"
        names = [str(each) for each in plan.waiting]
        for condition in request.conditions:
            if not any(map(condition.matches, names)):
                return f"no collection to read matches the condition's {condition.collections!r}"
        for collection in plan.waiting:
            problem = self._planner.problem(collection, request.condition(str(collection)))
            if problem is not None:
                return problem
        return None

    def _scanned(
        self, state: SignalState, request: Request, plan: snapshots.SnapshotPlan
    ) -> SignalState:
        """The state with notifications of what the chunks of a plan read."""
        aggregate = _aggregate(request)
        for each in told.progress_of(request.id, aggregate, plan, self._clock()):
            state = state.notified(each)
        return state

    def _ended(self, state: SignalState, request: Request, mark: Timestamp) -> SignalState:
        names = {(each.database, each.name) for each in request.whole}
        for collection in request.whole:  # rows may have the old name of a renamed one, or the new
            now = self._planner.name_now(collection)
            if now is not None:
                names.add((collection.database, now))
        state = state.without_request(request.id).notified(self._told(request, told.COMPLETED))
        return replace(state, ended=Ended(mark, tuple(sorted(names))) if names else None)

    def _told(self, request: Request, kind: str, **additional: str) -> dict[str, Any]:
        return told.notification(request.id, _aggregate(request), kind, self._clock(), **additional)


def _aggregate(request: Request) -> str:
    return told.BLOCKING if request.blocking else told.INCREMENTAL

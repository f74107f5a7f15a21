"""The offsets of a stream, which Spark keeps in the checkpoint.

An offset holds a position and the scope of the stream. A query refuses a checkpoint of another
scope, because going on from it would leave out the events that only the new scope has; a job reads
the collections that its scope gains, which an offset then lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bson.timestamp import Timestamp

from spark_sink.errors import StreamError
from spark_sink.events.positions import (
    AtTime,
    Position,
    from_offset,
    high_water_mark,
    time_document,
    time_from,
    time_of,
    to_offset,
)
from spark_sink.options.scope import Scope, scope_from
from spark_sink.signals.state import SignalState, state_from
from spark_sink.snapshot.plan import SnapshotPlan, plan_from

_SCOPE = "scope"
_IDLE_UNTIL = "quietUntil"
_SNAPSHOT = "snapshot"
_HEARTBEAT = "heartbeat"
_SIGNALS = "signals"
_SINCE = "since"
_GAINED = "gained"
_SOUGHT = "sought"
_Value = TypeVar("_Value")

_BESIDE = (_SCOPE, _IDLE_UNTIL, _SNAPSHOT, _HEARTBEAT, _SIGNALS, _SINCE, _GAINED, _SOUGHT)
"""The fields of an offset beside its position."""

_NO_OFFSET = "the checkpoint has no offset of this source: use a separate checkpointLocation"


@dataclass(frozen=True)
class Offsets:
    """Positions of a scope as offsets of Spark: dicts for json.dumps.

    `since` is the cluster time from which on the events of the scope were read without a gap; None
    for the query's beginning.
    """

    scope: Scope
    since: Timestamp | None = None

    def of(self, offset: Mapping[str, Any]) -> Offsets:
        """Return what wrote an offset: its own scope, and since when. Raises StreamError."""
        written = _parsed(scope_from, offset.get(_SCOPE))
        return Offsets(written or self.scope, _parsed(time_from, offset.get(_SINCE)))

    def write(
        self,
        position: Position,
        idle_until: Timestamp | None = None,
        heartbeat: Timestamp | None = None,
        signals: SignalState | None = None,
    ) -> dict[str, Any]:
        """Return the position as an offset, with what else the next batch needs.

        `idle_until` is a time before which the batch that ends here has no event.
        """
        offset = {**to_offset(position), _SCOPE: self.scope.to_document()}
        times = ((_IDLE_UNTIL, idle_until), (_HEARTBEAT, heartbeat), (_SINCE, self.since))
        for name, time in times:
            if time is not None:
                offset[name] = time_document(time)
        if signals is not None and signals != SignalState():
            offset[_SIGNALS] = signals.to_document()
        return offset

    def write_snapshot(
        self, plan: SnapshotPlan, signals: SignalState | None = None
    ) -> dict[str, Any]:
        """Return the end of a snapshot's batch as an offset, with the plan."""
        return {**self.write(plan.handover, signals=signals), _SNAPSHOT: plan.to_document()}

    def write_gain(
        self,
        position: AtTime,
        gained: Iterable[tuple[str, str]],
        heartbeat: Timestamp | None,
        signals: SignalState,
    ) -> dict[str, Any]:
        """Return the position where the scope begins, with the collections that it gains there."""
        offsets = replace(self, since=position.time)
        found = offsets.write(position, heartbeat=heartbeat, signals=signals)
        return {**found, _GAINED: [list(place) for place in gained]}

    def write_sought(
        self,
        position: AtTime,
        passed: Position,
        heartbeat: Timestamp | None,
        signals: SignalState,
    ) -> dict[str, Any]:
        """Return a position to which a job was set, so that it leaves out events since `passed`."""
        found = self.write(position, heartbeat=heartbeat, signals=signals)
        return {**found, _SOUGHT: to_offset(passed)}

    def read_sought(self, offset: Mapping[str, Any]) -> Position | None:
        """Return where the gap before an offset begins; None if the job was not set there."""
        return _parsed(from_offset, offset.get(_SOUGHT))

    def read_signals(self, offset: Mapping[str, Any]) -> SignalState:
        """Return what `write` was given as `signals`. Raises StreamError."""
        return _parsed(state_from, offset.get(_SIGNALS)) or SignalState()

    def read_snapshot(self, offset: Mapping[str, Any]) -> SnapshotPlan | None:
        """Return the snapshot's plan in an offset, None if there is none. Raises StreamError."""
        return _parsed(plan_from, offset.get(_SNAPSHOT))

    def read_idle_until(self, offset: Mapping[str, Any]) -> Timestamp | None:
        """Return what `write` was given as `idle_until`."""
        return _parsed(time_from, offset.get(_IDLE_UNTIL))

    def read_heartbeat(self, offset: Mapping[str, Any]) -> Timestamp | None:
        """Return what `write` was given as `heartbeat`."""
        return _parsed(time_from, offset.get(_HEARTBEAT))

    def read(self, offset: Mapping[str, Any]) -> Position:
        """Return the position of an offset; those of older versions have no scope.

        Raises StreamError for an offset of another scope or of another source.
        """
        plain = dict(offset)
        written = plain.pop(_SCOPE, None)
        for name in _BESIDE:
            plain.pop(name, None)
        position = _parsed(from_offset, plain)
        assert position is not None
        if written is not None and written != self.scope.to_document():
            raise StreamError(_changed(scope_from(written), self.scope, position))
        return position


def gained_in(offset: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return the collections, by database and name, that the scope gains, and since which token."""
    gained = offset.get(_GAINED)
    if not gained:
        return {}
    position = from_offset({name: each for name, each in offset.items() if name not in _BESIDE})
    assert isinstance(position, AtTime)
    return {(database, name): high_water_mark(position.time) for database, name in gained}


def _parsed(parse: Callable[[Any], _Value], document: Any) -> _Value | None:
    try:
        return None if document is None else parse(document)
    except (KeyError, TypeError, ValueError) as error:
        raise StreamError(_NO_OFFSET, error) from None


def _changed(old: Scope, new: Scope, position: Position) -> str:
    time = time_of(position)
    since = "" if time is None else f" and startAtOperationTime={time.time},{time.inc}"
    return (
        f"the checkpoint is of another scope: it was written for {old}, and the options request "
        f"{new}. Restore the options, or start with a new checkpointLocation{since}"
    )

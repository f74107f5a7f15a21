"""What a stream watches, and the offsets in which Spark's checkpoint remembers it.

A scope is the whole cluster, a database, one collection, or several collections of a database. An
offset names the scope beside the position: a checkpoint of another scope is refused, since going on
from it would leave out the events that only the new scope has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bson.timestamp import Timestamp

from spark_sink.errors import StreamError
from spark_sink.namespace_lists import NamespaceLists, lists_from
from spark_sink.positions import (
    Position,
    PositionError,
    from_offset,
    time_document,
    time_from,
    time_of,
    to_offset,
)
from spark_sink.signals.state import SignalState, state_from
from spark_sink.snapshot.plan import SnapshotPlan, plan_from

_SCOPE = "scope"
_QUIET = "quietUntil"
_SNAPSHOT = "snapshot"
_HEARTBEAT = "heartbeat"
_SIGNALS = "signals"


@dataclass(frozen=True)
class Scope:
    """The namespaces of a stream.

    database: None for the whole cluster; collections: empty for all of the database; lists: what
    else the namespaces are chosen by.
    """

    database: str | None = None
    collections: tuple[str, ...] = ()
    lists: NamespaceLists = field(default_factory=NamespaceLists)

    @property
    def stages(self) -> list[dict[str, Any]]:
        """What goes before the user's pipeline: the filters for several collections.

        One collection needs none, since the server watches it as such; several are watched as
        their database. A rename belongs to its source and to its target.
        """
        stages = self.lists.stages
        if len(self.collections) < 2:
            return stages
        chosen = {"$in": list(self.collections)}
        others = {"operationType": {"$in": ["dropDatabase", "invalidate"]}}
        wanted = {"$match": {"$or": [{"ns.coll": chosen}, {"to.coll": chosen}, others]}}
        return [wanted, *stages]

    def accepts(self, database: str, collection: str) -> bool:
        """Whether a collection of the scope's database belongs to the scope."""
        chosen = not self.collections or collection in self.collections
        return chosen and self.lists.accepts(database, collection)

    def to_document(self) -> dict[str, Any]:
        """The scope as part of an offset."""
        document: dict[str, Any] = {}
        if self.database is not None:
            document["database"] = self.database
        if self.collections:
            document["collections"] = list(self.collections)
        if self.lists:
            document["lists"] = self.lists.to_document()
        return document

    def __str__(self) -> str:
        return f"{self._place()} ({self.lists})" if self.lists else self._place()

    def _place(self) -> str:
        if self.database is None:
            return "the whole cluster"
        if not self.collections:
            return f"database {self.database!r}"
        return ", ".join(f"{self.database}.{name}" for name in self.collections)


_NO_OFFSET = (
    "the checkpoint holds no offset of this source: give the query its own checkpointLocation"
)


@dataclass(frozen=True)
class Offsets:
    """Positions of a scope as offsets of Spark: dicts that json.dumps accepts."""

    scope: Scope

    def write(
        self,
        position: Position,
        quiet_until: Timestamp | None = None,
        heartbeat: Timestamp | None = None,
        signals: SignalState | None = None,
    ) -> dict[str, Any]:
        """The position as an offset.

        quiet_until: a cluster time before which the batch that ends here has no event; heartbeat:
        that of the latest heartbeat; signals: what has come of signals so far.
        """
        offset = {**to_offset(position), _SCOPE: self.scope.to_document()}
        for name, time in ((_QUIET, quiet_until), (_HEARTBEAT, heartbeat)):
            if time is not None:
                offset[name] = time_document(time)
        if signals is not None and signals != SignalState():
            offset[_SIGNALS] = signals.to_document()
        return offset

    def write_snapshot(
        self, plan: SnapshotPlan, signals: SignalState | None = None
    ) -> dict[str, Any]:
        """The end of a snapshot's batch as an offset: where the stream goes on, and the plan."""
        return {**self.write(plan.handover, signals=signals), _SNAPSHOT: plan.to_document()}

    def read_signals(self, offset: Mapping[str, Any]) -> SignalState:
        """What `write` was given as `signals`. Raises StreamError."""
        document = offset.get(_SIGNALS)
        try:
            return SignalState() if document is None else state_from(document)
        except (KeyError, TypeError, ValueError) as error:
            raise StreamError(_NO_OFFSET, error) from None

    def read_snapshot(self, offset: Mapping[str, Any]) -> SnapshotPlan | None:
        """The plan of an offset; None if it is not of a snapshot. Raises StreamError."""
        document = offset.get(_SNAPSHOT)
        try:
            return None if document is None else plan_from(document)
        except (KeyError, TypeError, ValueError) as error:
            raise StreamError(_NO_OFFSET, error) from None

    def read_quiet(self, offset: Mapping[str, Any]) -> Timestamp | None:
        """What `write` was given as `quiet_until`."""
        return _time(offset.get(_QUIET))

    def read_heartbeat(self, offset: Mapping[str, Any]) -> Timestamp | None:
        """What `write` was given as `heartbeat`."""
        return _time(offset.get(_HEARTBEAT))

    def read(self, offset: Mapping[str, Any]) -> Position:
        """The position of an offset, which may be one of an older version, without a scope.

        Raises StreamError if it is of another scope, or no offset of this source.
        """
        plain = dict(offset)
        written = plain.pop(_SCOPE, None)
        for name in (_QUIET, _SNAPSHOT, _HEARTBEAT, _SIGNALS):
            plain.pop(name, None)
        try:
            position = from_offset(plain)
        except PositionError as error:
            raise StreamError(_NO_OFFSET, error) from None
        if written is not None and written != self.scope.to_document():
            raise StreamError(_changed(_scope(written), self.scope, position))
        return position


def _time(document: Mapping[str, int] | None) -> Timestamp | None:
    return None if document is None else time_from(document)


def _scope(document: Mapping[str, Any]) -> Scope:
    return Scope(
        document.get("database"),
        tuple(document.get("collections", ())),
        lists_from(document.get("lists")),
    )


def _changed(old: Scope, new: Scope, position: Position) -> str:
    time = time_of(position)
    since = "" if time is None else f" and startAtOperationTime={time.time},{time.inc}"
    return (
        f"the checkpoint is of another scope: it was written for {old}, and the options ask for "
        f"{new}. Restore the options, or start with a new checkpointLocation{since}"
    )

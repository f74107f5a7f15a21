"""Snapshots of the state of open streams, as serverStatus shows them."""

from dataclasses import dataclass
from typing import Any, Self

from bson.int64 import Int64
from bson.timestamp import Timestamp

from router.change_stream.fan_out import FanOut

_MS = 1000


@dataclass(frozen=True, slots=True)
class RemoteDescription:
    """One remote of a stream.

    ``topology`` marks the remote that watches config.shards; a config server that is also a shard
    has another remote for its data. ``state`` is "opening", "reading", "paused" (by a budget, or
    because no client reads), "failing" or "closed". ``failing_for`` is the number of seconds since
    the start of a failure that lasts, ``error`` the last failure. ``reopened`` counts the failures
    after which the cursor was opened again, ``nudges`` the nudges that this stream requested.
    """

    target: str
    address: str | None
    state: str
    promise: Timestamp | None
    events: int
    buffered_bytes: int
    reopened: int
    nudges: int
    topology: bool = False
    failing_for: float | None = None
    error: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return what serverStatus shows."""
        document: dict[str, Any] = {
            "target": self.target,
            "address": self.address,
            "state": self.state,
            "promise": self.promise,
            "events": Int64(self.events),
            "bufferedBytes": Int64(self.buffered_bytes),
            "reopened": self.reopened,
            "nudges": Int64(self.nudges),
        }
        if self.topology:
            document["topology"] = True
        if self.failing_for is not None:
            document["failingMillis"] = Int64(self.failing_for * _MS)
            document["error"] = self.error
        return document


@dataclass(frozen=True, slots=True)
class FilterCounts:
    """The filters that the router evaluates on a stream.

    ``readers`` have ``filters`` different filters, or read one of ``namespaces`` narrower scopes.
    ``examined`` events have been tried and have been let through ``matches`` times.
    """

    readers: int
    filters: int
    namespaces: int
    examined: int
    matches: int

    @classmethod
    def of(cls, fan_out: FanOut) -> Self | None:
        """Return the counts of a fan-out; None if no filter is evaluated."""
        if not fan_out.readers:
            return None
        return cls(
            fan_out.readers,
            fan_out.filters,
            fan_out.namespaces,
            fan_out.examined,
            fan_out.matches,
        )

    def to_document(self) -> dict[str, Any]:
        """Return what serverStatus shows."""
        return {
            "readers": self.readers,
            "filters": self.filters,
            "namespaces": self.namespaces,
            "examined": Int64(self.examined),
            "matches": Int64(self.matches),
        }


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """One set of remotes and the cursors that read it.

    ``events`` is the number of events handed out so far. ``gate_holder`` is the target of the
    remote with the smallest promise; ``waiting`` is whether it keeps buffered events back.
    ``gate_reason`` says why the gate holder's promise is not greater: "opening", "reconnecting",
    "paused" (its buffer is full, or no client reads), "idle" (it has no newer events) or "behind"
    (it still has events to read). ``filtered`` counts the filters that the router evaluates.
    """

    cursor_ids: tuple[int, ...]
    namespace: str
    events: int
    buffered_bytes: int
    gate_holder: str | None
    gate_reason: str | None
    waiting: bool
    remotes: tuple[RemoteDescription, ...]
    filtered: FilterCounts | None = None

    def to_document(self) -> dict[str, Any]:
        """Return what serverStatus shows."""
        filtered = {} if self.filtered is None else {"filtered": self.filtered.to_document()}
        return {
            "cursorIds": [Int64(each) for each in self.cursor_ids],
            "namespace": self.namespace,
            "events": Int64(self.events),
            "bufferedBytes": Int64(self.buffered_bytes),
            "gateHolder": self.gate_holder,
            "gateReason": self.gate_reason,
            "waiting": self.waiting,
            **filtered,
            "remotes": [remote.to_document() for remote in self.remotes],
        }

"""The I/O state of one remote: its cursor, wait times and nudges."""

import asyncio
from math import inf

from bson.timestamp import Timestamp

from router.change_stream.actions import OpenRemote
from router.change_stream.resume_token import cluster_time_of
from router.stream_settings import StreamSettings
from router.streams.description import RemoteDescription
from router.streams.flow_control import AwaitPolicy, ProbeBudget
from shard_client.remote_cursor.cursor_reply import CursorBatch, token_data
from shard_client.remote_cursor.remote_cursor import RemoteCursor

_AGAIN, _AGAIN_MOST = 0.1, 2.0
"""Seconds, doubling up to a maximum, before a nudge that has not moved the promise is repeated."""
_LONGEST_PATIENCE = 12
"""Maximum patience with a promise that does not advance, as a multiple of the first patience."""

_FEW, _SMALL = 50, 64 * 1024
"""A batch with fewer events and fewer bytes was not cut short: the member had no more events."""


class NudgeState:
    """The state of the nudges of a remote's member; does no I/O. Times are in seconds."""

    __slots__ = ("_pause", "again", "begun", "past", "pending")

    def __init__(self) -> None:
        self.pending = False
        """Whether a nudge has been requested and is not done yet."""
        self.begun = False
        """Whether the pending nudge has been sent."""
        self.past = Timestamp(0, 0)
        """The cluster time past which the nudge moves the member."""
        self.again = 0.0
        """The time from which the same nudge may be repeated."""
        self._pause = _AGAIN

    def ask(self, past: Timestamp) -> None:
        """Record the request for a nudge past this time."""
        if past > self.past:
            self._pause = _AGAIN
        self.past, self.pending, self.begun = past, True, False

    def done(self, now: float) -> None:
        """Record the end of the nudge, and set the time from which it may be repeated."""
        self.pending = self.begun = False
        self.again = now + self._pause
        self._pause = min(_AGAIN_MOST, 2 * self._pause)

    def shown(self) -> None:
        """Record that the promise has advanced as far as needed."""
        self._pause = _AGAIN


class Overdue:
    """Detects a promise that does not advance although its replica set has; does no I/O.

    ``patience`` is in seconds; 0 means without limit. It doubles with each member that is left for
    this reason, up to a maximum.
    """

    __slots__ = ("_first", "_past", "_patience", "_since")

    def __init__(self, patience: float) -> None:
        self._first = self._patience = patience
        self._past: Timestamp | None = None
        self._since = 0.0

    @property
    def waiting(self) -> bool:
        """Whether a promise is due."""
        return self._past is not None

    def reached(self, past: Timestamp, now: float) -> None:
        """Record that the replica set is beyond ``past``, so that a promise beyond it is due."""
        if self._past is None:
            self._past, self._since = past, now

    def promised(self, time: Timestamp) -> None:
        """Record that the remote's promise is ``time``."""
        if self._past is not None and time > self._past:
            self._past, self._patience = None, self._first

    def give_up(self, now: float) -> bool:
        """Return whether to leave the member; if so, increase the patience for the next one."""
        late = self._past is not None and 0 < self._patience < now - self._since
        if late:
            self._since = now
            self._patience = min(2 * self._patience, _LONGEST_PATIENCE * self._first)
        return late


class Remote:
    """One remote: its target, its cursor, and the state of its waits and nudges."""

    __slots__ = (
        "asked",
        "collects_in",
        "cursor",
        "events",
        "events_at",
        "host",
        "idle",
        "nudge",
        "nudges",
        "opened",
        "overdue",
        "policy",
        "probes",
        "reached",
        "rest",
        "round",
        "target",
        "topology",
    )

    def __init__(self, action: OpenRemote, limits: StreamSettings, now: float) -> None:
        self.target = action.target
        self.host = action.host
        self.topology = action.topology
        self.policy = AwaitPolicy(limits)
        self.probes = ProbeBudget(limits, now)
        self.nudge = NudgeState()
        self.overdue = Overdue(limits.promise_timeout)
        self.cursor: RemoteCursor | None = None
        self.opened = False
        self.nudges = 0
        self.idle = False
        """Whether its last reply reached the end of the member's oplog."""
        self.reached = Timestamp(0, 0)
        """The end of the member's oplog, as of its last reply."""
        self.rest: asyncio.TimerHandle | None = None
        """Timer that ends a rest, during which no getMore is sent although budgets allow it."""
        self.events = 0
        self.events_at = -inf
        """The time of its last batch with events."""
        self.collects_in = -1
        """The number of the round whose first getMore of this remote is due or in progress."""
        self.round = -1
        """The number of the last round in which its promise was requested for waiting events."""
        self.asked = Timestamp(0, 0)
        """The cluster time that its promise must pass in that round."""

    def record(self, batch: CursorBatch) -> None:
        """Record a reply's number of events and how far it shows the member's oplog to be."""
        self.events += len(batch.events)
        if batch.operation_time is not None:
            self.reached = max(self.reached, batch.operation_time)
        # The reply of an opening is always empty, so it does not show that the member is idle.
        if self.opened:
            self.idle = (
                not batch.events
                or (len(batch.events) < _FEW and batch.size < _SMALL)
                or batch.complete
                or token_data(batch.pbrt) > batch.events[-1][0]
            )

    def end_rest(self) -> None:
        """End the remote's rest, if there is one."""
        if self.rest is not None:
            self.rest.cancel()
            self.rest = None

    @property
    def state(self) -> str:
        """The state of the cursor, as described in ``RemoteDescription``."""
        state = self.cursor.state if self.cursor is not None else "closed"
        # A remote that rests between two getMores is not paused.
        return "reading" if state == "paused" and self.rest is not None else state

    @property
    def gate_reason(self) -> str:
        """Why the promise is not greater, as described in ``StreamDescription``."""
        state = self.state
        if state == "reading":
            return "idle" if self.idle else "behind"
        return {"failing": "reconnecting"}.get(state, state)

    def describe(self, promise: bytes | None, buffered: int) -> RemoteDescription:
        """Return a description of the remote, given its promise and its buffered bytes."""
        cursor = self.cursor
        error = cursor.last_error if cursor is not None else None
        return RemoteDescription(
            target=self.target,
            address=cursor.address if cursor is not None else None,
            state=self.state,
            promise=None if promise is None else cluster_time_of(promise),
            events=self.events,
            buffered_bytes=buffered,
            reopened=cursor.reopened if cursor is not None else 0,
            nudges=self.nudges,
            topology=self.topology,
            failing_for=cursor.failing_for if cursor is not None else None,
            error=None if error is None else str(error),
        )

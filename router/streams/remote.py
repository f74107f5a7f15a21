"""One remote of a stream, as the shell keeps it."""

import asyncio

from bson.timestamp import Timestamp

from router.change_stream.actions import OpenRemote
from router.change_stream.resume_token import cluster_time_of
from router.stream_settings import StreamSettings
from router.streams.await_policy import AwaitPolicy, LookBudget
from router.streams.description import RemoteDescription
from shard_client.remote_cursor.cursor_reply import CursorBatch, token_data
from shard_client.remote_cursor.remote_cursor import RemoteCursor

_AGAIN, _AGAIN_MOST = 0.1, 2.0
"""Seconds after which a nudge that has not shown in a promise is repeated; they double."""
_LONGEST_PATIENCE = 12
"""Times its first patience for which a promise that stands still is borne at most."""

_FEW, _SMALL = 50, 64 * 1024
"""A batch with fewer events and bytes has not been cut short: there were no more."""


class NudgeState:
    """How far a remote's member has been asked to get on, pure; times in seconds."""

    __slots__ = ("_pause", "again", "begun", "past", "pending")

    def __init__(self) -> None:
        self.pending = False
        """Whether a nudge is under way or waits for its turn."""
        self.begun = False
        """Whether it has been sent."""
        self.past = Timestamp(0, 0)
        """The time that it is to get past."""
        self.again = 0.0
        """When it is worth trying the same again."""
        self._pause = _AGAIN

    def ask(self, past: Timestamp) -> None:
        """A nudge past this time has been asked for."""
        if past > self.past:
            self._pause = _AGAIN
        self.past, self.pending, self.begun = past, True, False

    def done(self, now: float) -> None:
        """The nudge is over; if it does not show, it may be repeated after a while."""
        self.pending = self.begun = False
        self.again = now + self._pause
        self._pause = min(_AGAIN_MOST, 2 * self._pause)

    def shown(self) -> None:
        """The promise has moved as far as it was to."""
        self._pause = _AGAIN


class Overdue:
    """Notices a promise that stands still although its replica set has moved on, pure.

    ``patience`` is in seconds, 0 for without end; it doubles with each member that was left for it.
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
        """The replica set is known to be beyond ``past``: the promise must get there."""
        if self._past is None:
            self._past, self._since = past, now

    def promised(self, time: Timestamp) -> None:
        """The remote has promised as far as ``time``."""
        if self._past is not None and time > self._past:
            self._past, self._patience = None, self._first

    def give_up(self, now: float) -> bool:
        """Tell whether the member is to be left; it is then given longer the next time."""
        late = self._past is not None and 0 < self._patience < now - self._since
        if late:
            self._since = now
            self._patience = min(2 * self._patience, _LONGEST_PATIENCE * self._first)
        return late


class Remote:
    """One remote: where it is, its cursor, and how it is being asked."""

    __slots__ = (
        "cursor",
        "events",
        "host",
        "idle",
        "looks",
        "nudge",
        "nudges",
        "opened",
        "overdue",
        "policy",
        "reached",
        "rest",
        "target",
        "topology",
    )

    def __init__(self, action: OpenRemote, limits: StreamSettings, now: float) -> None:
        self.target = action.target
        self.host = action.host
        self.topology = action.topology
        self.policy = AwaitPolicy(limits)
        self.looks = LookBudget(limits, now)
        self.nudge = NudgeState()
        self.overdue = Overdue(limits.promise_timeout)
        self.cursor: RemoteCursor | None = None
        self.opened = False
        self.nudges = 0
        self.idle = False
        """Whether its last reply came to the end of the member's oplog."""
        self.reached = Timestamp(0, 0)
        """The end of the member's oplog, as of its last reply."""
        self.rest: asyncio.TimerHandle | None = None
        """Until when it is not asked, although it may be."""
        self.events = 0

    def take_note(self, batch: CursorBatch) -> None:
        """Take note of what a reply tells of its member."""
        self.events += len(batch.events)
        if batch.operation_time is not None:
            self.reached = max(self.reached, batch.operation_time)
        # An opening's reply is empty whatever comes after it.
        if self.opened:
            self.idle = (
                not batch.events
                or (len(batch.events) < _FEW and batch.size < _SMALL)
                or token_data(batch.pbrt) > batch.events[-1][0]
            )

    def rouse(self) -> None:
        """End its rest, if it rests."""
        if self.rest is not None:
            self.rest.cancel()
            self.rest = None

    def describe(self, promise: bytes | None, buffered: int) -> RemoteDescription:
        """Describe the remote, given its promise and what is buffered for it."""
        cursor = self.cursor
        error = cursor.last_error if cursor is not None else None
        state = cursor.state if cursor is not None else "closed"
        if state == "paused" and self.rest is not None:
            state = "reading"  # it only rests between two getMores
        return RemoteDescription(
            target=self.target,
            address=cursor.address if cursor is not None else None,
            state=state,
            promise=None if promise is None else cluster_time_of(promise),
            events=self.events,
            buffered_bytes=buffered,
            reopened=cursor.reopened if cursor is not None else 0,
            nudges=self.nudges,
            topology=self.topology,
            failing_for=cursor.failing_for if cursor is not None else None,
            error=None if error is None else str(error),
        )

"""One remote of a stream, as the shell keeps it."""

import asyncio

from bson.timestamp import Timestamp

from router.change_stream.actions import OpenRemote
from router.change_stream.resume_token import cluster_time_of
from router.cursors.await_policy import AwaitPolicy
from router.cursors.description import RemoteDescription
from shard_client.cursor_reply import CursorBatch, token_data
from shard_client.remote_cursor import RemoteCursor

_FEW, _SMALL = 50, 64 * 1024
"""A batch with fewer events and bytes has not been cut short: there were no more."""


class Remote:
    """One remote: where it is, its cursor, and how it is being asked."""

    __slots__ = (
        "cursor",
        "events",
        "host",
        "idle",
        "nudge_again",
        "nudged",
        "nudged_past",
        "nudges",
        "opened",
        "policy",
        "reached",
        "rest",
        "target",
        "topology",
    )

    def __init__(self, action: OpenRemote, policy: AwaitPolicy) -> None:
        self.target = action.target
        self.host = action.host
        self.topology = action.topology
        self.policy = policy
        self.cursor: RemoteCursor | None = None
        self.opened = False
        self.nudged = False
        self.nudged_past = Timestamp(0, 0)
        self.nudge_again = 0.0
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

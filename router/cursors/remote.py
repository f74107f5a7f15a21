"""One remote of a stream, as the shell keeps it."""

from bson.timestamp import Timestamp

from router.change_stream.actions import OpenRemote
from router.change_stream.resume_token import cluster_time_of
from router.cursors.await_policy import AwaitPolicy
from router.cursors.description import RemoteDescription
from shard_client.remote_cursor import RemoteCursor


class Remote:
    """One remote: where it is, its cursor, and how it is being asked."""

    __slots__ = (
        "cursor",
        "events",
        "host",
        "nudge_again",
        "nudged",
        "nudged_past",
        "nudges",
        "opened",
        "policy",
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
        self.events = 0

    def describe(self, promise: bytes | None, buffered: int) -> RemoteDescription:
        """Describe the remote, given its promise and what is buffered for it."""
        cursor = self.cursor
        error = cursor.last_error if cursor is not None else None
        return RemoteDescription(
            target=self.target,
            address=cursor.address if cursor is not None else None,
            state=cursor.state if cursor is not None else "closed",
            promise=None if promise is None else cluster_time_of(promise),
            events=self.events,
            buffered_bytes=buffered,
            reopened=cursor.reopened if cursor is not None else 0,
            nudges=self.nudges,
            topology=self.topology,
            failing_for=cursor.failing_for if cursor is not None else None,
            error=None if error is None else str(error),
        )

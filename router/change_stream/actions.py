"""What a merged stream asks its owner to do, and what it hands out."""

from dataclasses import dataclass

from bson.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class OpenRemote:
    """Open a cursor on ``target`` (a shard's id, or "config") from ``start_at``, inclusive.

    ``topology`` marks the cursor on ``config.shards``: open it with ``topology_command``.
    """

    remote: int
    target: str
    host: str
    start_at: Timestamp
    topology: bool = False


@dataclass(frozen=True, slots=True)
class ReopenRemote:
    """Open the remote again with ``startAfter`` its invalidate's token (raw BSON)."""

    remote: int
    start_after: bytes


@dataclass(frozen=True, slots=True)
class CloseRemote:
    """Kill the remote's cursor: nothing more is wanted from it."""

    remote: int


Action = OpenRemote | ReopenRemote | CloseRemote


@dataclass(frozen=True, slots=True)
class Taken:
    """One batch for a client.

    ``size`` is the events' bytes, ``pbrt`` the raw token document of the reply's
    postBatchResumeToken; ``closed`` says that the stream has ended: cursor id 0.
    """

    events: list[bytes]
    size: int
    pbrt: bytes
    closed: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """A remote whose promise keeps buffered events back.

    ``sort_key`` and ``cluster_time`` are those of the first buffered event, ``latest_key`` and
    ``latest`` those of the last one: past it, nothing that is buffered now waits any more.
    """

    remote: int
    target: str
    sort_key: bytes
    cluster_time: Timestamp
    latest_key: bytes
    latest: Timestamp

"""Actions that a merged stream returns to its owner."""

from dataclasses import dataclass

from bson.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class OpenRemote:
    """Open a cursor on ``target`` (a shard's id, or "config") from ``start_at``, inclusive.

    ``topology`` marks the cursor on ``config.shards``; it is opened with ``topology_command``.
    """

    remote: int
    target: str
    host: str
    start_at: Timestamp
    topology: bool = False


@dataclass(frozen=True, slots=True)
class ReopenRemote:
    """Reopen the remote with ``startAfter`` set to its invalidate's token (raw BSON)."""

    remote: int
    start_after: bytes


@dataclass(frozen=True, slots=True)
class CloseRemote:
    """Kill the remote's cursor, which is no longer needed."""

    remote: int


Action = OpenRemote | ReopenRemote | CloseRemote


@dataclass(frozen=True, slots=True)
class Waiting:
    """A remote whose promise holds back buffered events.

    ``sort_key`` and ``cluster_time`` are those of the first buffered event, ``latest_key`` and
    ``latest`` those of the last one. Once the promise passes the last one, the remote holds back
    none of the currently buffered events.
    """

    remote: int
    target: str
    sort_key: bytes
    cluster_time: Timestamp
    latest_key: bytes
    latest: Timestamp

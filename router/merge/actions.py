"""Actions that a merged stream returns to its owner."""

from dataclasses import dataclass
from typing import NamedTuple

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


class Laggard(NamedTuple):
    """A remote that holds others back until its watermark has passed the cluster time ``latest``.

    That is the time of the last event that is buffered now, or of its shard's removal.
    """

    remote: int
    latest: Timestamp

"""One change stream over all shards, as a state machine without I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bson.timestamp import Timestamp

from router.change_stream.request import StreamRequest
from shard_client.errors import CommandError

if TYPE_CHECKING:
    from shard_client.cursor_reply import CursorBatch


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
    """One batch for a client: ``pbrt`` is the raw token document; ``closed`` ends the cursor."""

    events: list[bytes]
    size: int
    pbrt: bytes
    closed: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """A remote whose promise keeps buffered events back until it passes ``sort_key``.

    ``cluster_time`` is the time of ``sort_key``, the first event kept back; ``latest`` that of the
    last one: past it, nothing that is buffered now waits any more.
    """

    remote: int
    target: str
    sort_key: bytes
    cluster_time: Timestamp
    latest: Timestamp


class MergedStream:
    """The merged stream of one request (docs/design.md, sections 5, 7 and 8).

    ``shards`` maps shard ids to host strings ("rs/h1:p,h2:p"), as read from ``config.shards`` at or
    after ``topology_from``; ``start_at`` is where every shard starts; ``token_version`` that of the
    tokens which the shards make (1 or 2).

    Feed it with ``batch_arrived`` and ``remote_failed``, execute the actions that it returns, and
    ``take`` what is ready.
    """

    def __init__(
        self,
        request: StreamRequest,
        shards: Mapping[str, str],
        *,
        start_at: Timestamp,
        topology_from: Timestamp,
        token_version: int,
    ) -> None:
        raise NotImplementedError

    def start(self) -> list[Action]:
        """Return the cursors to open: the config server's and one per shard."""
        raise NotImplementedError

    def batch_arrived(self, remote: int, batch: "CursorBatch") -> list[Action]:
        """Take in one reply of a remote's cursor; the first reply of an opening included.

        A batch for a remote that has been closed meanwhile is ignored.
        """
        raise NotImplementedError

    def remote_failed(self, remote: int, error: CommandError, address: str | None = None) -> None:
        """The remote has failed for good: ``take`` raises ``error`` after what is ready.

        ``address`` is the "host:port" that failed, for the message that mongos gives.
        """
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether ``take`` has something to say at once: events, the end, or an error."""
        raise NotImplementedError

    def take(self, max_events: int | None, max_bytes: int = 16 * 1024 * 1024) -> Taken:
        """Hand out the next batch, without waiting; it may be empty.

        ``max_events``: None for as many as fit, 0 for none (an opening's first batch);
        ``max_bytes`` bounds the events' BSON, save that the first event always goes.
        Raises CommandError as mongos would, labels included.
        """
        raise NotImplementedError

    @property
    def waiting_for(self) -> Waiting | None:
        """The gate holder, when events are buffered that it keeps back, and nothing is ready."""
        raise NotImplementedError

    @property
    def lagging(self) -> Sequence[Waiting]:
        """All remotes that keep back the first buffered event, the gate holder first."""
        raise NotImplementedError

    def buffered_bytes(self, remote: int) -> int:
        """Bytes of events that came from ``remote`` and were not handed out yet."""
        raise NotImplementedError

    @property
    def remotes(self) -> Mapping[int, str]:
        """Open remotes: number to target."""
        raise NotImplementedError

    @property
    def gate_holder(self) -> int | None:
        """The remote with the smallest promise; one that has not promised yet comes first."""
        raise NotImplementedError

    def promise(self, remote: int) -> bytes | None:
        """The remote's promised min sort key, None before its first batch."""
        raise NotImplementedError

    @property
    def high_water_mark(self) -> bytes:
        """The raw token document that a client may resume from now."""
        raise NotImplementedError

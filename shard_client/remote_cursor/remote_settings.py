"""Interfaces and settings of a remote cursor: dialer, command counters, limits."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shard_client.wire.connection import Address, Connection
from shard_client.wire.connection_pool import ConnectionPool

if TYPE_CHECKING:  # the help of a command reads settings, and needs no logs
    from shard_client.remote_cursor.open_cursor import OpenCursor


class Dialer(Protocol):
    """Supplies connections to the members of one replica set, from the ``pool`` that keeps them."""

    @property
    def pool(self) -> ConnectionPool:
        """The pool to which connections are given back, and from which members' are borrowed."""
        ...

    async def connect(self, timeout: float) -> Connection:
        """Return a connection to the member to read from, with a fresh hello reply.

        ``timeout`` is in seconds. Raises CommandError, NetworkError.
        """
        ...

    async def connect_to(self, address: Address, timeout: float) -> Connection:
        """Return a connection to the member at ``address``. Raises CommandError, NetworkError."""
        ...

    def suspect(self, address: Address) -> None:
        """Report a member that does not answer, or is no longer the one to read from."""
        ...

    def kill_later(self, cursor: "OpenCursor") -> None:
        """Kill a cursor soon, or once its member answers again."""
        ...


class SentCommands(Protocol):
    """Counters of the commands sent to one replica set."""

    openings: int
    get_mores: int
    reopenings: int


@dataclass(frozen=True)
class RemoteSettings:
    """Limits of one remote cursor; times in seconds, sizes in bytes
    (docs/design.md#a-remote-cursor)."""

    connect_timeout: float = 5.0
    """Time limit for one attempt to connect to a member, hello included."""
    reply_timeout: float = 5.0
    """How late a reply may be before the member is sent a hello over another connection."""
    failure_timeout: float = 30.0
    """How long a failed remote is retried before its failure is reported as a retriable error."""
    close_timeout: float = 2.0
    """Time limit for killing the cursors on shards when a stream is closed."""
    backoff_first: float = 0.01
    """Upper bound of the first pause before a failed remote is reopened; doubles with each
    failure."""
    backoff_max: float = 2.0
    """Upper bound of that doubling."""
    large_reply_bytes: int = 128 * 1024
    """Size from which a shard's reply is split only after the next getMore has been sent."""
    batch_target_bytes: int = 4 * 1024 * 1024
    """Target size of a batch while there is a backlog; batchSize is adapted to it. Fewer, larger
    batches wake the shards less often. Smaller if many shards share the stream's buffer."""
    await_unknown: float = 0.01
    """How long a getMore may wait if it is unknown whether the member waits or scans its oplog."""
    progress_unused: float = 10.0
    """Seconds without a probe after which a progress cursor is closed."""

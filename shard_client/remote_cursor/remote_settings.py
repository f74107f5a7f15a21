"""Interfaces and settings of a remote cursor: dialer, command counters, limits."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from shard_client.remote_cursor.open_cursor import OpenCursor
from shard_client.wire.connection import Address, Connection

LARGE_REPLY: Final = 128 * 1024
"""Minimum size in bytes of a reply for which the next getMore is sent before it is split."""


class Dialer(Protocol):
    """Supplies connections to the members of one replica set and keeps released ones for reuse."""

    async def connect(self, timeout: float) -> Connection:
        """Return a connection to the member to read from, with a fresh hello reply.

        ``timeout`` is in seconds. Raises CommandError, NetworkError.
        """
        ...

    async def connect_to(self, address: Address, timeout: float) -> Connection:
        """Return a connection to the member at ``address``. Raises CommandError, NetworkError."""
        ...

    def release(self, connection: Connection) -> None:
        """Take back a connection. It is cut if it is closed or has a request in flight."""
        ...

    def borrow(
        self, address: Address, timeout: float, *, greet: bool = False
    ) -> AbstractAsyncContextManager[Connection]:
        """Provide a connection to the member at ``address`` for a short ``async with`` block.

        With ``greet``, a hello is exchanged first. Entering raises CommandError, NetworkError.
        """
        ...

    def suspect(self, address: Address) -> None:
        """Report a member that does not answer, or is no longer the one to read from."""
        ...

    def kill_later(self, cursor: OpenCursor) -> None:
        """Kill a cursor once its member, which does not answer now, answers again."""
        ...


class SentCommands(Protocol):
    """Counters of the commands sent to one replica set."""

    openings: int
    get_mores: int
    reopenings: int


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """Limits of one remote cursor; times in seconds, sizes in bytes."""

    batch_target_bytes: int = 4 * 1024 * 1024
    await_time: float = 0.05
    connect_timeout: float = 5.0
    reply_timeout: float = 5.0
    failure_timeout: float = 30.0
    close_timeout: float = 2.0
    backoff_first: float = 0.01
    backoff_max: float = 2.0
    large_reply_bytes: int = LARGE_REPLY
    progress_unused: float = 10.0
    """Seconds without a query after which a progress cursor is closed."""

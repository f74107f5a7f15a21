"""What a remote cursor is given: its bounds, and how its member is found."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from shard_client.wire.connection import Address, Connection


class Dialer(Protocol):
    """Has connections to the members of one replica set; those used are kept for others."""

    async def connect(self, timeout: float) -> Connection:
        """Return a connection to the member to read from, which has just said what it is.

        ``timeout`` in seconds. Raises CommandError, NetworkError.
        """
        ...

    async def connect_to(self, address: Address, timeout: float) -> Connection:
        """Return a connection to this very member. Raises CommandError, NetworkError."""
        ...

    def release(self, connection: Connection) -> None:
        """Take back a connection; one that is closed, or has a request in flight, is cut."""
        ...

    def borrow(
        self, address: Address, timeout: float, *, greet: bool = False
    ) -> AbstractAsyncContextManager[Connection]:
        """Give a connection to this very member for a block that takes a moment.

        With ``greet`` it has said hello first. Entering raises CommandError, NetworkError.
        """
        ...

    def suspect(self, address: Address) -> None:
        """Be told that a member does not answer, or not as the one to read from."""
        ...


class SentCommands(Protocol):
    """Counts what one replica set is sent."""

    openings: int
    get_mores: int


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """Bounds of one remote cursor; times in seconds, sizes in bytes."""

    batch_target_bytes: int = 4 * 1024 * 1024
    await_time: float = 0.05
    connect_timeout: float = 5.0
    reply_timeout: float = 5.0
    failure_timeout: float = 30.0
    close_timeout: float = 2.0
    backoff_first: float = 0.01
    backoff_max: float = 2.0

"""The connection of a remote cursor to the member it reads from, guarded against hangs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from shard_client.errors import CommandError, NetworkError
from shard_client.remote_cursor.remote_settings import Dialer, RemoteSettings
from shard_client.remote_cursor.retry_policy import blames_member
from shard_client.remote_cursor.watchdog import Watchdog
from shard_client.wire.connection import Address, Connection, format_address


class MemberLink:
    """At most one connection to a member of a replica set (docs/design.md#a-remote-cursor).

    ``connect`` selects a member by the dialer's rules and ``connect_to`` returns to a given one;
    ``release`` gives the connection back to the dialer. Requests go through ``send`` and
    ``receive``. No timeout limits a reply, but the watchdog cuts the connection to a member that
    hangs.
    """

    def __init__(self, dialer: Dialer, settings: RemoteSettings) -> None:
        self._dialer = dialer
        self._connect_timeout = settings.connect_timeout
        self._loop = asyncio.get_running_loop()
        self._watchdog = Watchdog(self._greet, settings.reply_timeout)
        self._connection: Connection | None = None
        self.last_address: str | None = None
        """The member connected to, now or most recently, as "host:port"."""
        self.unanswered_since: float | None = None
        """Loop time from which the member has not answered the last request: when its reply was
        due, or when the connection broke if that was earlier. None if there was no such failure."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection, which may have been closed since the last request."""
        return self._connection is not None

    @property
    def reply_due_at(self) -> float | None:
        """Loop time at which the reply to the request in flight is due; None if none is pending."""
        return self._watchdog.reply_due_at

    async def connect(self) -> Connection:
        """Return the current connection, or else a new one to the member to read from.

        Raises CommandError, NetworkError.
        """
        if self._connection is not None:
            return self._connection
        return self._guarded(await self._dialer.connect(self._connect_timeout))

    async def connect_to(self, address: Address) -> None:
        """Connect to the member at ``address``, while there is no connection.

        Raises CommandError, NetworkError.
        """
        self._guarded(await self._dialer.connect_to(address, self._connect_timeout))

    def _guarded(self, connection: Connection) -> Connection:
        self._connection = connection
        self.last_address = format_address(connection.address)
        self._watchdog.guard(connection)
        return connection

    def send(self, body: bytes, takes: float) -> None:
        """Send a request that may take ``takes`` seconds to answer; call ``receive`` next.

        It needs a connection. Raises NetworkError.
        """
        assert self._connection is not None
        self.unanswered_since = None
        self._connection.send_raw(body)
        self._watchdog.reply_due_at = self._loop.time() + takes

    async def receive(self) -> bytes:
        """Return the reply; only the watchdog limits the wait.

        Raises CommandError, NetworkError.
        """
        assert self._connection is not None
        try:
            return await self._connection.receive_raw(timeout=None)
        except NetworkError:
            due = self._watchdog.reply_due_at
            self.unanswered_since = None if due is None else min(due, self._loop.time())
            raise
        finally:
            self._watchdog.reply_due_at = None

    def rest(self) -> None:
        """Let the connection, if there is one, free its receive buffer."""
        if self._connection is not None:
            self._connection.rest()

    def leave_after(self, error: CommandError) -> None:
        """Release the connection if it is closed or ``error`` requires selecting a member again."""
        if self._connection is not None:
            blamed = blames_member(error)
            if blamed:
                self._dialer.suspect(self._connection.address)
            if blamed or self._connection.closed:
                self.release()

    def abandon(self) -> None:
        """Cut the connection and report the member, which makes no progress."""
        if self._connection is not None:
            self._dialer.suspect(self._connection.address)
            self._connection.abort()

    def release(self) -> None:
        """Give the connection, if there is one, back to the dialer."""
        connection, self._connection = self._connection, None
        self._watchdog.leave()
        if connection is not None:
            self._dialer.release(connection)

    async def stop_guarding(self) -> None:
        """Stop the watchdog and wait for a running check to end."""
        await self._watchdog.stop()

    @asynccontextmanager
    async def borrow(self, address: Address, timeout: float) -> AsyncGenerator[Connection]:
        """Provide an idle connection to the member at ``address``: this one, or a borrowed one.

        ``timeout``, in seconds, limits connecting. Raises CommandError, NetworkError.
        """
        own = self._connection
        if own is not None and own.address == address and not (own.closed or own.busy):
            yield own
            return
        async with self._dialer.borrow(address, timeout) as other:
            yield other

    async def _greet(self, address: Address, timeout: float) -> None:
        """Send the member a hello over another connection; raises CommandError, NetworkError."""
        async with self._dialer.borrow(address, timeout, greet=True):
            pass

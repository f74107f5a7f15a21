"""The connection of a remote cursor to the member it reads from, guarded against hangs."""

import asyncio
from typing import Protocol

import structlog

from shard_client.errors import CommandError, NetworkError, blames_member
from shard_client.remote_cursor.cursor_reply import CursorBatch
from shard_client.remote_cursor.open_cursor import OpenCursor
from shard_client.remote_cursor.remote_settings import RemoteSettings
from shard_client.wire.connection import Address, Connection, format_address
from shard_client.wire.connection_pool import ConnectionPool

log = structlog.get_logger()


class Dialer(Protocol):
    """Supplies connections to the members of one replica set, from the ``pool`` that keeps them."""

    @property
    def pool(self) -> ConnectionPool:
        """The pool to which connections are given back, and from which members' are borrowed."""

    async def connect(self, timeout: float) -> Connection:
        """Return a connection to the member to read from, with a fresh hello reply.

        ``timeout`` is in seconds. Raises CommandError, NetworkError.
        """

    async def connect_to(self, address: Address, timeout: float) -> Connection:
        """Return a connection to the member at ``address``. Raises CommandError, NetworkError."""

    def distrust(self, address: Address) -> None:
        """Do not connect to this member again before a new hello has shown its role."""

    def kill_later(self, cursor: OpenCursor) -> None:
        """Kill a cursor soon, or once its member answers again."""


class MemberLink:
    """At most one connection to a member of a replica set (docs/design.md#a-remote-cursor).

    ``connect`` selects a member by the dialer's rules and ``connect_to`` returns to a given one;
    ``release`` gives the connection back to the pool. Requests go through ``send``, their replies
    through ``receive``.

    No timeout limits a reply: a long oplog scan answers late, and repeating the request would only
    restart the scan. When a reply is ``reply_timeout`` late, the member is sent a hello over
    another connection. This one is cut only if that fails too; its pending request then raises
    NetworkError.
    """

    def __init__(self, dialer: Dialer, settings: RemoteSettings) -> None:
        self._dialer = dialer
        self._connect_timeout = settings.connect_timeout
        self._loop = asyncio.get_running_loop()
        self._reply_timeout = settings.reply_timeout
        self._connection: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._hello: asyncio.Task[None] | None = None
        self.reply_due_at: float | None = None
        """Loop time at which the reply to the request in flight is due; None if none is pending."""
        self.last_address: str | None = None
        """The member connected to, now or most recently, as "host:port"."""
        self.unanswered_since: float | None = None
        """Loop time from which the member has not answered the last request: when its reply was
        due, or when the connection broke if that was earlier. None if there was no such failure."""

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
        self.reply_due_at = None
        if self._timer is None:
            self._start_checking()
        return connection

    def send(self, body: bytes, takes: float) -> None:
        """Send a request that may take ``takes`` seconds to answer; call ``receive`` next.

        It needs a connection. Raises NetworkError.
        """
        assert self._connection is not None
        self.unanswered_since = None
        self._connection.send_raw(body)
        self.reply_due_at = self._loop.time() + takes

    async def receive(self) -> CursorBatch:
        """Return the reply, however late it is; its events are not split yet.

        Raises CommandError, ProtocolError, and NetworkError, also if the member hangs.
        """
        connection = self._connection
        assert connection is not None
        try:
            return CursorBatch.of(await connection.receive_raw(timeout=None))
        except CommandError as error:
            raise connection.explained(error) from None
        except NetworkError:
            due = self.reply_due_at
            self.unanswered_since = None if due is None else min(due, self._loop.time())
            raise
        finally:
            self.reply_due_at = None

    def free_buffer(self) -> None:
        """Let the connection, if there is one, free its receive buffer."""
        if self._connection is not None:
            self._connection.free_buffer()

    def leave_after(self, error: CommandError) -> None:
        """Release the connection if it is closed or ``error`` requires selecting a member again."""
        if self._connection is not None:
            blamed = blames_member(error)
            if blamed:
                self._dialer.distrust(self._connection.address)
            if blamed or self._connection.closed:
                self.release()

    def abandon(self) -> None:
        """Cut the connection and distrust the member, which makes no progress.

        A request in flight raises NetworkError.
        """
        if self._connection is not None:
            self._dialer.distrust(self._connection.address)
            self._connection.abort()

    def release(self) -> None:
        """Give the connection, if there is one, back to the pool."""
        connection, self._connection = self._connection, None
        self._cancel_check()
        if connection is not None:
            self._dialer.pool.give_back(connection)

    async def close(self) -> None:
        """Release the connection, and wait for a running check of the member to end."""
        self.release()
        if self._hello is not None:
            await asyncio.wait({self._hello})

    # A member that hangs.

    def _start_checking(self) -> None:
        self._timer = self._loop.call_later(self._reply_timeout / 2, self._check)

    def _cancel_check(self) -> None:
        self.reply_due_at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._hello is not None:
            self._hello.cancel()

    def _check(self) -> None:
        self._start_checking()
        connection, due = self._connection, self.reply_due_at
        late = due is not None and self._loop.time() - due > self._reply_timeout
        if connection is None or connection.closed or not late:
            return
        if self._hello is None or self._hello.done():
            name = f"hello to {format_address(connection.address)}"
            self._hello = self._loop.create_task(self._send_hello(connection), name=name)

    async def _send_hello(self, connection: Connection) -> None:
        """Cut a connection whose member does not answer a hello over another one."""
        pool, member = self._dialer.pool, connection.address
        try:
            # Not borrowed: brief uses last long on a slow member, so that all may be taken.
            pool.give_back(await pool.take(member, self._reply_timeout, greet=True))
        except NetworkError as error:
            log.warning("member hangs", member=format_address(member), error=str(error))
            connection.abort()
        except CommandError as error:  # an answer, or no connection is free: ask again
            log.debug("no hello", member=format_address(member), error=str(error))
        else:
            if self.reply_due_at is not None:
                self.reply_due_at = self._loop.time()

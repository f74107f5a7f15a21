"""A client's own connection to another server, over which messages are relayed one to one."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from shard_client.errors import NetworkError
from shard_client.wire.connection import Address, Connection


class LoginLostError(NetworkError):
    """The connection on which a client is logged in has ended: it has to log in again."""


class Reachable(Protocol):
    """A server that commands are relayed to: the upstream, or another process of the router."""

    async def connect(self) -> Connection:
        """Open a connection; raises CommandError, NetworkError."""

    async def serves(self, address: Address) -> bool:
        """Return whether a connection to ``address`` is still usable; raises CommandError."""


class ServerLink:
    """One client's connection to another server: opened on first use, one request at a time."""

    def __init__(self, upstream: Reachable) -> None:
        self._upstream = upstream
        self._connection: Connection | None = None
        self._pinned = False
        self._in_use = asyncio.Lock()

    @property
    def address(self) -> Address | None:
        """The server that the connection leads to; None while there is none."""
        return None if self._connection is None else self._connection.address

    def pin(self) -> None:
        """Never reconnect from now on: the connection has a login, which another would lack."""
        self._pinned = True

    async def relay(self, frame: bytes) -> AsyncGenerator[bytes, None]:
        """Relay the client's uncompressed frame; yield the reply frames.

        Raises:
            CommandError: HostUnreachable; nothing was sent.
            NetworkError: the connection broke; the outcome of the command is unknown.
        """
        async with self._in_use:
            connection = await self._open()
            async with aclosing(connection.exchange(frame)) as replies:
                async for reply in replies:
                    yield reply

    async def command(self, database: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command of the router's own; raises CommandError, NetworkError."""
        async with self._in_use:
            connection = await self._open()
            sent = {name: value for name, value in command.items() if name != "$db"}
            return await connection.command(database, sent, timeout=None)

    async def connect(self) -> None:
        """Connect unless already connected; raises CommandError HostUnreachable."""
        async with self._in_use:
            await self._open()

    async def is_local(self) -> bool:
        """Return whether the other server sees this connection as local to its machine.

        Raises CommandError: HostUnreachable; nothing was sent.
        """
        async with self._in_use:
            return (await self._open()).from_loopback

    def abort(self) -> None:
        """Cut the connection; the other server then ends the commands that run on it."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _open(self) -> Connection:
        connection = self._connection
        if connection is not None:
            if not connection.closed and await self._upstream.serves(connection.address):
                return connection
            self.abort()
        if self._pinned:
            raise LoginLostError("the connection on which the client is logged in has ended")
        self._connection = connection = await self._upstream.connect()
        return connection

"""A pool of the router's own connections to the upstream mongos, kept while in use."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import TypeVar

from shard_client.backoff import Backoff
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError
from shard_client.wire.connection import Connection

Connect = Callable[[], Awaitable[Connection]]
"""Opens a connection to the upstream; raises CommandError, NetworkError."""

_IDLE_SECONDS = 30.0
_SLOW_SECONDS = 1.0
"""After so long a request leaves its place to the next one and continues, so that slow requests do
not delay others."""
_T = TypeVar("_T")


class UpstreamConnections:
    """Connections that requests borrow one at a time. Create it in a running loop.

    Args:
        connect: opens a connection.
        most: maximum number of requests that have begun within the last second; further requests
            wait. As many connections are kept for later requests.
    """

    def __init__(self, connect: Connect, most: int) -> None:
        self._connect = connect
        self._most = most
        self._places = asyncio.Semaphore(most)
        self._idle: list[tuple[float, Connection]] = []
        self._loop = asyncio.get_running_loop()
        self._expiry: asyncio.TimerHandle | None = None
        self._users = 0

    def enter(self) -> None:
        """Add a user: idle connections are kept for a while as long as there are users."""
        self._users += 1

    def leave(self) -> None:
        """Remove a user; after the last one no connection stays open."""
        self._users -= 1
        if not self._users:
            self._drop_idle()

    @asynccontextmanager
    async def borrow(self, deadline: float) -> AsyncIterator[Connection]:
        """Lend a connection for the block; a connection closed or busy afterwards is not kept.

        Args:
            deadline: the time, on the loop's clock, until which the request waits for its turn.

        Raises:
            CommandError: NetworkTimeout, if its turn has not come by then; HostUnreachable, if no
                mongos answers.
            NetworkError: the connection could not be opened.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        except TimeoutError:
            message = "the router has too many slow requests to the upstream mongos"
            raise CommandError(ErrorCode.NetworkTimeout, message) from None
        place = ExitStack()
        place.callback(self._places.release)
        slow = self._loop.call_later(_SLOW_SECONDS, place.close)
        try:
            connection = self._take() or await self._connect()
            try:
                yield connection
            finally:
                full = not self._users or len(self._idle) >= self._most
                if connection.closed or connection.busy or full:
                    connection.abort()
                else:
                    self._idle.append((self._loop.time(), connection))
                    self._schedule()
        finally:
            slow.cancel()
            place.close()

    def _drop_idle(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for _, connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _take(self) -> Connection | None:
        while self._idle:
            _, connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    def _schedule(self) -> None:
        if self._expiry is None:
            self._expiry = self._loop.call_later(_IDLE_SECONDS, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        oldest = self._loop.time() - _IDLE_SECONDS
        kept = []
        for since, connection in self._idle:
            if since <= oldest or connection.closed:
                connection.abort()
            else:
                kept.append((since, connection))
        self._idle = kept
        if kept:
            self._schedule()


async def persist(
    attempt: Callable[[], Awaitable[_T]], backoff: Backoff, deadline: float, codes: frozenset[int]
) -> _T:
    """Return the result of ``attempt``, retrying after network errors until ``deadline``.

    ``deadline`` is on the loop's clock; ``codes`` are the codes of the command errors that are
    retried too. Raises the last attempt's CommandError or NetworkError.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await attempt()
        except NetworkError:
            pause = backoff.next_pause()
            if loop.time() + pause >= deadline:
                raise
        except CommandError as error:
            pause = backoff.next_pause()
            if error.code not in codes or loop.time() + pause >= deadline:
                raise
        await asyncio.sleep(pause)

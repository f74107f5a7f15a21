"""Cuts a connection whose member has stopped answering, but not one that takes its time."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from shard_client.connection import Address, Connection, format_address
from shard_client.errors import CommandError, NetworkError

log = structlog.get_logger()


class Watchdog:
    """Guards one connection at a time against a member that hangs (docs/design.md, section 6).

    A long scan of an oplog answers late, and asking again would only begin it anew. So a reply that
    is ``patience`` seconds late makes the member be asked over another connection, made by
    ``dial(address, timeout)``: only if that fails too is the guarded connection cut, and whoever
    waits on it gets NetworkError.
    """

    def __init__(
        self, dial: Callable[[Address, float], Awaitable[Connection]], patience: float
    ) -> None:
        self._dial = dial
        self._patience = patience
        self._connection: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.Task[None] | None = None
        self.asked_at: float | None = None
        """When what is waited for was to be answered at the latest; None while nothing is."""

    def guard(self, connection: Connection) -> None:
        """Guard ``connection`` from now on, and no other."""
        self._connection = connection
        self.asked_at = None
        if self._timer is None:
            self._schedule()

    async def stop(self) -> None:
        """Guard nothing more."""
        self._connection = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.wait({self._probe})

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._patience / 2, self._look)

    def _look(self) -> None:
        self._timer = None
        connection = self._connection
        if connection is None:
            return
        self._schedule()
        now = asyncio.get_running_loop().time()
        late = self.asked_at is not None and now - self.asked_at > self._patience
        if late and not connection.closed and (self._probe is None or self._probe.done()):
            self._probe = asyncio.get_running_loop().create_task(
                self._ask(connection), name=f"probe {format_address(connection.address)}"
            )

    async def _ask(self, connection: Connection) -> None:
        try:
            other = await self._dial(connection.address, self._patience)
        except (NetworkError, CommandError) as error:
            address = format_address(connection.address)
            log.warning("member hangs", member=address, error=str(error))
            connection.abort()
        else:
            other.abort()
            if self.asked_at is not None:
                self.asked_at = asyncio.get_running_loop().time()

"""Cuts a connection whose member has stopped answering, but not one that takes its time."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from shard_client.errors import CommandError, NetworkError
from shard_client.wire.connection import Address, Connection, format_address

log = structlog.get_logger()


class Watchdog:
    """Guards one connection at a time against a member that hangs (docs/design.md, section 6).

    A long scan of an oplog answers late, and asking again would only begin it anew. So when a reply
    is ``patience`` seconds late, ``ask(address, timeout)`` asks the member over another connection:
    only if that fails too is the guarded connection cut, and the caller that waits on it gets
    NetworkError.
    """

    def __init__(self, ask: Callable[[Address, float], Awaitable[None]], patience: float) -> None:
        self._ask_member = ask
        self._patience = patience
        self._connection: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.Task[None] | None = None
        self.asked_at: float | None = None
        """When the request in flight is to be answered at the latest; None without one."""

    def guard(self, connection: Connection) -> None:
        """Guard ``connection`` from now on, and no other."""
        self._connection = connection
        self.asked_at = None
        if self._timer is None:
            self._schedule()

    def leave(self) -> None:
        """Guard nothing until ``guard`` is called again: others may use the connection now."""
        self._connection = None
        self.asked_at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._probe is not None:
            self._probe.cancel()

    async def stop(self) -> None:
        """Guard nothing more, and wait until nothing is asked."""
        self.leave()
        if self._probe is not None:
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
            await self._ask_member(connection.address, self._patience)
        except (NetworkError, CommandError) as error:
            address = format_address(connection.address)
            log.warning("member hangs", member=address, error=str(error))
            connection.abort()
        else:
            if self.asked_at is not None:
                self.asked_at = asyncio.get_running_loop().time()

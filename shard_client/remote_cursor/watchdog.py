"""A watchdog that cuts the connection to an unresponsive member, but not to a slow one."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from shard_client.errors import CommandError, NetworkError
from shard_client.wire.connection import Address, Connection, format_address

log = structlog.get_logger()


class Watchdog:
    """Guards one connection at a time against a member that hangs (docs/design.md#a-remote-cursor).

    A long oplog scan answers late, and repeating the request would only restart the scan. So when a
    reply is ``patience`` seconds late, ``ask(address, timeout)`` checks the member over another
    connection. The guarded connection is cut only if that fails too; its pending request then
    raises NetworkError.
    """

    def __init__(self, ask: Callable[[Address, float], Awaitable[None]], patience: float) -> None:
        self._ask_member = ask
        self._patience = patience
        self._connection: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._hello: asyncio.Task[None] | None = None
        self.reply_due_at: float | None = None
        """Loop time at which the reply to the request in flight is due; None if none is pending."""

    def guard(self, connection: Connection) -> None:
        """Guard ``connection`` instead of the previous one."""
        self._connection = connection
        self.reply_due_at = None
        if self._timer is None:
            self._schedule()

    def leave(self) -> None:
        """Stop guarding until ``guard`` is called again, so that others can use the connection."""
        self._connection = None
        self.reply_due_at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._hello is not None:
            self._hello.cancel()

    async def stop(self) -> None:
        """Stop guarding and wait for a running check to end."""
        self.leave()
        if self._hello is not None:
            await asyncio.wait({self._hello})

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._patience / 2, self._look)

    def _look(self) -> None:
        self._timer = None
        connection = self._connection
        if connection is None:
            return
        self._schedule()
        now = asyncio.get_running_loop().time()
        late = self.reply_due_at is not None and now - self.reply_due_at > self._patience
        if late and not connection.closed and (self._hello is None or self._hello.done()):
            self._hello = asyncio.get_running_loop().create_task(
                self._ask(connection), name=f"hello to {format_address(connection.address)}"
            )

    async def _ask(self, connection: Connection) -> None:
        try:
            await self._ask_member(connection.address, self._patience)
        except (NetworkError, CommandError) as error:
            address = format_address(connection.address)
            log.warning("member hangs", member=address, error=str(error))
            connection.abort()
        else:
            if self.reply_due_at is not None:
                self.reply_due_at = asyncio.get_running_loop().time()

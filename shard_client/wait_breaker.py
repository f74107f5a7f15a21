"""Ends a getMore's wait for events early: a server has no other way than to kill its cursor."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from shard_client.connection import Address, Connection
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError
from shard_client.open_cursor import OpenCursor

log = structlog.get_logger()

_GONE = frozenset({ErrorCode.CursorNotFound, ErrorCode.CursorKilled})


class WaitBreaker:
    """Kills a cursor whose getMore waits, over another connection, and remembers that it did so.

    No-ops wake no getMore (docs/protocol.md, section 6); a cursor that is opened again after the
    last promise sees at once what a waiting one would see only when its time is up.
    ``dial(address, timeout)`` connects to the cursor's member; the connection is kept for the next.
    """

    def __init__(
        self, dial: Callable[[Address, float], Awaitable[Connection]], timeout: float
    ) -> None:
        self._dial = dial
        self._timeout = timeout
        self._task: asyncio.Task[None] | None = None
        self._killed: OpenCursor | None = None
        self._connection: Connection | None = None

    def kill(self, cursor: OpenCursor) -> None:
        """Begin to kill ``cursor``, once."""
        if self._killed is not cursor and (self._task is None or self._task.done()):
            self._killed = cursor
            self._task = asyncio.get_running_loop().create_task(
                self._kill(cursor), name=f"break wait on {cursor.namespace}"
            )

    def explains(self, error: CommandError, cursor: OpenCursor) -> bool:
        """Tell whether ``cursor`` failed because it was killed here."""
        return error.code in _GONE and self._killed is cursor

    async def stop(self) -> None:
        """End what has been begun and close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._drop_connection()

    async def _kill(self, cursor: OpenCursor) -> None:
        kept = self._connection is not None
        try:
            done = await self._kill_over(cursor)
            if not done and kept:
                # The connection may have been cut while nobody used it.
                await self._kill_over(cursor)
        except (CommandError, NetworkError) as error:
            log.info("cannot break a wait", member=cursor.address, error=str(error))

    async def _kill_over(self, cursor: OpenCursor) -> bool:
        connection = self._connection
        if connection is None or connection.closed or connection.address != cursor.address:
            self._drop_connection()
            connection = self._connection = await self._dial(cursor.address, self._timeout)
        done = await cursor.kill_over(connection, self._timeout)
        if not done:
            self._drop_connection()
        return done

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

"""A second cursor beside one that waits, to learn how far its member has got."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import structlog

from shard_client.connection import Address, Connection
from shard_client.cursor_reply import CursorBatch, slice_cursor_reply, token_data
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError, ProtocolError
from shard_client.open_cursor import OpenCursor

log = structlog.get_logger()


class SecondCursor:
    """The same change stream as the first cursor's, asked while that one's getMore waits.

    No-ops wake no getMore (docs/protocol.md, section 6), so a promise that has moved would be seen
    only at the end of the wait. Events wake it: they are the first cursor's to bring, and what this
    one is given of them is dropped (docs/design.md, section 9).

    ``borrow(address, timeout)`` gives a connection to the first cursor's member for as long as it
    is asked. ``command(pbrt)`` is the raw
    ``aggregate`` that opens the stream after a promise. ``on_batch`` is called after each reply,
    with an empty batch that has the promise of both; ``on_end`` with each task. It is opened when
    it is first asked, and anew when ``most_behind`` bytes have passed it by.
    """

    def __init__(
        self,
        *,
        borrow: Callable[[Address, float], AbstractAsyncContextManager[Connection]],
        command: Callable[[bytes], bytes],
        on_batch: Callable[[CursorBatch], None],
        on_end: Callable[["asyncio.Task[None]"], None],
        connect_timeout: float,
        reply_timeout: float,
        most_behind: int,
    ) -> None:
        self._borrow = borrow
        self._command = command
        self._on_batch = on_batch
        self._on_end = on_end
        self._connect_timeout = connect_timeout
        self._reply_timeout = reply_timeout
        self._most_behind = most_behind
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._cursor: OpenCursor | None = None
        self._left_behind: OpenCursor | None = None
        # What both have promised: its token and its sort key.
        self._promise = b""
        self._promised = b""
        # What this one has promised, and the last event that it was given.
        self._pbrt = b""
        self._key = b""
        self._last_event = b""
        self._passed_by = 0
        self._stopping = False
        self._asked_at = self._loop.time()

    @property
    def asking(self) -> bool:
        """Whether it is being asked."""
        return self._task is not None

    def ask(self, first: OpenCursor, pbrt: bytes, batch_size: int, await_ms: int) -> None:
        """Begin to ask where ``first`` is, which has promised ``pbrt``, unless that is under way.

        The member may wait ``await_ms`` milliseconds for its oplog to grow.
        """
        if self._task is None and not self._stopping:
            self._note_promise(pbrt)
            self._asked_at = self._loop.time()
            self._task = self._loop.create_task(
                self._ask(first, batch_size, await_ms), name=f"second cursor of {first.namespace}"
            )
            self._task.add_done_callback(self._on_end)

    def stale(self, after: float) -> bool:
        """Tell whether it is open and was not asked for ``after`` seconds."""
        return self._cursor is not None and self._loop.time() - self._asked_at > after

    def join(self, batch: CursorBatch) -> CursorBatch:
        """Return a batch of the first cursor with the promise that both together allow.

        Raises ProtocolError if it has a promise that is none.
        """
        if not self._promise or not batch.pbrt:
            return batch  # nobody has asked yet
        self._passed_by += batch.size
        key = token_data(batch.pbrt)
        if not batch.events and key < self._promised:
            # This one was ahead of it, and has been believed.
            batch = batch._replace(pbrt=self._promise)
        else:
            self._promise, self._promised = batch.pbrt, key
        if batch.cursor_id and self._is_further():
            batch = batch._replace(pbrt=self._promise)
        return batch

    def _is_further(self) -> bool:
        """Promise for both what this one has promised; False if that cannot be or is not new.

        It can when the first one has brought every event that this one was given.
        """
        if self._last_event <= self._promised < self._key:
            self._promise, self._promised = self._pbrt, self._key
            return True
        return False

    def _note_promise(self, pbrt: bytes) -> None:
        if pbrt != self._promise and (key := token_data(pbrt)) > self._promised:
            self._promise, self._promised = pbrt, key

    async def stop(self, deadline: float) -> None:
        """Kill the cursor, until ``deadline`` on the loop's clock."""
        self._stopping = True
        if self._task is not None:
            left = max(0.0, deadline - self._loop.time())
            # An opening's reply tells which cursor to kill.
            _, late = await asyncio.wait({self._task}, timeout=left / 2)
            if late:
                self._task.cancel()
                await asyncio.wait(late)
        self._leave_behind()
        cursor, self._left_behind = self._left_behind, None
        try:
            if cursor is not None:
                left = max(0.001, deadline - self._loop.time())
                async with self._borrow(cursor.address, left) as connection:
                    await cursor.kill_over(connection, left)
        except (CommandError, NetworkError) as error:
            log.info("cursor left on its shard", member=cursor and cursor.address, error=str(error))

    async def _ask(self, first: OpenCursor, batch_size: int, await_ms: int) -> None:
        kept = self._cursor is not None
        try:
            try:
                batch = await self._next(first, batch_size, await_ms)
            except (CommandError, NetworkError):
                if not kept:
                    raise
                # It may have been closed, or its connection cut, while nobody used it.
                self._leave_behind()
                batch = await self._next(first, batch_size, await_ms)
        except (CommandError, NetworkError, ProtocolError) as error:
            # The first cursor's wait will end, and tell.
            log.info("second cursor failed", member=first.address, error=str(error))
            self._leave_behind()
            return
        finally:
            self._task = None
        self._is_further()
        self._on_batch(
            batch._replace(cursor_id=first.cursor_id, events=[], size=0, pbrt=self._promise)
        )

    async def _next(self, first: OpenCursor, batch_size: int, await_ms: int) -> CursorBatch:
        if self._cursor is not None and (
            self._cursor.address != first.address or self._passed_by > self._most_behind
        ):
            self._leave_behind()
        async with self._borrow(first.address, self._connect_timeout) as connection:
            if self._cursor is None:
                await self._open(connection)
            assert self._cursor is not None
            body = self._cursor.get_more(batch_size, await_ms)
            reply = await connection.command_raw(body, timeout=self._reply_timeout)
        batch = slice_cursor_reply(reply)
        self._passed_by = 0
        if batch.events:
            self._last_event = batch.events[-1][0]
        if not batch.cursor_id:
            self._cursor = None  # its end is the first cursor's to tell
        elif batch.pbrt:
            self._pbrt, self._key = batch.pbrt, token_data(batch.pbrt)
        return batch

    async def _open(self, connection: Connection) -> None:
        if self._left_behind is not None:
            if self._left_behind.address == connection.address:
                await self._left_behind.kill_over(connection, self._reply_timeout)
            if connection.closed:
                raise NetworkError("the connection was lost")  # the next attempt kills it
            self._left_behind = None
        # All that comes before the promise has been brought, whatever the one before was given.
        self._pbrt, self._key, self._last_event = b"", b"", b""
        command = self._command(self._promise)
        reply = await connection.command_raw(command, timeout=self._reply_timeout)
        batch = slice_cursor_reply(reply)
        if batch.cursor_id:
            self._cursor = OpenCursor(connection.address, batch.namespace, batch.cursor_id)
        else:
            raise CommandError(
                ErrorCode.CursorNotFound, "the second cursor was closed as it was opened"
            )

    def _leave_behind(self) -> None:
        if self._cursor is not None:
            self._left_behind, self._cursor = self._cursor, None

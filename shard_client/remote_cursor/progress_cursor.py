"""A progress cursor beside one that waits, to learn how far its member has got."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import structlog

from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError, ProtocolError
from shard_client.remote_cursor.cursor_reply import CursorBatch, slice_cursor_reply, token_data
from shard_client.remote_cursor.open_cursor import OpenCursor
from shard_client.remote_cursor.remote_settings import SentCommands
from shard_client.wire.connection import Address, Connection

log = structlog.get_logger()


_LOOK = 0.001
"""Seconds of a member's time that a look takes at least."""
_IN_VAIN = 0.05
"""The same for a look that has found an event which the first cursor has not brought."""
_UNUSED = 10.0
"""Seconds after which a cursor that was not asked is closed."""

TIME_DIGITS = 18
"""How many characters of a sort key hold its cluster time (docs/protocol.md, section 3)."""


class Probing(NamedTuple):
    """How a progress cursor tells how far the first one's member has got.

    ``opening`` gives database and ``aggregate`` of the probe after a raw resume token; with
    ``fragments`` the first cursor splits large events; ``on_cost`` is told the seconds that a look
    keeps the member busy.
    """

    opening: Callable[[bytes], tuple[str, Mapping[str, Any]]]
    fragments: bool
    on_cost: Callable[[float], None]


class ProgressCursor:
    """A probe of how far a member has got, asked while the first cursor's getMore waits.

    No-ops wake no getMore (docs/protocol.md, section 6), so a promise that has moved would be seen
    only at the end of the wait. Events wake it: the first cursor brings them, and those that this
    one is given are dropped. It must be given every event that the first cursor brings, and may be
    given others: a promise of it holds for both once the first cursor has got as far as the last
    event that this one was given (docs/design.md, section 9).

    ``borrow(address, timeout)`` gives a connection to the first cursor's member for as long as it
    is asked. ``command(pbrt)`` is the raw ``aggregate`` that opens the probe after a promise.
    ``on_batch`` is called after each reply, with an empty batch that has the promise of both;
    ``on_end`` with each task; ``on_cost`` with the seconds that the member was busy with it. With
    ``fragments`` the first cursor splits events into fragments, which sort behind the event that
    this one is given. It is opened when it is first asked, anew when ``most_behind`` bytes have
    passed it by, and closed when nobody has asked for ten seconds: so it never has much to scan.
    """

    def __init__(
        self,
        *,
        borrow: Callable[[Address, float], AbstractAsyncContextManager[Connection]],
        command: Callable[[bytes], bytes],
        on_batch: Callable[[CursorBatch], None],
        on_end: Callable[["asyncio.Task[None]"], None],
        on_cost: Callable[[float], None],
        sent: SentCommands,
        fragments: bool,
        connect_timeout: float,
        reply_timeout: float,
        most_behind: int,
    ) -> None:
        self._borrow = borrow
        self._command = command
        self._on_batch = on_batch
        self._on_end = on_end
        self._on_cost = on_cost
        self._sent = sent
        self._fragments = fragments
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
                self._ask(first, batch_size, await_ms), name=f"progress cursor of {first.namespace}"
            )
            self._task.add_done_callback(self._on_end)

    def close_if_unused(self) -> None:
        """Close it in the background if it was not asked for some time."""
        unused = self._loop.time() - self._asked_at > _UNUSED
        if self._cursor is not None and self._task is None and unused and not self._stopping:
            self._task = self._loop.create_task(
                self._close(self._cursor), name=f"close progress cursor of {self._cursor.namespace}"
            )
            self._task.add_done_callback(self._on_end)

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

        It can when the first one has got as far as the last event that this one was given: if it
        had an event to bring that lies between, this one would have been given that later.
        """
        if not (self._has_come(self._last_event) and self._promised < self._key):
            return False
        self._promise, self._promised = self._pbrt, self._key
        return True

    def _has_come(self, key: bytes) -> bool:
        """Tell whether the first cursor has nothing more to bring up to an event's sort key."""
        if self._fragments:
            return key[:TIME_DIGITS] < self._promised[:TIME_DIGITS]
        return key <= self._promised

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
        begun = self._loop.time()
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
            log.info("progress cursor failed", member=first.address, error=str(error))
            self._leave_behind()
            return
        finally:
            self._task = None
            self._on_cost(max(_LOOK, self._loop.time() - begun - await_ms / 1000))
        self._is_further()
        if not self._has_come(self._last_event):
            self._on_cost(_IN_VAIN)
        self._on_batch(
            batch._replace(cursor_id=first.cursor_id, events=[], size=0, pbrt=self._promise)
        )

    async def _close(self, cursor: OpenCursor) -> None:
        self._cursor = None
        try:
            async with self._borrow(cursor.address, self._connect_timeout) as connection:
                await cursor.kill_over(connection, self._reply_timeout)
        except (CommandError, NetworkError) as error:
            log.info("cursor left on its shard", member=cursor.address, error=str(error))
        finally:
            self._task = None

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
            self._sent.get_mores += 1
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
        self._sent.openings += 1
        reply = await connection.command_raw(command, timeout=self._reply_timeout)
        batch = slice_cursor_reply(reply)
        if batch.cursor_id:
            self._cursor = OpenCursor(connection.address, batch.namespace, batch.cursor_id)
        else:
            raise CommandError(
                ErrorCode.CursorNotFound, "the progress cursor was closed as it was opened"
            )

    def _leave_behind(self) -> None:
        if self._cursor is not None:
            self._left_behind, self._cursor = self._cursor, None

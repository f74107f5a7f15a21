"""A progress cursor: reports a member's progress while the main cursor's getMore waits."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import structlog

from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError, ProtocolError
from shard_client.remote_cursor.cursor_reply import CursorBatch, slice_cursor_reply, token_data
from shard_client.remote_cursor.open_cursor import Borrow, OpenCursor
from shard_client.remote_cursor.remote_settings import SentCommands
from shard_client.wire.connection import Connection

log = structlog.get_logger()


_LEAST_COST = 0.001
"""Minimum cost of one query, in seconds of a member's time."""
_FRUITLESS = 0.05
"""Extra cost, in seconds, if the query returned an event that the main cursor has not returned."""

TIME_DIGITS = 18
"""Number of characters of a sort key that hold its cluster time
(docs/protocol.md#resume-tokens)."""


class Probing(NamedTuple):
    """Configuration of a progress cursor.

    ``opening`` returns the database and ``aggregate`` that open it after a raw resume token;
    ``fragments`` states whether the main cursor splits large events; ``on_cost`` is called with the
    seconds that a query keeps the member busy.
    """

    opening: Callable[[bytes], tuple[str, Mapping[str, Any]]]
    fragments: bool
    on_cost: Callable[[float], None]


class ProgressCursor:
    """A second cursor on a member, queried while the getMore of the first (main) cursor waits.

    No-ops do not wake a getMore (docs/protocol.md#sharded-cluster), so an advanced promise would be
    seen only at the end of the wait. Events do wake it: the main cursor returns them, and events
    that the progress cursor returns are dropped. The progress cursor must match every event that
    the main cursor matches, and can match more. Its promise holds for both cursors once the main
    cursor has reached the last event that the progress cursor returned
    (docs/design.md#idle-shards).

    ``borrow(address, timeout)`` yields a connection to the main cursor's member for the duration of
    a query. ``kill_later(cursor)`` kills a cursor whose member does not answer now.
    ``command(pbrt)`` returns the raw ``aggregate`` that opens the cursor after a promise.
    ``on_batch`` is called after each reply, with an empty batch that has the promise of both
    cursors; ``on_end`` with each finished task; ``on_cost`` with the seconds that a query kept the
    member busy. With ``fragments``, the main cursor splits events into fragments, which sort after
    the whole event that the progress cursor returns. The cursor is opened by the first query,
    reopened when the main cursor has read ``most_behind`` bytes since the last query, and closed
    after ``unused_after`` seconds without a query, so that it never has much to scan.
    """

    def __init__(
        self,
        *,
        borrow: Borrow,
        kill_later: Callable[[OpenCursor], None],
        command: Callable[[bytes], bytes],
        on_batch: Callable[[CursorBatch], None],
        on_end: Callable[["asyncio.Task[None]"], None],
        on_cost: Callable[[float], None],
        sent: SentCommands,
        fragments: bool,
        connect_timeout: float,
        reply_timeout: float,
        unused_after: float,
        most_behind: int,
    ) -> None:
        self._borrow = borrow
        self._kill_later = kill_later
        self._command = command
        self._on_batch = on_batch
        self._on_end = on_end
        self._on_cost = on_cost
        self._sent = sent
        self._fragments = fragments
        self._connect_timeout = connect_timeout
        self._reply_timeout = reply_timeout
        self._unused_after = unused_after
        self._most_behind = most_behind
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._cursor: OpenCursor | None = None
        self._left_behind: OpenCursor | None = None
        # The promise of both cursors: its token and its sort key.
        self._promise = b""
        self._promised = b""
        # The progress cursor's own promise, and the sort key of the last event it returned.
        self._pbrt = b""
        self._key = b""
        self._last_event = b""
        self._passed_by = 0
        self._stopping = False
        self._queried_at = self._loop.time()

    @property
    def querying(self) -> bool:
        """Whether a query or the closing is in progress."""
        return self._task is not None

    def query(self, first: OpenCursor, pbrt: bytes, batch_size: int, await_ms: int) -> None:
        """Start a query for the main cursor ``first`` with promise ``pbrt``, unless one is running.

        The member waits up to ``await_ms`` milliseconds for its oplog to grow.
        """
        if self._task is None and not self._stopping:
            self._note_promise(pbrt)
            self._queried_at = self._loop.time()
            self._task = self._loop.create_task(
                self._query(first, batch_size, await_ms),
                name=f"progress cursor of {first.namespace}",
            )
            self._task.add_done_callback(self._on_end)

    def close_if_unused(self) -> None:
        """Close the cursor in the background after ``unused_after`` seconds without a query."""
        unused = self._loop.time() - self._queried_at > self._unused_after
        if self._cursor is not None and self._task is None and unused and not self._stopping:
            self._task = self._loop.create_task(
                self._close(self._cursor), name=f"close progress cursor of {self._cursor.namespace}"
            )
            self._task.add_done_callback(self._on_end)

    def join(self, batch: CursorBatch) -> CursorBatch:
        """Return a batch of the main cursor with the promise of both cursors.

        Raises ProtocolError if the batch's promise is malformed.
        """
        if not self._promise or not batch.pbrt:
            return batch  # there was no query yet
        self._passed_by += batch.size
        key = token_data(batch.pbrt)
        if not batch.events and key < self._promised:
            # The progress cursor's promise was ahead and has been published already.
            batch = batch._replace(pbrt=self._promise)
        else:
            self._promise, self._promised = batch.pbrt, key
        if batch.cursor_id and self._adopt_progress():
            batch = batch._replace(pbrt=self._promise)
        return batch

    def _adopt_progress(self) -> bool:
        """Adopt the progress cursor's promise for both; False if it is invalid for both or not new.

        It is valid for both when the main cursor has reached the last event that the progress
        cursor returned: the progress cursor has no event between that one and its own promise, so
        neither has the main cursor.
        """
        if not (self._has_come(self._last_event) and self._promised < self._key):
            return False
        self._promise, self._promised = self._pbrt, self._key
        return True

    def _has_come(self, key: bytes) -> bool:
        """Return whether the main cursor has returned all its events up to a sort key."""
        if self._fragments:
            return key[:TIME_DIGITS] < self._promised[:TIME_DIGITS]
        return key <= self._promised

    def _note_promise(self, pbrt: bytes) -> None:
        if pbrt != self._promise and (key := token_data(pbrt)) > self._promised:
            self._promise, self._promised = pbrt, key

    async def stop(self, deadline: float) -> None:
        """Kill the cursor before ``deadline`` on the loop's clock."""
        self._stopping = True
        if self._task is not None:
            left = max(0.0, deadline - self._loop.time())
            # The reply to an aggregate has the id of the cursor to kill.
            _, late = await asyncio.wait({self._task}, timeout=left / 2)
            if late:
                self._task.cancel()
                await asyncio.wait(late)
        self._leave_behind()
        cursor, self._left_behind = self._left_behind, None
        if cursor is not None:
            await self._kill(cursor, deadline)

    async def _query(self, first: OpenCursor, batch_size: int, await_ms: int) -> None:
        kept = self._cursor is not None
        begun = self._loop.time()
        try:
            try:
                batch = await self._next(first, batch_size, await_ms)
            except (CommandError, NetworkError):
                if not kept:
                    raise
                # The server may have closed the idle cursor, or the idle connection was cut.
                self._leave_behind()
                batch = await self._next(first, batch_size, await_ms)
        except (CommandError, NetworkError, ProtocolError) as error:
            # The main cursor reports the failure when its wait ends.
            log.info("progress cursor failed", member=first.address, error=str(error))
            self._leave_behind()
            return
        finally:
            self._task = None
            self._on_cost(max(_LEAST_COST, self._loop.time() - begun - await_ms / 1000))
        self._adopt_progress()
        if not self._has_come(self._last_event):
            self._on_cost(_FRUITLESS)
        self._on_batch(
            batch._replace(cursor_id=first.cursor_id, events=[], size=0, pbrt=self._promise)
        )

    async def _close(self, cursor: OpenCursor) -> None:
        self._cursor = None
        try:
            await self._kill(cursor, self._loop.time() + self._reply_timeout)
        finally:
            self._task = None

    async def _kill(self, cursor: OpenCursor, deadline: float) -> None:
        if not await cursor.kill(self._borrow, deadline):
            self._kill_later(cursor)

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
            self._cursor = None  # the main cursor reports the end of the stream
        elif batch.pbrt:
            self._pbrt, self._key = batch.pbrt, token_data(batch.pbrt)
        return batch

    async def _open(self, connection: Connection) -> None:
        if self._left_behind is not None:
            if self._left_behind.address != connection.address:
                self._kill_later(self._left_behind)
            else:
                await self._left_behind.kill_over(connection, self._reply_timeout)
            if connection.closed:
                raise NetworkError("the connection was lost")  # the next attempt kills it
            self._left_behind = None
        # The main cursor has returned all events before the promise, so the state of the previous
        # progress cursor no longer matters.
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
            if self._left_behind is not None:
                self._kill_later(self._left_behind)
            self._left_behind, self._cursor = self._cursor, None

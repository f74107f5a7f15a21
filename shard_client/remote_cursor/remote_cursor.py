"""A change-stream cursor on one replica set, with read-ahead and reopening after failures."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import ceil
from typing import Any, TypeVar

import bson
import structlog

from shard_client import spans
from shard_client.backoff import Backoff
from shard_client.cluster_clock import ClusterClock
from shard_client.error_codes import ErrorCode
from shard_client.errors import RESUMABLE_LABEL, CommandError, NetworkError, ProtocolError
from shard_client.remote_cursor.batch_size import BatchSize
from shard_client.remote_cursor.cursor_reply import CursorBatch, leaves_open, slice_cursor_reply
from shard_client.remote_cursor.cursor_spans import CursorSpans
from shard_client.remote_cursor.member_link import MemberLink
from shard_client.remote_cursor.open_cursor import OpenCursor
from shard_client.remote_cursor.progress_cursor import Probing, ProgressCursor
from shard_client.remote_cursor.remote_settings import Dialer, RemoteSettings, SentCommands
from shard_client.remote_cursor.retry_policy import from_network, is_resumable

log = structlog.get_logger()
_T = TypeVar("_T")

_MOST_BEHIND = 1024 * 1024
"""Bytes of events that a progress cursor may lag behind before it is reopened."""

_MOST_COMPLETE = 8 * 1024 * 1024
"""Bytes of events from which a batch may have been cut short at 16 MiB."""

Opening = Callable[[bytes | None], tuple[str, Mapping[str, Any]]]
"""Returns database and ``aggregate`` to open the cursor, after a raw resume token if not None."""


class RemoteCursor:
    """Reads one cursor ahead (docs/design.md#a-remote-cursor).

    It holds a connection while a getMore is in flight or about to be sent, and releases it while
    paused. Unless paused, it sends the next ``getMore`` as soon as a batch has arrived. If the
    reply is large, it does so before splitting it, so that the shard does not wait for the router.
    After a resumable failure it reopens the cursor after its own last postBatchResumeToken, with
    growing pauses, for up to ``failure_timeout``. Any other failure ends the cursor. If a member
    has not answered for ``reply_timeout``, it is sent a hello over another connection.

    ``dialer`` finds the member to read from and connects to it; ``opening`` returns the command;
    ``probing`` enables ``probe_progress``; ``sent`` counts commands.
    ``on_batch`` and ``on_failure`` are synchronous callbacks. Neither is called again after
    ``on_failure(error, address)`` or after a batch marked as invalidated.
    """

    def __init__(
        self,
        name: str,
        *,
        dialer: Dialer,
        opening: Opening,
        on_batch: Callable[[CursorBatch], None],
        on_failure: Callable[[CommandError, str | None], None],
        clock: ClusterClock,
        settings: RemoteSettings,
        sent: SentCommands,
        probing: Probing | None = None,
    ) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._dialer = dialer
        self._link = MemberLink(dialer, settings)
        self._opening = opening
        self._on_batch = on_batch
        self._on_failure = on_failure
        self._clock = clock
        self._settings = settings
        self._large_reply = settings.large_reply_bytes
        self._batch_size = BatchSize(settings.batch_target_bytes)
        self._backoff = Backoff(settings.backoff_first, settings.backoff_max)
        self._await_ms = max(1, round(settings.await_time * 1000))
        self._sent = sent
        self._spans = CursorSpans(name)
        self._progress = (
            None
            if probing is None
            else ProgressCursor(
                borrow=dialer.borrow,
                kill_later=dialer.kill_later,
                command=lambda pbrt: self._encoded(*probing.opening(pbrt)),
                on_batch=self._progress_arrived,
                on_end=self._ended,
                on_cost=probing.on_cost,
                sent=sent,
                fragments=probing.fragments,
                connect_timeout=settings.connect_timeout,
                reply_timeout=settings.reply_timeout,
                unused_after=settings.progress_unused,
                most_behind=min(_MOST_BEHIND, settings.batch_target_bytes),
            )
        )
        self._task: asyncio.Task[None] | None = None
        self._cursor: OpenCursor | None = None
        self._left_behind: OpenCursor | None = None
        # The last getMore: its parameters and its bytes.
        self._wanted: tuple[OpenCursor, int, int] | None = None
        self._get_more = b""
        self._pbrt: bytes | None = None
        self._failing_since: float | None = None
        self._last_error: CommandError | None = None
        self._warned = False
        self._paused = False
        self._stopping = False
        self._parked = False
        self._resumed: asyncio.Future[None] | None = None
        self.reopened = 0

    @property
    def paused(self) -> bool:
        """Whether the next getMore waits for ``resume``."""
        return self._paused

    @property
    def address(self) -> str | None:
        """The member read from, now or most recently, as "host:port"."""
        return self._link.last_address

    @property
    def state(self) -> str:
        """The current state: "failing", "paused", "reading" or "opening"."""
        if self._failing_since is not None:
            return "failing"
        if self._cursor is None:
            return "opening"
        return "paused" if self._paused else "reading"

    @property
    def failing_for(self) -> float | None:
        """Seconds since the first failure of the current outage; None if there is none."""
        return None if self._failing_since is None else self._loop.time() - self._failing_since

    @property
    def last_error(self) -> CommandError | None:
        """The last failure, whether or not the cursor has recovered from it."""
        return self._last_error

    def start(self) -> None:
        """Start reading in a background task."""
        name, context = f"remote cursor {self.name}", spans.apart()
        self._task = self._loop.create_task(self._run(), name=name, context=context)
        self._task.add_done_callback(self._ended)
        self._task.add_done_callback(lambda _task: self._spans.ended())

    def pause(self) -> None:
        """Send no further getMore; a getMore in flight still delivers its batch."""
        self._paused = True

    def resume(self) -> None:
        """Continue after ``pause``."""
        if self._paused:
            self._paused = False
            if self._resumed is not None and not self._resumed.done():
                self._resumed.set_result(None)

    def set_await(self, seconds: float) -> None:
        """Limit the time that the next getMore waits for events; the minimum is 1 ms."""
        self._await_ms = max(1, ceil(seconds * 1000))

    def aim_at(self, batch_bytes: int) -> None:
        """Set the target batch size, at most ``batch_target_bytes`` of the settings."""
        self._batch_size.target = min(batch_bytes, self._settings.batch_target_bytes)

    def can_probe(self, seconds: float) -> bool:
        """Return whether a getMore may wait ``seconds`` more and no probe is in progress."""
        due = self._link.reply_due_at
        waits = due is not None and due - self._loop.time() > seconds
        return waits and self._progress is not None and not self._progress.querying

    def probe_progress(self, seconds: float) -> None:
        """Query the member's progress within ``seconds``, while a getMore waits.

        This uses the progress cursor, so the getMore keeps waiting. The result is delivered as an
        empty batch.
        """
        if self._progress is not None and self._cursor is not None and self._pbrt is not None:
            await_ms = max(1, ceil(seconds * 1000))
            self._progress.query(self._cursor, self._pbrt, self._batch_size.current, await_ms)

    def leave_member(self) -> None:
        """Drop a member that makes no progress and continue on another one."""
        if self._cursor is not None and not self._stopping:
            self._link.abandon()

    async def close(self) -> None:
        """Kill the cursor on the shard and close the connection, within ``close_timeout``.

        It can be called at any time, even without ``start``.
        """
        self._stopping = True
        deadline = self._loop.time() + self._settings.close_timeout
        async with asyncio.TaskGroup() as both:
            if self._progress is not None:
                both.create_task(self._progress.stop(deadline))
            if self._task is not None:
                await self._end(self._task)
            await self._link.stop_guarding()
            await self._kill(deadline)

    async def _end(self, task: asyncio.Task[None]) -> None:
        if self._parked:
            task.cancel()
        # A request in flight may finish: the reply to an aggregate has the id of the cursor to
        # kill.
        _, late = await asyncio.wait({task}, timeout=self._settings.close_timeout / 2)
        if late:
            task.cancel()
            await asyncio.wait(late)

    # The loop of openings and failures.

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self._open()
                await self._read()
                return
            except CommandError as failure:
                error = failure
            except NetworkError as failure:
                error = from_network(failure, self._link.last_address or self.name)
            except ProtocolError as failure:
                error = CommandError(ErrorCode.ProtocolError, str(failure))
            if self._stopping:
                return
            if not is_resumable(error):
                self._last_error = error
                self._on_failure(error, self._link.last_address)
                return
            if not self._may_reopen(error):
                self._on_failure(_retriable(error), self._link.last_address)
                return
            await self._park(asyncio.sleep(self._backoff.next_pause()))

    def _may_reopen(self, error: CommandError) -> bool:
        """Record a resumable failure; return whether there is time left to reopen."""
        self._last_error = error
        self._spans.failed(error)
        self._left_behind, self._cursor = self._cursor or self._left_behind, None
        self._link.leave_after(error)
        now = self._loop.time()
        if self._failing_since is None:
            # A member that hangs has been failing since its answer was due.
            unanswered = self._link.unanswered_since
            self._failing_since = now if unanswered is None else unanswered
        lasted = now - self._failing_since
        # A long outage is logged as a warning once.
        report = log.debug if self._warned else log.warning
        report("remote cursor failed", remote=self.name, error=str(error), lasted=lasted)
        self._warned = True
        return lasted < self._settings.failure_timeout

    async def _open(self) -> None:
        with self._spans.opening() as span:
            batch = await self._opened(span)
        self._deliver(batch)

    async def _opened(self, span: spans.Span) -> CursorBatch:
        connection = await self._park(self._link.connect())
        self._spans.connected(span, connection.address)
        if self._left_behind is not None:
            if self._left_behind.address != connection.address:
                self._dialer.kill_later(self._left_behind)
            else:
                await self._left_behind.kill_over(connection, self._settings.close_timeout)
            if not connection.closed:  # else the next attempt kills it
                self._left_behind = None
        self._sent.openings += 1
        self._link.send(self._encoded(*self._opening(self._pbrt)), takes=0.0)
        batch = slice_cursor_reply(await self._link.receive())
        if batch.cursor_id:
            self._cursor = OpenCursor(connection.address, batch.namespace, batch.cursor_id)
        return batch

    def _encoded(self, database: str, command: Mapping[str, Any]) -> bytes:
        command = {**command, "$db": database}
        if self._clock.raw is not None:
            command["$clusterTime"] = self._clock.document
        return bson.encode(command)

    async def _read(self) -> None:
        asked = False
        while self._cursor is not None and (asked or not self._stopping):
            if not asked:
                if self._paused:
                    paused_at = self._loop.time()
                    self._link.release()
                    await self._park(self._until_resumed())
                    if self._failing_since is not None:
                        # A paused cursor cannot recover, so the pause does not count.
                        self._failing_since += self._loop.time() - paused_at
                    continue
                if not self._link.connected:
                    await self._park(self._link.connect_to(self._cursor.address))
                self._ask_for_more(self._cursor)
            reply = await self._link.receive()
            requested = 0 if self._wanted is None else self._wanted[1]
            asked = len(reply) >= self._large_reply and not self._paused and not self._stopping
            asked = asked and leaves_open(reply)
            if asked:
                self._ask_for_more(self._cursor)
            batch = slice_cursor_reply(reply)
            if not (batch.cursor_id or batch.invalidated):
                raise CommandError(ErrorCode.CursorNotFound, "the shard has closed the cursor")
            if self._failing_since is not None:
                self._is_mended(self._loop.time() - self._failing_since)
            if batch.events and len(batch.events) < requested and batch.size < _MOST_COMPLETE:
                batch = batch._replace(complete=True)
            self._deliver(batch)

    def _ask_for_more(self, cursor: OpenCursor) -> None:
        wanted = (cursor, self._batch_size.current, self._await_ms)
        if wanted != self._wanted:
            self._wanted = wanted
            self._get_more = cursor.get_more(self._batch_size.current, self._await_ms)
        self._sent.get_mores += 1
        self._link.send(self._get_more, takes=self._await_ms / 1000)

    def _is_mended(self, lasted: float) -> None:
        log.info("remote cursor goes on", remote=self.name, lasted=lasted)
        self._spans.mended()
        self.reopened += 1
        self._sent.reopenings += 1
        self._warned = False
        self._failing_since = None
        self._backoff.reset()

    def _deliver(self, batch: CursorBatch) -> None:
        self._clock.advance(batch.cluster_time)
        if batch.events:
            self._batch_size.arrived(len(batch.events), batch.size)
        if not batch.cursor_id:
            self._cursor = None
        if self._progress is not None:
            batch = self._progress.join(batch)
            self._progress.close_if_unused()
        if batch.pbrt:
            self._pbrt = batch.pbrt
        if not batch.events:
            self._link.rest()
        if not self._stopping:
            self._on_batch(batch)

    def _progress_arrived(self, batch: CursorBatch) -> None:
        """Deliver the progress cursor's result, unless the main cursor is being reopened."""
        if self._cursor is not None and not self._stopping:
            self._clock.advance(batch.cluster_time)
            self._pbrt = batch.pbrt
            self._on_batch(batch)

    # Waits that ``close`` can cancel.

    async def _park(self, awaitable: Awaitable[_T]) -> _T:
        self._parked = True
        try:
            return await awaitable
        finally:
            self._parked = False

    async def _until_resumed(self) -> None:
        self._resumed = self._loop.create_future()
        try:
            await self._resumed
        finally:
            self._resumed = None

    # The end.

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("remote cursor broke", remote=self.name, exc_info=error)
        if not self._stopping:
            failure = CommandError(ErrorCode.InternalError, f"{type(error).__name__}: {error}")
            self._on_failure(failure, self._link.last_address)

    async def _kill(self, deadline: float) -> None:
        cursors = [each for each in (self._left_behind, self._cursor) if each is not None]
        self._cursor = self._left_behind = None
        try:
            for cursor in cursors:
                if not await cursor.kill(self._link.borrow, deadline):
                    self._dialer.kill_later(cursor)
        finally:
            self._link.release()


def _retriable(error: CommandError) -> CommandError:
    """Return the error with the resumable label: the member may be back when a client resumes."""
    return CommandError(
        error.code,
        error.message,
        code_name=error.code_name,
        labels=error.labels | {RESUMABLE_LABEL},
        extra=error.extra,
    )

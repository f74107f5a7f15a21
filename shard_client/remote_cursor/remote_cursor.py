"""A change-stream cursor on one replica set, with read-ahead and reopening after failures."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import ceil
from typing import Any, TypeVar

import structlog

from shard_client import spans
from shard_client.backoff import Backoff
from shard_client.cluster_clock import ClusterClock
from shard_client.error_codes import ErrorCode
from shard_client.errors import RESUMABLE_LABEL, CommandError, NetworkError, ProtocolError
from shard_client.remote_cursor.batch_size import BatchSize
from shard_client.remote_cursor.cursor_reply import CursorBatch, Watermark
from shard_client.remote_cursor.cursor_spans import CursorSpans
from shard_client.remote_cursor.member_link import MemberLink
from shard_client.remote_cursor.open_cursor import OpenCursor, encode_opening, kill_all
from shard_client.remote_cursor.progress_cursor import Probing, ProgressCursor
from shard_client.remote_cursor.remote_settings import Dialer, RemoteSettings, SentCommands
from shard_client.remote_cursor.retry_policy import from_network, is_resumable

log = structlog.get_logger()
_T = TypeVar("_T")

Opening = Callable[[bytes | None], tuple[str, Mapping[str, Any]]]
"""Returns database and ``aggregate`` to open the cursor, after a raw resume token if not None."""


class RemoteCursor:
    """Reads one cursor ahead (docs/design.md#a-remote-cursor).

    It holds a connection while a getMore is in flight or about to be sent, and releases it while
    paused. Unless paused, it sends the next ``getMore`` as soon as a batch has arrived. If the
    reply is large, it does so before splitting it, so that the shard does not wait for the router.
    After a resumable failure it reopens the cursor after its own last postBatchResumeToken, with
    growing pauses, for up to ``failure_timeout``, and longer if it is read on. Any other failure
    ends the cursor. If a member has not answered for ``reply_timeout``, it is sent a hello over
    another connection.

    One task calls ``read`` again and again until it returns None or raises; ``close`` ends that.
    ``dialer`` finds the member to read from and connects to it; ``opening`` returns the command;
    ``probing`` enables ``probe_progress``; ``sent`` counts commands.
    """

    def __init__(
        self,
        name: str,
        *,
        dialer: Dialer,
        opening: Opening,
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
        self._clock = clock
        self._settings = settings
        self._batch_size = BatchSize(settings.batch_target_bytes)
        self._backoff = Backoff(settings.backoff_first, settings.backoff_max)
        self._await_ms = max(1, round(settings.await_unknown * 1000))
        self._sent = sent
        self._spans = CursorSpans(name)
        self._progress = (
            None if probing is None else ProgressCursor(probing, dialer, clock, settings, sent)
        )
        self._unused_ending: asyncio.Task[None] | None = None
        self._query: asyncio.Timeout | None = None
        self._query_over = asyncio.Event()
        self._read_over = asyncio.Event()
        self._read_over.set()
        self._cursor: OpenCursor | None = None
        self._left_behind: OpenCursor | None = None
        # The last getMore: its parameters and its bytes.
        self._wanted: tuple[OpenCursor, int, int] | None = None
        self._get_more = b""
        self._watermark: Watermark | None = None
        self._failing_since: float | None = None
        self.last_error: CommandError | None = None
        """The last failure, whether or not the cursor has recovered from it."""
        self._failures = 0  # of the current outage
        self.in_outage = False
        """Whether the last read has failed by an outage, so that the next one tries again."""
        self.paused = False
        """Whether the next getMore waits for ``resume``."""
        self._asked = False  # for the next batch, before the last one was split
        self._over = False
        self._stopping = False
        self._parked: asyncio.Timeout | None = None
        self._resumed: asyncio.Future[None] | None = None
        self.reopened = 0
        """The number of failures after which the cursor was opened again."""

    @property
    def address(self) -> str | None:
        """The member read from, now or most recently, as "host:port"."""
        return self._link.last_address

    @property
    def state(self) -> str:
        """The current state: "failing", "paused", "reading" or "opening"."""
        if self.failing_for is not None:
            return "failing"
        if self._cursor is None:
            return "opening"
        return "paused" if self.paused else "reading"

    @property
    def failing_for(self) -> float | None:
        """Seconds since the first failure of the current outage; None if there is none.

        A cursor that was opened again and stays paused has none: the next getMore may show one.
        """
        if self._failing_since is None or self._resumed is not None:
            return None
        return self._loop.time() - self._failing_since

    async def read(self) -> CursorBatch | None:
        """Return the next batch; None once the cursor is closed, or after an invalidated batch.

        Call it again at once: the next getMore is sent then.

        Raises:
            CommandError: the cursor has failed; if ``in_outage``, another call tries again.
        """
        self._read_over.clear()
        try:
            return await self._next()
        except TimeoutError:
            if not self._stopping:
                raise
            return None
        finally:
            self._read_over.set()

    def pause(self) -> None:
        """Send no further getMore; a getMore in flight still delivers its batch."""
        self.paused = True

    def resume(self) -> None:
        """Continue after ``pause``."""
        if self.paused:
            self.paused = False
            self._wake()

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
        return waits and self._free_progress is not None

    async def probe_progress(self, seconds: float) -> CursorBatch | None:
        """Query the member's progress within ``seconds``, while a getMore waits.

        This uses the progress cursor, so the getMore keeps waiting. Return an empty batch, to be
        processed at once; None if there is none or the progress cursor is in use.
        """
        progress, cursor, watermark = self._free_progress, self._cursor, self._watermark
        if progress is None or cursor is None or watermark is None:
            return None
        await_ms = max(1, ceil(seconds * 1000))
        self._query_over.clear()
        try:
            async with asyncio.timeout(None) as self._query:
                batch = await progress.query(cursor, watermark, self._batch_size.current, await_ms)
        except TimeoutError:
            if not self._stopping:
                raise
            return None
        finally:
            self._query = None
            self._query_over.set()
        # The main cursor may have been closed meanwhile, to be reopened after its own watermark.
        if batch is None or self._cursor is None or self._stopping:
            return None
        self._clock.advance(batch.cluster_time)
        self._watermark = batch.watermark
        return batch

    def take_probe_cost(self) -> float:
        """Return the seconds for which probes have kept the member busy since the last call."""
        return 0.0 if self._progress is None else self._progress.take_cost()

    def leave_member(self) -> None:
        """Drop a member that makes no progress and continue on another one."""
        if self._cursor is not None and not self._stopping:
            self._link.abandon()

    async def close(self) -> None:
        """Kill the cursor on the shard and close the connection, within ``close_timeout``.

        It can be called at any time, once. A read or a query in progress returns None.
        """
        self._stopping = True
        deadline = self._loop.time() + self._settings.close_timeout
        try:
            async with asyncio.TaskGroup() as both:
                if self._progress is not None:
                    both.create_task(self._end_probing(self._progress, deadline))
                await self._end_reading()
                self._spans.ended()
                await self._link.stop_guarding()
                later = self._dialer.kill_later
                await kill_all(self._take_cursors(), self._link.borrow, deadline, later)
        finally:
            # A close that is cancelled leaves cursors to be killed later.
            left = [] if self._progress is None else self._progress.take_cursors()
            for cursor in (*left, *self._take_cursors()):
                self._dialer.kill_later(cursor)
            self._link.release()

    async def _end_reading(self) -> None:
        if self._parked is not None:
            self._parked.reschedule(self._loop.time())
        self._wake()
        # A request in flight may finish: the reply to an aggregate has the id of the cursor to
        # kill.
        try:
            async with asyncio.timeout(self._settings.close_timeout / 2):
                await self._read_over.wait()
        except TimeoutError:
            self._link.cut()
            await self._read_over.wait()

    async def _end_probing(self, progress: ProgressCursor, deadline: float) -> None:
        if self._query is not None:
            self._query.reschedule(self._loop.time() + self._settings.close_timeout / 2)
            await self._query_over.wait()
        if self._unused_ending is not None:
            await asyncio.wait({self._unused_ending}, timeout=self._settings.close_timeout / 2)
            self._unused_ending.cancel()
        await progress.close(deadline)

    # Openings and failures.

    async def _next(self) -> CursorBatch | None:
        while not self._over and (self._asked or not self._stopping):
            if self.in_outage:
                self.in_outage = False
                await self._park(asyncio.sleep(self._backoff.next_pause()))
            try:
                cursor = self._cursor
                batch = await (self._open() if cursor is None else self._read_on(cursor))
            except CommandError as failure:
                error = failure
            except NetworkError as failure:
                error = from_network(failure, self._link.last_address or self.name)
            except ProtocolError as failure:
                error = CommandError(ErrorCode.ProtocolError, str(failure))
            else:
                if batch is not None:
                    return batch
                continue
            self._asked = False
            if self._stopping:
                break
            if not is_resumable(error):
                self.last_error = error
                raise error
            self.in_outage = True
            if not self._may_reopen(error):
                # The member may be back when a client resumes.
                raise error.with_labels(RESUMABLE_LABEL)
        return None

    def _may_reopen(self, error: CommandError) -> bool:
        """Record a resumable failure; return whether there is time left to reopen."""
        self.last_error = error
        self._spans.failed(error)
        self._left_behind, self._cursor = self._cursor or self._left_behind, None
        self._link.leave_after(error)
        now = self._loop.time()
        if self._failing_since is None:
            # A member that hangs has been failing since its answer was due.
            unanswered = self._link.unanswered_since
            self._failing_since = now if unanswered is None else unanswered
        lasted = now - self._failing_since
        # A long outage is logged as a warning once, and counted.
        report = log.debug if self._failures else log.warning
        report("remote cursor failed", remote=self.name, error=str(error), lasted=lasted)
        self._failures += 1
        return lasted < self._settings.failure_timeout

    async def _open(self) -> CursorBatch | None:
        with self._spans.opening() as span:
            batch = await self._opened(span)
        return self._arrived(batch)

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
        after = None if self._watermark is None else self._watermark.token
        self._link.send(encode_opening(self._opening(after), self._clock), takes=0.0)
        batch = await self._receive()
        batch.split()
        if batch.cursor_id:
            self._cursor = OpenCursor(connection.address, batch.namespace, batch.cursor_id)
        _check_open(batch)
        return batch

    async def _read_on(self, cursor: OpenCursor) -> CursorBatch | None:
        """Return the next batch; None if the cursor was paused, or is being closed."""
        asked, self._asked = self._asked, False
        if not asked:
            if self.paused:
                await self._stay_paused()
                return None
            if not self._link.connected:
                await self._park(self._link.connect_to(cursor.address))
            self._ask_for_more(cursor)
        batch = await self._receive()
        batch.requested = 0 if self._wanted is None else self._wanted[1]
        large = batch.cursor_id and batch.reply_bytes >= self._settings.large_reply_bytes
        if large and not self.paused and not self._stopping:
            self._asked = True
            self._ask_for_more(cursor)
        batch.split()
        _check_open(batch)
        if self._failing_since is not None:
            self._recovered(self._loop.time() - self._failing_since)
        return self._arrived(batch)

    async def _receive(self) -> CursorBatch:
        with self._link.replying() as connection:
            return CursorBatch.of(await connection.receive_raw(timeout=None))

    async def _stay_paused(self) -> None:
        paused_at = self._loop.time()
        self._link.release()
        self._resumed = self._loop.create_future()
        try:
            await self._resumed
        finally:
            self._resumed = None
        if self._failing_since is not None:
            # A paused cursor cannot recover, so the pause does not count.
            self._failing_since += self._loop.time() - paused_at

    def _ask_for_more(self, cursor: OpenCursor) -> None:
        wanted = (cursor, self._batch_size.current, self._await_ms)
        if wanted != self._wanted:
            self._wanted = wanted
            self._get_more = cursor.get_more(self._batch_size.current, self._await_ms)
        self._sent.get_mores += 1
        self._link.send(self._get_more, takes=self._await_ms / 1000)

    def _recovered(self, lasted: float) -> None:
        log.info("remote cursor resumed", remote=self.name, lasted=lasted, failures=self._failures)
        self._spans.recovered()
        self.reopened += 1
        self._sent.reopenings += 1
        self._failures = 0
        self._failing_since = None
        self._backoff.reset()

    def _arrived(self, batch: CursorBatch) -> CursorBatch | None:
        self._clock.advance(batch.cluster_time)
        if batch.events:
            self._batch_size.arrived(len(batch.events), batch.size)
        if not batch.cursor_id:
            self._cursor, self._over = None, True
        if self._progress is not None:
            if batch.watermark is not None:
                batch.watermark = self._progress.join(
                    batch.watermark, batch.size, ended=not batch.cursor_id
                )
            if self._progress.unused and self._free_progress is not None:
                ending = self._progress.close(self._loop.time() + self._settings.reply_timeout)
                name = f"close the progress cursor of {self.name}"
                self._unused_ending = self._loop.create_task(ending, name=name)
        self._watermark = batch.watermark or self._watermark
        if not batch.events:
            self._link.free_buffer()
        return None if self._stopping else batch

    @property
    def _free_progress(self) -> ProgressCursor | None:
        """The progress cursor, unless it is in use or about to be closed."""
        ending = self._unused_ending is not None and not self._unused_ending.done()
        return None if self._query is not None or ending or self._stopping else self._progress

    async def _park(self, awaitable: Awaitable[_T]) -> _T:
        """Wait for what ``close`` may cut short: TimeoutError is raised then."""
        try:
            async with asyncio.timeout(None) as self._parked:
                return await awaitable
        finally:
            self._parked = None

    def _wake(self) -> None:
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)

    def _take_cursors(self) -> list[OpenCursor]:
        cursors = [each for each in (self._left_behind, self._cursor) if each is not None]
        self._left_behind = self._cursor = None
        return cursors


def _check_open(batch: CursorBatch) -> None:
    """Raise CommandError 43 if the shard has closed a cursor that was not invalidated."""
    if not (batch.cursor_id or batch.invalidated):
        raise CommandError(ErrorCode.CursorNotFound, "the shard has closed the cursor")

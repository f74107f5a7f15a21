"""A change-stream cursor on one replica set, with read-ahead and reopening after failures."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import ceil
from typing import Any, Literal

from shard_client.backoff import Backoff
from shard_client.bson.resume_token import is_invalidate
from shard_client.cluster_clock import ClusterClock
from shard_client.errors import (
    RESUMABLE_LABEL,
    CommandError,
    ErrorCode,
    NetworkError,
    ProtocolError,
    from_network,
    is_resumable,
)
from shard_client.remote_cursor.batch_size import BatchSize
from shard_client.remote_cursor.cursor_reply import CursorBatch, KeyedToken
from shard_client.remote_cursor.cursor_state import (
    Closing,
    Connecting,
    CursorState,
    Ended,
    Failing,
    Opening,
    Paused,
    Reading,
    follow,
)
from shard_client.remote_cursor.member_link import Dialer, MemberLink
from shard_client.remote_cursor.open_cursor import OpenCursor, SentCommands, encode_opening
from shard_client.remote_cursor.outages import Outages
from shard_client.remote_cursor.progress_cursor import Probing, ProgressCursor
from shard_client.remote_cursor.remote_settings import RemoteSettings

OpeningCommand = Callable[[bytes | None], tuple[str, Mapping[str, Any]]]
"""Returns database and ``aggregate`` to open the cursor, after a raw resume token if not None."""


CursorStatus = Literal["opening", "reading", "paused", "failing", "ended"]
"""What a cursor does. Beside its states, it counts as paused from ``pause`` on, also while a reply
is due, and as failing throughout an outage."""


class RemoteCursor:
    """Reads one cursor ahead (docs/design.md#a-remote-cursor).

    It holds a connection while a getMore is in flight or about to be sent, and releases it while
    paused. Unless paused, it sends the next ``getMore`` as soon as a batch has arrived. If the
    reply is large, it does so before splitting it, so that the shard does not wait for the router.
    After a resumable failure it reopens the cursor after its own last postBatchResumeToken, with
    growing pauses, for up to ``failure_timeout``, or as long as ``outlasts`` returns True. Any
    other failure ends the cursor. If a member has not answered for ``reply_timeout``, it is sent a
    hello over another connection. ``cursor_state`` has the states that it goes through.

    One task calls ``read`` again and again until it returns None or raises; ``close`` ends that.
    ``dialer`` finds the member to read from and connects to it; ``opening`` returns the command;
    ``probing`` enables ``probe_progress``; ``sent`` counts commands.
    """

    def __init__(
        self,
        name: str,
        *,
        dialer: Dialer,
        opening: OpeningCommand,
        clock: ClusterClock,
        settings: RemoteSettings,
        sent: SentCommands,
        outlasts: Callable[[], bool],
        probing: Probing | None = None,
    ) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._dialer = dialer
        self._link = MemberLink(dialer, settings)
        self._opening = opening
        self._clock = clock
        self._settings = settings
        self._sent = sent
        self._outlasts = outlasts
        self._batch_size = BatchSize(settings.batch_target_bytes)
        self._await_ms = max(1, round(settings.await_unknown * 1000))
        self.outages = Outages(name, Backoff(settings.backoff_first, settings.backoff_max))
        self._progress = (
            None if probing is None else ProgressCursor(probing, dialer, clock, settings, sent)
        )
        self._state: CursorState = Connecting()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._reading: asyncio.Timeout | None = None
        self._read_over = asyncio.Event()
        self._read_over.set()
        self._requested = 0
        """The events that the last getMore has asked for."""
        self._watermark: KeyedToken | None = None

    @property
    def address(self) -> str | None:
        """The member read from, now or most recently, as "host:port"."""
        return self._link.last_address

    @property
    def status(self) -> CursorStatus:
        """What the cursor does now."""
        if self.failing_for is not None:
            return "failing"
        if isinstance(self._state, Closing | Ended):
            return "ended"
        if self._state.cursor is None:
            return "opening"
        return "paused" if self.wants_pause else "reading"

    @property
    def wants_pause(self) -> bool:
        """Whether the next getMore waits for ``resume``."""
        return not self._may_read.is_set()

    @property
    def failing_for(self) -> float | None:
        """Seconds since the first failure of the current outage; None if there is none.

        One that has ended has none, nor one that was opened again and is paused.
        """
        return None if isinstance(self._state, Paused | Closing | Ended) else self.outages.lasted

    async def read(self) -> CursorBatch | None:
        """Return the next batch; None once the cursor is closed, or after an invalidated batch.

        Call it again at once: the next getMore is sent then. Raises CommandError: a failure has
        ended the cursor.
        """
        self._read_over.clear()
        try:
            async with asyncio.timeout(None) as self._reading:
                while True:
                    try:
                        batch = await self._step(self._state)
                    except CommandError as failure:
                        self._failed(failure)
                    except NetworkError as failure:
                        self._failed(from_network(failure, self._link.last_address or self.name))
                    except ProtocolError as failure:
                        self._failed(CommandError(ErrorCode.ProtocolError, str(failure)))
                    else:
                        if isinstance(self._state, Closing):
                            return None
                        if batch is not None or isinstance(self._state, Ended):
                            return batch
        except TimeoutError:
            if not isinstance(self._state, Closing | Ended):
                raise
            return None
        finally:
            self._reading = None
            self._read_over.set()

    def pause(self) -> None:
        """Send no further getMore; a getMore in flight still delivers its batch."""
        self._may_read.clear()

    def resume(self) -> None:
        """Continue after ``pause``."""
        self._may_read.set()

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
        return waits and self._progress is not None and not self._progress.busy

    async def probe_progress(self, seconds: float) -> CursorBatch | None:
        """Probe the member within ``seconds``, while a getMore waits.

        This uses the progress cursor, so the getMore keeps waiting. Return an empty batch, to be
        processed at once; None if there is none or the progress cursor is in use.
        """
        progress, cursor, watermark = self._progress, self._state.cursor, self._watermark
        if progress is None or progress.busy or cursor is None or watermark is None:
            return None
        await_ms = max(1, ceil(seconds * 1000))
        batch = await progress.probe(cursor, watermark, self._batch_size.current, await_ms)
        # The main cursor may have been closed meanwhile, to be reopened after its own watermark.
        if batch is None or self._state.cursor is None or isinstance(self._state, Closing):
            return None
        self._clock.advance(batch.cluster_time)
        self._watermark = batch.watermark
        return batch

    def take_probe_cost(self) -> float:
        """Return the seconds for which probes have kept the member busy since the last call."""
        return 0.0 if self._progress is None else self._progress.take_cost()

    def leave_member(self) -> None:
        """Drop a member that makes no progress and continue on another one."""
        if isinstance(self._state, Reading):
            self._link.abandon()

    async def close(self) -> None:
        """Kill the cursor on the shard and close the connection, within ``close_timeout``.

        It can be called at any time, once. A read or a probe in progress returns None. Cursors that
        it cannot kill, or not before it is cancelled, are killed later.
        """
        now, limit = self._loop.time(), self._settings.close_timeout
        # A request in flight may finish: an aggregate's reply has the id of the cursor to kill.
        until = now + limit / 2
        if self._reading is not None:
            in_flight = isinstance(self._state, Opening | Reading)
            self._reading.reschedule(until if in_flight else now)
        self._become(Closing(self._state.cursor))
        try:
            if self._progress is not None:
                self._progress.end_probe(until)
                await self._progress.probe_over.wait()
            await self._read_over.wait()
            self.outages.close()
            await self._link.close()
            await self._kill(self._take_cursors(), now + limit)
        finally:
            for cursor in self._take_cursors():
                self._dialer.kill_later(cursor)
            self._link.release()

    async def _kill(self, cursors: list[OpenCursor], deadline: float) -> None:
        """Kill cursors by ``deadline`` on the loop's clock; what fails is tried again later."""
        borrow, limit = self._dialer.pool.borrow, self._settings.close_timeout
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    while cursors and await cursors[-1].kill(borrow, limit):
                        cursors.pop()
        finally:
            for cursor in cursors:
                self._dialer.kill_later(cursor)

    def _take_cursors(self) -> list[OpenCursor]:
        """Return the open cursors, for which the caller is responsible then."""
        progress = None if self._progress is None else self._progress.take_cursor()
        taken = [cursor for cursor in (self._state.cursor, progress) if cursor is not None]
        self._become(Ended())
        return taken

    # The steps of the reader.

    async def _step(self, state: CursorState) -> CursorBatch | None:
        """Do what ``state`` says; return the batch that has arrived, if any."""
        match state:
            case Reading():
                return await self._read_on(state)
            case Connecting(cursor=None):
                return await self._open()
            case Connecting(cursor=OpenCursor() as cursor):
                await self._link.connect_to(cursor.address)
                self._become(Reading(cursor))
            case Paused():
                self._link.release()
                await self._may_read.wait()
                self.outages.record_pause(self._loop.time() - state.since)
                self._become(Connecting(state.cursor))
            case Failing():
                await asyncio.sleep(self.outages.next_pause())
                self._become(Connecting())
        return None

    async def _open(self) -> CursorBatch | None:
        """Open the cursor and return its first batch; None if ``close`` came first."""
        with self.outages.opening() as span:
            connection = await self._link.connect()
            if isinstance(self._state, Closing):
                return None
            self._become(Opening())
            host, port = connection.address
            span.set_attributes({"server.address": host, "server.port": port})
            self._sent.openings += 1
            after = None if self._watermark is None else self._watermark.token
            self._link.send(encode_opening(self._opening(after), self._clock), takes=0.0)
            batch = await self._link.receive()
            batch.opening = True
            if batch.cursor_id:
                cursor = OpenCursor(connection.address, batch.namespace, batch.cursor_id)
                self._become(Reading(cursor))
            batch.split()
            _check_open(batch)
        return self._arrived(batch)

    async def _read_on(self, state: Reading) -> CursorBatch | None:
        """Return the next batch; None if the cursor was paused."""
        cursor = state.cursor
        if not state.ahead:
            if self.wants_pause:
                self._become(Paused(cursor, self._loop.time()))
                return None
            self._ask_for_more(cursor)
        batch = await self._link.receive()
        batch.requested = self._requested
        large = batch.cursor_id and batch.reply_bytes >= self._settings.large_reply_bytes
        ahead = bool(large and not self.wants_pause and self._state is state)
        if ahead != state.ahead:
            self._become(Reading(cursor, ahead))
        if ahead:
            self._ask_for_more(cursor)
        batch.split()
        _check_open(batch)
        if self.outages.end():
            self._sent.reopenings += 1
        return self._arrived(batch)

    def _ask_for_more(self, cursor: OpenCursor) -> None:
        self._requested = self._batch_size.current
        self._sent.get_mores += 1
        body = cursor.get_more(self._requested, self._await_ms)
        self._link.send(body, takes=self._await_ms / 1000)

    def _arrived(self, batch: CursorBatch) -> CursorBatch:
        self._clock.advance(batch.cluster_time)
        if batch.events:
            self._batch_size.record_batch(len(batch.events), batch.size)
            if batch.cursor_id and is_invalidate(batch.events[-1][0].decode(errors="replace")):
                self._end_at_invalidate(batch)
        if self._progress is not None:
            if batch.watermark is not None:
                batch.watermark = self._progress.join(
                    batch.watermark, batch.size, ended=not batch.cursor_id
                )
            self._progress.end_unused()
        self._watermark = batch.watermark or self._watermark
        if not batch.events:
            self._link.free_buffer()
        if not batch.cursor_id:
            self._become(Ended())
        return batch

    def _end_at_invalidate(self, batch: CursorBatch) -> None:
        """End with a full batch whose last event is the invalidate: its cursor id is not 0 yet.

        If the reply with the id 0 were lost, a cursor opened after the invalidate would continue
        the stream (docs/protocol.md#invalidates). The next getMore may have been sent already: the
        pool cuts a connection that is given back with a request in flight.
        """
        if self._state.cursor is not None:
            self._dialer.kill_later(self._state.cursor)
        batch.cursor_id, batch.invalidated = 0, True

    def _failed(self, error: CommandError) -> None:
        """Go on to the state after a failure; raises CommandError if that ends the cursor."""
        if isinstance(self._state, Closing | Ended):
            return
        if self._state.cursor is not None:
            self._dialer.kill_later(self._state.cursor)
        if not is_resumable(error):
            self.outages.record_end(error)
            self._become(Ended())
            raise error
        self._link.leave_after(error)
        # A member that hangs has been failing since its answer was due.
        lasted = self.outages.record_failure(error, self._link.unanswered_since)
        if lasted >= self._settings.failure_timeout and not self._outlasts():
            self._become(Ended())
            # The member may be back when a client resumes.
            raise error.with_labels(RESUMABLE_LABEL)
        self._become(Failing())

    def _become(self, state: CursorState) -> None:
        """Go on to ``state``; while ``close`` runs, only note the cursor that is open now."""
        if not isinstance(self._state, Closing):
            self._state = follow(self._state, state)
        elif isinstance(state, Reading | Ended):
            self._state = follow(self._state, Closing(state.cursor))


def _check_open(batch: CursorBatch) -> None:
    """Raise CommandError 43 if the shard has closed a cursor that was not invalidated."""
    if not (batch.cursor_id or batch.invalidated):
        raise CommandError(ErrorCode.CursorNotFound, "the shard has closed the cursor")

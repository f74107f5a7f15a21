"""A progress cursor: reports a member's progress while the main cursor's getMore waits."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import structlog

from shard_client.bson.resume_token import TIME_DIGITS
from shard_client.cluster_clock import ClusterClock
from shard_client.errors import CommandError, ErrorCode, NetworkError, ProtocolError
from shard_client.remote_cursor.cursor_reply import CursorBatch, KeyedToken
from shard_client.remote_cursor.member_link import Dialer
from shard_client.remote_cursor.open_cursor import OpenCursor, SentCommands, encode_opening
from shard_client.remote_cursor.remote_settings import RemoteSettings
from shard_client.wire.connection import Connection, format_address

log = structlog.get_logger()

_LEAST_COST: Final = 0.001
"""Minimum cost of one probe, in seconds of a member's time."""
_FRUITLESS: Final = 0.05
"""Extra cost, in seconds, if the probe returned an event that the main cursor has not returned."""
_MOST_BEHIND: Final = 1024 * 1024
"""Bytes of events that a progress cursor may lag behind before it is reopened, so that it never has
much to scan; at most a batch."""
_UNUSED: Final = 10.0
"""Seconds without a probe after which a progress cursor is closed."""

_NONE: Final = KeyedToken(b"", b"")


class Probing(NamedTuple):
    """Configuration of a progress cursor.

    ``opening`` returns the database and ``aggregate`` that open it after a raw resume token;
    ``fragments`` states whether the main cursor splits large events into fragments, which sort
    after the whole event that the progress cursor returns.
    """

    opening: Callable[[bytes], tuple[str, Mapping[str, Any]]]
    fragments: bool


class ProgressCursor:
    """A second cursor on a member, probed while the getMore of the main cursor waits.

    No-ops do not wake a getMore (docs/protocol.md#sharded-cluster), so an advanced watermark would
    be seen only at the end of the wait. Events do wake it: the main cursor returns them, and events
    that the progress cursor returns are dropped. The progress cursor must match every event that
    the main cursor matches, and can match more. Its watermark holds for both cursors once the main
    cursor has reached the last event that the progress cursor returned
    (docs/design.md#idle-shards).

    The first probe opens it; another probe begins only while it is not ``busy``. A cursor that has
    failed, is not used or lags behind is left to be killed. Must be created in a running loop.
    """

    def __init__(
        self,
        probing: Probing,
        dialer: Dialer,
        clock: ClusterClock,
        settings: RemoteSettings,
        sent: SentCommands,
    ) -> None:
        self._probing = probing
        self._dialer = dialer
        self._clock = clock
        self._settings = settings
        self._sent = sent
        self._most_behind = min(_MOST_BEHIND, settings.batch_target_bytes)
        self._loop = asyncio.get_running_loop()
        self._cursor: OpenCursor | None = None
        self._timeout: asyncio.Timeout | None = None
        self._closing = False
        self.probe_over = asyncio.Event()
        """Is set while no probe is in progress."""
        self.probe_over.set()
        # The watermark of both cursors, and the progress cursor's own.
        self._watermark = _NONE
        self._own = _NONE
        # The sort key of the last event that the progress cursor returned.
        self._last_event = b""
        self._passed_by = 0
        self._probed_at = self._loop.time()
        self._cost = 0.0

    @property
    def busy(self) -> bool:
        """Whether a probe is in progress, or none may begin because the cursor is being closed."""
        return self._closing or self._timeout is not None

    def end_unused(self) -> None:
        """Close the cursor if it has not been probed for 10 seconds."""
        if not self.busy and self._loop.time() - self._probed_at > _UNUSED:
            self._leave_behind()

    def take_cost(self) -> float:
        """Return the seconds for which probes have kept the member busy since the last call."""
        cost, self._cost = self._cost, 0.0
        return cost

    async def probe(
        self, main: OpenCursor, watermark: KeyedToken, batch_size: int, await_ms: int
    ) -> CursorBatch | None:
        """Ask the member of the main cursor ``main``, with its ``watermark``, for progress.

        The member waits up to ``await_ms`` milliseconds for its oplog to grow. Return an empty
        batch with the watermark of both cursors; None if the member does not answer, or with an
        error, or if ``end_probe`` ends the probe.
        """
        self.probe_over.clear()
        try:
            async with asyncio.timeout(None) as self._timeout:
                return await self._probe(main, watermark, batch_size, await_ms)
        except TimeoutError:
            if not self._closing:
                raise
            return None
        finally:
            self._timeout = None
            self.probe_over.set()

    def end_probe(self, until: float) -> None:
        """Begin no other probe, and end the one in progress by ``until`` on the loop's clock."""
        self._closing = True
        if self._timeout is not None:
            self._timeout.reschedule(until)

    def take_cursor(self) -> OpenCursor | None:
        """Return the cursor that is open, which the caller kills."""
        cursor, self._cursor = self._cursor, None
        return cursor

    def join(self, watermark: KeyedToken, size: int, *, ended: bool) -> KeyedToken:
        """Return the watermark of both cursors after a batch of the main cursor.

        ``watermark`` is the batch's own, ``size`` the bytes of its events; ``ended``: the main
        cursor ends with it.
        """
        if self._watermark is _NONE:
            return watermark  # there was no probe yet
        self._passed_by += size
        # The progress cursor's watermark may have been ahead, and has been published then.
        if size or watermark.key >= self._watermark.key:
            self._watermark = watermark
        if not ended:
            self._adopt_progress()
        return self._watermark

    async def _probe(
        self, main: OpenCursor, watermark: KeyedToken, batch_size: int, await_ms: int
    ) -> CursorBatch | None:
        if watermark.key > self._watermark.key:
            self._watermark = watermark
        kept = self._cursor is not None
        begun = self._probed_at = self._loop.time()
        try:
            try:
                batch = await self._next(main, batch_size, await_ms)
            except (CommandError, NetworkError):
                if not kept:
                    raise
                # The server may have closed the idle cursor, or the idle connection was cut.
                self._leave_behind()
                batch = await self._next(main, batch_size, await_ms)
        except (CommandError, NetworkError, ProtocolError) as error:
            # The main cursor reports the failure when its wait ends.
            member = format_address(main.address)
            log.info("progress cursor failed", member=member, error=str(error))
            self._leave_behind()
            return None
        finally:
            self._cost += max(_LEAST_COST, self._loop.time() - begun - await_ms / 1000)
        self._adopt_progress()
        if not self._is_reached(self._last_event):
            self._cost += _FRUITLESS
        return replace(
            batch, cursor_id=main.cursor_id, events=[], size=0, watermark=self._watermark
        )

    def _adopt_progress(self) -> None:
        """Adopt the progress cursor's watermark for both, if it is valid for both and new.

        It is valid for both when the main cursor has reached the last event that the progress
        cursor returned: the progress cursor has no event between that one and its own watermark, so
        neither has the main cursor.
        """
        if self._is_reached(self._last_event) and self._watermark.key < self._own.key:
            self._watermark = self._own

    def _is_reached(self, key: bytes) -> bool:
        """Return whether the main cursor has returned all its events up to a sort key."""
        if self._probing.fragments:
            return key[:TIME_DIGITS] < self._watermark.key[:TIME_DIGITS]
        return key <= self._watermark.key

    async def _next(self, main: OpenCursor, batch_size: int, await_ms: int) -> CursorBatch:
        if self._cursor is not None and (
            self._cursor.address != main.address or self._passed_by > self._most_behind
        ):
            self._leave_behind()
        timeout = self._settings.connect_timeout
        async with self._dialer.pool.borrow(main.address, timeout) as connection:
            if self._cursor is None:
                await self._open(connection)
            assert self._cursor is not None
            body = self._cursor.get_more(batch_size, await_ms)
            self._sent.get_mores += 1
            reply = await connection.command_raw(body, timeout=self._settings.reply_timeout)
        batch = CursorBatch.of(reply)
        batch.split()
        self._passed_by = 0
        if batch.events:
            self._last_event = batch.events[-1][0]
        if not batch.cursor_id:
            self._cursor = None  # the main cursor reports the end of the stream
        elif batch.watermark is not None:
            self._own = batch.watermark
        return batch

    async def _open(self, connection: Connection) -> None:
        # The main cursor has returned all events before the watermark, so the state of the previous
        # progress cursor no longer matters.
        self._own, self._last_event = _NONE, b""
        command = encode_opening(self._probing.opening(self._watermark.token), self._clock)
        self._sent.openings += 1
        reply = await connection.command_raw(command, timeout=self._settings.reply_timeout)
        batch = CursorBatch.of(reply)
        if batch.cursor_id:
            self._cursor = OpenCursor(connection.address, batch.namespace, batch.cursor_id)
        else:
            raise CommandError(
                ErrorCode.CursorNotFound, "the progress cursor was closed as it was opened"
            )

    def _leave_behind(self) -> None:
        if (cursor := self.take_cursor()) is not None:
            self._dialer.kill_later(cursor)

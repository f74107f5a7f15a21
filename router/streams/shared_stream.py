"""A shared stream: one set of remotes that several clients read, and its life cycle."""

import asyncio
from collections.abc import Awaitable, Callable, Set

from bson.timestamp import Timestamp

from router.change_stream.remotes import ShardSpan, covers_all
from router.change_stream.resume_token import cluster_time_of, first_key
from router.stream_settings import StreamSettings
from router.streams.admission import Ticket
from router.streams.preparation import PreparedStream
from router.streams.runner import StreamRunner
from shard_client import spans
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError


class SharedStream:
    """A stream runner with a count of its readers; it closes soon after the last one has left.

    ``prepare`` prepares the stream, whose remotes are then opened by a task of the shared stream.
    ``gone`` is called when no reader can enter any more: run ``close`` then. ``ticket`` is returned
    once the remotes are closed. ``shareable`` is whether more than one reader may enter. Must
    be created in a running loop.
    """

    def __init__(
        self,
        prepare: Callable[[], Awaitable[PreparedStream]],
        limits: StreamSettings,
        gone: Callable[["SharedStream"], None],
        ticket: Ticket,
        *,
        shareable: bool,
    ) -> None:
        self._limits = limits
        self._gone = gone
        self._ticket = ticket
        self._shareable = shareable
        self._loop = asyncio.get_running_loop()
        self._prepared: PreparedStream | None = None
        self._readers = 0
        self._lingering: asyncio.TimerHandle | None = None
        self._closed = False
        self.preparation_done = asyncio.Event()
        self._opening = self._loop.create_task(self._open(prepare), name="open remotes")
        self._opening.add_done_callback(self._has_opened)

    # Readers.

    @property
    def readers(self) -> int:
        """The number of readers."""
        return self._readers

    def enter(self) -> None:
        """Add a reader."""
        self._readers += 1
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        self._keep()

    def leave(self, *, lingering: bool = True) -> None:
        """Remove a reader; after the last one the shared stream closes, at once or soon.

        ``lingering`` is whether another reader is likely to come soon.
        """
        self._readers -= 1
        self._keep()
        if self._readers or self._closed:
            return
        if lingering and self._shareable and self.healthy and self._limits.share_linger > 0:
            if self._prepared is not None:
                self._prepared.runner.clients_left()
            self._lingering = self._loop.call_later(self._limits.share_linger, self._end)
        else:
            self._end()

    def _keep(self) -> None:
        """Set how much of the log is kept: more for several readers than for one or none."""
        if self._prepared is not None and self._shareable:
            limits = self._limits
            alone = min(limits.share_alone_bytes, limits.share_log_bytes)
            keep = limits.share_log_bytes if self._readers > 1 else alone
            self._prepared.runner.stream.keep_bytes = keep

    # State and range of events.

    @property
    def healthy(self) -> bool:
        """Whether it is opening or open, and its stream has neither failed nor ended."""
        if self._closed or (self._opening.done() and not self._has_succeeded):
            return False
        if self._prepared is None:
            return True
        stream = self._prepared.runner.stream
        return stream.error is None and not stream.ended

    @property
    def has_opened(self) -> bool:
        """Whether each remote has answered its opening."""
        return self._opening.done() and self._has_succeeded

    @property
    def runner(self) -> StreamRunner:
        """The stream runner; available once ``opened`` has returned."""
        assert self._prepared is not None
        return self._prepared.runner

    @property
    def start_at(self) -> Timestamp:
        """The time at which the shards started; available once ``preparation_done`` is set."""
        assert self._prepared is not None
        return self._prepared.start_at

    def covers(self, after: bytes, spans: Set[ShardSpan] = frozenset()) -> bool:
        """Return whether all events after the sort key ``after`` are in the log or still to come.

        This includes the events of the shard spans ``spans``, even of shards that have left.
        """
        if self._prepared is None:
            return False
        stream = self._prepared.runner.stream
        return stream.log.floor <= after and covers_all(stream.spans_beyond(after), spans, after)

    def is_late(self, time: Timestamp) -> bool:
        """Return whether it is far behind ``time``, or is not healthy and never reaches it."""
        if not self.healthy:
            return True
        if self._prepared is None:
            return False
        return time.time - cluster_time_of(self._reached).time > self._limits.share_behind

    def is_before(self, after: bytes) -> bool:
        """Return whether it has yet to read events up to the sort key ``after``."""
        return self._prepared is not None and self._reached < after

    @property
    def _reached(self) -> bytes:
        """The sort key up to which events are released; available as ``start_at`` is."""
        gate = self.runner.stream.gate
        return first_key(self.start_at) if gate is None else gate

    # Life cycle.

    async def located(self) -> None:
        """Wait until its start is known, or the opening is cancelled.

        Raises CommandError if the start cannot be determined, since a retry by the caller would
        fail as well.
        """
        await self.preparation_done.wait()
        if self._prepared is None and self._opening.done() and not self._opening.cancelled():
            await self.opened()

    async def opened(self) -> None:
        """Wait until each remote has answered its opening.

        Raises CommandError, the first failure.
        """
        try:
            await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise CommandError(
                    ErrorCode.ShutdownInProgress, "the stream was closed while it was being opened"
                ).with_change_stream_label() from None
            raise

    async def close(self) -> None:
        """Kill the remote cursors, within bounded time; idempotent."""
        self._closed = True
        if self._lingering is not None:
            self._lingering.cancel()
        self._opening.cancel()
        try:
            await asyncio.wait((self._opening,))
            if self._prepared is not None:
                await self._prepared.runner.close()
        finally:
            self._ticket.end()

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self._gone(self)

    @property
    def _has_succeeded(self) -> bool:
        return not self._opening.cancelled() and self._opening.exception() is None

    async def _open(self, prepare: Callable[[], Awaitable[PreparedStream]]) -> None:
        deadline = self._loop.time() + self._limits.open_timeout
        with spans.recorded("open remotes", {"db.system.name": "mongodb"}):
            try:
                prepared = self._prepared = await prepare()
            finally:
                self.preparation_done.set()
            self._keep()
            left = max(0.0, deadline - self._loop.time())
            await prepared.runner.open(left)

    def _has_opened(self, opening: asyncio.Task[None]) -> None:
        # Callers of ``opened`` get the failure too, but there may be none: retrieve it here.
        if opening.cancelled() or opening.exception() is not None:
            self._end()

"""A running stream: one set of remotes that several clients read, from its opening to its end."""

import asyncio
from collections.abc import Callable, Sequence, Set
from typing import Any

import structlog
from bson.int64 import Int64
from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.memory import Holding, Memory
from router.merge.membership import ShardSpan
from router.merge.merged_stream import MergedStream
from router.request.stream_request import StreamRequest
from router.stream_settings import StreamSettings
from router.streams.admission import Ticket
from router.streams.cluster_time import ClusterTimeFetcher
from router.streams.noop_writer import NoOpWriter
from router.streams.opening import merged_stream
from router.streams.read_scheduler import ReadScheduler
from router.streams.remote_cursors import RemoteCursors
from router.streams.removed_shards import watch_draining
from router.streams.view_readers import ViewReaders, Waiter
from router.views.log_reader import Batch, LogReader
from shard_client import spans
from shard_client.bson.resume_token import cluster_time_of
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch
from shard_client.replica_set.read_preference import ReadPreference

log = structlog.get_logger()


class RunningStream:
    """A merged stream with its remote cursors, opened by a task of its own, and its readers.

    It closes soon after the last reader has left. Readers pass their log readers to ``take`` and
    ``wait``. ``stream`` and ``views`` are available once ``is_located``. Must be created in a
    running loop.

    ``cluster_time`` tells the start of a stream that starts now; ``noop_writer`` counts the load of
    members, too; ``memory`` counts the remotes, and the bytes of events that are held; ``ticket``
    is returned once the remotes are closed. ``gone`` is called when no reader can enter any more:
    run ``close`` then. The shard spans ``needed`` are read even if their shards have left.
    """

    stream: MergedStream
    views: ViewReaders
    _read_scheduler: ReadScheduler

    def __init__(
        self,
        request: StreamRequest,
        cluster: Cluster,
        cluster_time: ClusterTimeFetcher,
        noop_writer: NoOpWriter,
        limits: StreamSettings,
        memory: Memory,
        ticket: Ticket,
        gone: Callable[["RunningStream"], None],
        needed: Set[ShardSpan] = frozenset(),
    ) -> None:
        if request.passthrough_to_shard is not None:
            limits = limits.for_one_shard()
        self._request = request
        self._cluster = cluster
        self._noop_writer = noop_writer
        self._limits = limits
        self._memory = memory
        self._held = Holding(memory)
        self._ticket = ticket
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._held_since: float | None = None
        """The time since which the low watermark has held back events."""
        self._remotes = RemoteCursors(
            request, cluster, limits, memory, noop_writer.loads, self._batch_arrived,
            self._remote_failed, self._outlasts,
        )  # fmt: skip
        self._draining: asyncio.Task[None] | None = None
        self.readers = 0
        """The number of readers."""
        self._events = 0
        self._lingering: asyncio.TimerHandle | None = None
        self._closed = False
        self.is_located = False
        """Whether its shards and its start are known."""
        self.preparation_done = asyncio.Event()
        """Set once it ``is_located``, or its shards or its start could not be determined."""
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self._opening = self._loop.create_task(
            self._open(cluster_time, needed), name="open remotes"
        )
        self._opening.add_done_callback(self._opening_done)

    # Life cycle.

    async def _open(self, cluster_time: ClusterTimeFetcher, needed: Set[ShardSpan]) -> None:
        """Open the remotes and wait until each has answered; after ``open_timeout``, one shard."""
        limits = self._limits
        most = limits.opening_time(ReadPreference.of(self._request.read_preference))
        deadline = self._loop.time() + most
        with spans.recorded("open remotes", {"db.system.name": "mongodb"}):
            try:
                stream = self.stream = await merged_stream(
                    self._request, self._cluster, cluster_time, limits, needed
                )
                kept, delays = limits.share_filter_bytes, self._noop_writer.loads.reply_delays
                self.views = ViewReaders(stream, kept, delays, self._distributed)
                scheduler = self._read_scheduler = ReadScheduler(
                    stream, self._remotes, self.views, self._noop_writer, limits, self._memory
                )
                self.is_located = True
            finally:
                self.preparation_done.set()
            self._keep()
            scheduler.client_reads()
            scheduler.opening = True
            self._remotes.execute(stream.start(), scheduler.batch_bytes)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._answered
            except TimeoutError:
                remotes = self._remotes.values()
                late = sorted(each.target for each in remotes if not each.opened)
                missing = f"no answer from {', '.join(late)} within {most} s"
                # A shard has accepted the request: the others are waited for in an open stream.
                if not any(each.opened and not each.topology for each in remotes):
                    raise CommandError(
                        ErrorCode.FailedToSatisfyReadPreference, missing
                    ).with_change_stream_label() from None
                log.warning("stream opened without some shards", missing=missing)
            finally:
                scheduler.opening = False

    def _opening_done(self, opening: asyncio.Task[None]) -> None:
        self.preparation_done.set()
        # Callers of ``opened`` get the failure too, but there may be none: retrieve it here.
        if opening.cancelled() or opening.exception() is not None:
            self._end()

    async def located(self) -> None:
        """Wait until it ``is_located``, or the opening is cancelled.

        Raises CommandError if the start cannot be determined, since a retry by the caller would
        fail as well.
        """
        await self.preparation_done.wait()
        if not self.is_located and self._opening.done() and not self._opening.cancelled():
            await self.opened()

    async def opened(self) -> None:
        """Wait until the remotes have answered their openings, as ``_open`` does.

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
        """Kill all remote cursors, within twice ``close_timeout`` plus one connection attempt.

        Idempotent.
        """
        self._closed = True
        for each in (self._lingering, self._opening, self._draining):
            if each is not None:
                each.cancel()
        try:
            await asyncio.wait((self._opening,))
            if self.is_located:
                self._read_scheduler.close()
                self.stop_reading()
                self._held.size = 0
                self.stream.close()
            await self._remotes.closed()
        finally:
            self._ticket.end()

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self._gone(self)

    def enter(self) -> None:
        """Add a reader."""
        self.readers += 1
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        self._keep()

    def leave(self) -> None:
        """Remove a reader; after the last one the stream closes, at once or soon."""
        self.readers -= 1
        self._keep()
        if self.readers or self._closed:
            return
        limits = self._limits
        if limits.share and self.healthy and limits.share_linger > 0:
            if self.is_located:
                self._read_scheduler.flow.clients_left()
            self._lingering = self._loop.call_later(limits.share_linger, self._end)
        else:
            self._end()

    def _keep(self) -> None:
        """Set how much of the log is kept: more for several readers than for one or none."""
        limits = self._limits
        if self.is_located and limits.share:
            alone = min(limits.share_alone_bytes, limits.share_log_bytes)
            self.stream.keep_bytes = limits.share_log_bytes if self.readers > 1 else alone

    # State and range of events.

    @property
    def healthy(self) -> bool:
        """Whether it is opening or open, and its stream has neither failed nor ended."""
        if self._closed or (self._opening.done() and not self.has_opened):
            return False
        return not self.is_located or (self.stream.error is None and not self.stream.ended)

    @property
    def has_opened(self) -> bool:
        """Whether the opening is over, and has not failed."""
        opening = self._opening
        return opening.done() and not opening.cancelled() and opening.exception() is None

    def is_late(self, time: Timestamp) -> bool:
        """Return whether it is far behind ``time``, or is not healthy and never reaches it."""
        if not (self.healthy and self.is_located):
            return not self.healthy
        return time.time - cluster_time_of(self.stream.reached).time > self._limits.share_behind

    def describe(self, cursor_ids: Sequence[int]) -> dict[str, Any]:
        """Return what serverStatus shows of the stream, which ``cursor_ids`` read."""
        fan_out = self.views.fan_out
        return {
            "cursorIds": [Int64(each) for each in cursor_ids],
            "namespace": self._request.namespace,
            "events": Int64(self._events),
            **({"filtered": fan_out.describe()} if fan_out.readers else {}),
            **self._remotes.describe(self.stream),
        }

    # Reading.

    def take(self, log_reader: LogReader, max_events: int | None, max_bytes: int) -> Batch:
        """Return the events that are ready for ``log_reader`` and resume prefetching.

        Raises CommandError if the stream has failed.
        """
        self._read_scheduler.client_reads()
        enough = self._limits.reply_target_bytes if max_events is None else None
        try:
            if max_events != 0 and not log_reader.is_ready():
                self.views.advance(log_reader.view)
            batch = log_reader.take(max_events, max_bytes, enough)
        finally:
            self._stop_if_broken()
        self.views.fan_out.forget(log_reader.view, log_reader.number)
        loads = self._noop_writer.loads
        loads.delivered += len(batch.events)
        loads.delivered_bytes += batch.size
        self._events += len(batch.events)
        self._count()
        self._read_scheduler.flow.client_took(batch.size)
        if not log_reader.view.is_part:
            self.views.schedule()
            self._read_scheduler.read_on()
        return batch

    async def wait(self, waiter: Waiter, timeout: float, log_reader: LogReader) -> None:
        """Wait, ``timeout`` seconds at most, until ``log_reader`` can read or the stream has ended.

        Whoever completes ``waiter`` ends the wait, too.
        """
        scheduler = self._read_scheduler
        scheduler.client_reads()
        if not (self.views.waiting and log_reader.view.is_part):
            # A resumed stream may just have dropped events that its client has, which frees budget.
            scheduler.read_on()
            scheduler.write_noops(self._loop.time())
        try:
            await self.views.wait(log_reader, waiter, timeout)
        finally:
            scheduler.client_reads()

    def stop_reading(self) -> None:
        """Kill the remote cursors; released events can still be read."""
        self._remotes.close()
        self.views.wake()

    # Replies and failures of the remotes.

    def _batch_arrived(self, number: int, batch: CursorBatch) -> None:
        try:
            self._process(number, batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, events may be lost
            self.stream.fail(error)
        self._stop_if_broken()

    def _process(self, number: int, batch: CursorBatch) -> None:
        remote = self._remotes.get(number)
        if remote is None or self._closed:
            return
        actions = self.stream.batch_arrived(number, batch)
        now = self._loop.time()
        if batch.events:
            load = self._noop_writer.loads.of(remote.target)
            load.events += len(batch.events)
            load.event_bytes += batch.size
            if self._held_since is None:
                self._held_since = now
            self._count()
        if actions:
            self._remotes.execute(actions, self._read_scheduler.batch_bytes)
        if remote.topology and self.stream.draining and self._draining is None:
            self._draining = self._loop.create_task(self._watch(), name="watch draining shards")
        self._read_scheduler.batch_arrived(
            number, len(batch.events), batch.operation_time, now, complete=batch.complete
        )
        if not self._answered.done() and all(each.opened for each in self._remotes.values()):
            self._answered.set_result(None)
        self.views.arrived()
        # Prepare the next reply while the client processes the last one.
        self.stream.merge_ahead(self._limits.reply_target_bytes)
        if self._held_since is not None and not self.stream.is_held_back:
            self._noop_writer.loads.low_watermark_waits.record(self._loop.time() - self._held_since)
            self._held_since = None

    async def _watch(self) -> None:
        """Close the remotes of draining shards that have left; write no-ops past the removals."""
        interval = self._limits.removed_shards_interval
        async for actions in watch_draining(self.stream, self._cluster, interval):
            self._remotes.execute(actions, self._read_scheduler.batch_bytes)
            if self.stream.leaving:
                self._read_scheduler.write_noops(self._loop.time(), arriving=True)
            self.views.arrived()
        self._draining = None

    def _stop_if_broken(self) -> None:
        """Stop reading after a failure of the stream itself; its readers get the error."""
        error = self.stream.error
        if error is None or not self._remotes:
            return
        cause = error.__cause__
        if cause is None:  # a member broke its rules
            log.warning("stream failed", error=str(error))
        else:
            log.error("stream broke", error=str(error), exc_info=cause)
        if not self._answered.done():
            self._answered.set_exception(error)
        self.stop_reading()

    def _distributed(self) -> None:
        """Resume prefetching after events have been distributed to filtered readers."""
        self._stop_if_broken()
        self._count()
        self._read_scheduler.read_on()
        self._read_scheduler.write_noops(self._loop.time())

    def _outlasts(self, number: int) -> bool:
        """Return whether the stream waits for a remote however long it is away.

        No event is lost while the low watermark stands still, and a client that resumed would not
        be served sooner, unless the shard has left: drivers end a stream whose resumption fails.
        """
        return self._request.passthrough_to_shard is None and not self.stream.has_left(number)

    def _remote_failed(self, number: int, error: CommandError, address: str | None) -> None:
        remote = self._remotes.get(number)
        if remote is None or self._closed:
            return
        log.warning("stream failed", target=remote.target, address=address, error=str(error))
        if remote.topology and error.code == ErrorCode.ChangeStreamHistoryLost:
            # A client that resumes causes the shard list to be read again, so no event is lost.
            error = CommandError(ErrorCode.RetryChangeStream, error.message)
        self.stream.remote_failed(number, error, address)
        if not self._answered.done():
            if remote.opened:
                # A getMore failed while other remotes were being opened; the client's first
                # getMore raises the error.
                self._answered.set_result(None)
            else:
                self._answered.set_exception(error.with_change_stream_label())
        self.stop_reading()

    def _count(self) -> None:
        """Update the count of bytes held, unless closed: the rest is freed with the last reader."""
        if not self._closed:
            self._held.size = self.stream.held_bytes + self.views.fan_out.held_bytes

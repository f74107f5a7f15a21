"""A running stream: one set of remotes that several clients read, from its opening to its end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from functools import cached_property
from itertools import count
from typing import Any, Final

import structlog
from bson.int64 import Int64
from bson.timestamp import Timestamp

from router.bson_text import render, shortened
from router.limits.cursor_admission import Admitted
from router.limits.memory import Holding
from router.request.stream_request import StreamRequest
from router.stream.draining_shards import watch_draining
from router.stream.merge.merged_stream import MergedStream
from router.stream.readers.fan_out import FanOut
from router.stream.readers.log_reader import Batch, LogReader
from router.stream.readers.waiting_readers import Waiter, WaitingReaders, complete
from router.stream.remotes.flow_control import FlowControl
from router.stream.remotes.open_remotes import OpenRemotes, StreamResources
from router.stream.remotes.read_scheduler import ReadScheduler
from router.stream.remotes.remote import Remote
from router.tasks import AwaitedTasks, result_of
from shard_client.bson.resume_token import cluster_time_of
from shard_client.errors import CommandError, ErrorCode
from shard_client.remote_cursor.cursor_reply import CursorBatch

log = structlog.get_logger()

_NUMBERS = count(1)
CLOSED: Final = "the stream was closed while it was being opened"
_LONGEST = 200
"""Most characters of the options and stages in a stream's description."""


class RunningStream:
    """A merged stream with its remotes, which it reads, and its readers.

    It ends soon after the last reader has left. Readers pass their log readers to ``take`` and
    ``wait``. A batch of a remote is merged; then remotes are opened for shards that have joined,
    the next getMore is decided, and the readers for whom there are events now are woken.

    ``admitted`` is closed once the remotes are. ``retire`` is called once, when no reader may
    enter any more: it has to run ``close``. Must be created in a running loop.
    """

    def __init__(
        self,
        request: StreamRequest,
        merged: MergedStream,
        resources: StreamResources,
        admitted: Admitted,
        retire: Callable[["RunningStream"], None],
    ) -> None:
        self.merged = merged
        self.readers = 0
        """The number of readers."""
        self.number = next(_NUMBERS)
        """A number that no other stream of the process has."""
        self._request = request
        self._cluster = resources.cluster
        self._loads = resources.loads
        self._settings = settings = resources.settings
        self._memory = Holding(resources.memory)
        self._admitted = admitted
        self._retire = retire
        self._loop = asyncio.get_running_loop()
        self._held_back_since: float | None = None
        """The time since which the low watermark has held back events."""
        self.fan_out = FanOut(merged, settings.share_filter_bytes)
        self.waiting = WaitingReaders(merged, self.fan_out, self._stepped)
        self._flow = flow = FlowControl(
            settings, resources.memory, is_fanned_out=lambda: self.fan_out.readers > 0
        )
        self._remotes = remotes = OpenRemotes(
            request, merged, resources, self.start_task, self.batch_arrived, self.remote_failed
        )
        self._read_scheduler = ReadScheduler(merged, remotes, flow, resources)
        self._tasks = AwaitedTasks()
        """The tasks that read and close remotes, or watch for shards that have left."""
        self._draining: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        """The opening: done when the remotes have replied, or one shard has by the deadline."""
        self._is_retired = False
        """Whether no reader may enter: it could not be opened, or the last reader has left it."""
        self._opening_timer: asyncio.TimerHandle | None = None
        self._events = 0
        self._waited_until = self._loop.time()
        """The time at which a client last stopped waiting."""
        self._lingering: asyncio.TimerHandle | None = None
        """Ends a stream that has no readers."""
        self._size_log()

    # Life cycle.

    def open(self, deadline: float) -> None:
        """Begin to open the remotes; ``wait_opened`` waits for them up to the deadline."""
        self._opening_timer = self._loop.call_at(deadline, self._open_without_late)
        self._read_scheduler.resume_prefetch()
        self._remotes.follow_merge()

    def _open_without_late(self) -> None:
        """Open the stream with the shards that have answered by the deadline, one at least."""
        if self._opened.done():
            return
        late = sorted(remote.target for remote in self._remotes if not remote.in_merge.has_replied)
        seconds = self._settings.opening_time(self._remotes.preference)
        missing = f"no answer from {', '.join(late)} within {seconds} s"
        # A shard has accepted the request: the others are waited for in an open stream.
        if any(remote.in_merge.has_replied and not remote.topology for remote in self._remotes):
            log.warning("stream opened without some shards", missing=missing)
            self._become_open()
        else:
            error = CommandError(ErrorCode.FailedToSatisfyReadPreference, missing)
            self._fail_opening(error.with_change_stream_label())

    def _become_open(self) -> None:
        """Let ``wait_opened`` return, unless the opening is over."""
        if not self._opened.done():
            self._opened.set_result(None)

    def _fail_opening(self, error: CommandError) -> None:
        """Let ``wait_opened`` raise ``error``, and end the stream, unless the opening is over."""
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # of which there may be no waiter
            self._end()

    def _end(self) -> None:
        """Let no reader enter any more, and retire the stream."""
        if not self._is_retired:
            self._is_retired = True
            self._retire(self)

    @property
    def has_opened(self) -> bool:
        """Whether ``wait_opened`` returns at once."""
        return self._opened.done() and not self._is_retired

    async def wait_opened(self) -> None:
        """Wait until each remote has answered; after the deadline, one shard.

        Raises CommandError, the first failure, or 91 if the stream is closed meanwhile.
        """
        await result_of(self._opened, CLOSED)

    async def close(self) -> None:
        """Kill all remote cursors, within twice ``close_timeout`` plus one connection attempt.

        No task of the stream is left. Idempotent.
        """
        self._is_retired = True
        self._opened.cancel()
        self.waiting.cancel_step()
        for pending in (self._opening_timer, self._lingering, self._draining):
            if pending is not None:
                pending.cancel()
        try:
            self.stop_reading()
            self._read_scheduler.close()
            self._memory.size = 0
            self.merged.close()
            await self._tasks.wait()
        finally:
            self._admitted.close()

    def enter(self) -> None:
        """Add a reader."""
        self.readers += 1
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        self._read_scheduler.resume_prefetch()
        self._size_log()

    def leave(self) -> None:
        """Remove a reader; after the last one the stream closes, at once or soon."""
        self.readers -= 1
        self._size_log()
        if self.readers or self._is_retired:
            return
        settings = self._settings
        if settings.share and self.healthy and settings.share_linger > 0:
            self._flow.end_prefetch()
            self._lingering = self._loop.call_later(settings.share_linger, self._end)
        else:
            self._end()

    def _size_log(self) -> None:
        """Set how much of the log is kept: more for several readers than for one or none."""
        settings = self._settings
        if settings.share:
            alone = min(settings.share_alone_bytes, settings.share_log_bytes)
            self.merged.keep_bytes = settings.share_log_bytes if self.readers > 1 else alone

    # State and range of events.

    @property
    def healthy(self) -> bool:
        """Whether readers may enter: it is not closed, and has neither failed nor ended."""
        return not self._is_retired and self.merged.error is None and not self.merged.ended

    def is_late(self, time: Timestamp) -> bool:
        """Return whether it is far behind ``time``, or is not healthy and never reaches it."""
        if not self.healthy:
            return True
        return time.time - cluster_time_of(self.merged.reached).time > self._settings.share_behind

    @property
    def is_waited_for(self) -> bool:
        """Whether a client waits for events, or has waited within ``prefetch_time``.

        Otherwise the shards wait for the clients, so their watermarks do not tell how late they
        are.
        """
        waited_until = self._waited_until + self._settings.prefetch_time
        return self.waiting.has_readers or self._loop.time() < waited_until

    def readable_until(self, now: float) -> float:
        """Return the time up to which clients have events to read; both are seconds since 1970.

        What has not arrived from the shards does not count while clients wait for it, or while the
        slowest shard is asked for it. Otherwise the shard waits for the clients, and all events up
        to ``now`` count.
        """
        slowest = self._remotes.slowest
        is_asked = slowest is not None and slowest.state != "paused"
        waits = self.is_waited_for or is_asked
        return cluster_time_of(self.merged.reached).time if waits else now

    @cached_property
    def _asked(self) -> str:
        """The options and stages by which streams of one namespace differ, as text."""
        options = self._request.change_stream_options
        parts = [*([options] if options else []), *self._request.stages]
        return shortened(", ".join(map(render, parts)), _LONGEST)

    def describe(self, cursor_ids: Sequence[int]) -> dict[str, Any]:
        """Return what serverStatus shows of the stream, which ``cursor_ids`` read."""
        return {
            "cursorIds": [Int64(cursor_id) for cursor_id in cursor_ids],
            "stream": self.number,
            "namespace": self._request.namespace,
            "pipeline": self._asked,
            "events": Int64(self._events),
            "waitedFor": self.is_waited_for,
            **({"filtered": self.fan_out.describe()} if self.fan_out.readers else {}),
            **self._remotes.describe(),
        }

    # Reading.

    def take(self, log_reader: LogReader, max_events: int | None, max_bytes: int) -> Batch:
        """Return the events that are ready for ``log_reader`` and resume prefetching.

        Raises CommandError if the stream has failed.
        """
        self._read_scheduler.resume_prefetch()
        enough = self._settings.reply_target_bytes if max_events is None else None
        part = log_reader.part
        try:
            if part is not None and not log_reader.prepare():
                self.waiting.advance(asked=True)
            batch = log_reader.take(max_events, max_bytes, enough)
        finally:
            self._stop_if_broken()
        if part is not None:
            self.fan_out.forget(part, log_reader.number)
        loads = self._loads
        loads.delivered += len(batch.events)
        loads.delivered_bytes += batch.size
        self._events += len(batch.events)
        self._count_memory()
        self._flow.record_taken(batch.size)
        if part is None:
            self.waiting.schedule_step()
            self._read_scheduler.read_on()
        return batch

    async def wait(self, waiter: Waiter, timeout: float, log_reader: LogReader) -> None:
        """Wait, ``timeout`` seconds at most, until ``log_reader`` can read or the stream has ended.

        Whoever completes ``waiter`` ends the wait, too.
        """
        scheduler = self._read_scheduler
        scheduler.resume_prefetch()
        if not self.waiting.has_readers or log_reader.part is None:
            # A resumed stream may just have dropped events that its client has, which frees budget.
            scheduler.read_on()
            scheduler.check_laggards()
        timer = self._loop.call_later(timeout, complete, waiter)
        try:
            self.waiting.add(log_reader, waiter)
            self.waiting.schedule_step()
            woken_at = await waiter
            if woken_at is not None:
                self._loads.reply_delays.record(self._loop.time() - woken_at)
        finally:
            timer.cancel()
            self.waiting.remove(log_reader)
            self._waited_until = self._loop.time()
            scheduler.resume_prefetch()

    def _stepped(self) -> None:
        """Resume reading as far as a step of the views has freed budget."""
        self._stop_if_broken()
        self._count_memory()
        self._read_scheduler.read_on()
        self._read_scheduler.check_laggards()

    def stop_reading(self) -> None:
        """Kill the remote cursors; released events can still be read."""
        self._remotes.close()
        self.waiting.wake()

    # The remotes.

    def start_task(
        self, name: str, work: Callable[[], Awaitable[None]], context: Context | None = None
    ) -> asyncio.Task[None]:
        """Run ``work`` in a task; the stream fails if it raises, since events may be lost."""

        async def guarded() -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - whatever it is, no reader may wait for ever
                self.merged.fail(error)
                self._stop_if_broken()

        return self._tasks.start(guarded(), name, context)

    def batch_arrived(self, remote: Remote, batch: CursorBatch) -> None:
        """Process a batch of an open remote."""
        self.merged.batch_arrived(remote.number, batch)
        now = self._loop.time()
        if batch.events:
            load = self._loads.of(remote.target)
            load.events += len(batch.events)
            load.event_bytes += batch.size
            if self._held_back_since is None:
                self._held_back_since = now
            self._count_memory()
        self._remotes.follow_merge()
        if remote.topology and self.merged.membership.draining and self._draining is None:
            self._draining = self.start_task("watch draining shards", self._watch_draining)
        waited_for = self.waiting.has_readers or not self.has_opened
        self._read_scheduler.batch_arrived(remote, batch, now, waited_for=waited_for)
        if not self._opened.done() and all(each.in_merge.has_replied for each in self._remotes):
            self._become_open()
        self.waiting.batch_merged()
        if self._held_back_since is not None and not self.merged.is_held_back:
            self._loads.low_watermark_waits.record(self._loop.time() - self._held_back_since)
            self._held_back_since = None
        self._stop_if_broken()

    async def _watch_draining(self) -> None:
        interval = self._settings.removed_shards_interval
        await watch_draining(self.merged, self._cluster, interval, self._list_applied)
        self._draining = None

    def _list_applied(self) -> None:
        """Close the remotes of shards that have left; no-ops are written past the removals."""
        self._remotes.follow_merge()
        self._read_scheduler.check_laggards(arriving=True)
        self.waiting.batch_merged()

    def _stop_if_broken(self) -> None:
        """Stop reading after a failure of the stream itself; its readers get the error."""
        error = self.merged.error
        if error is None or not self._remotes:
            return
        cause = error.__cause__
        if cause is None:  # a member broke its rules
            log.warning("stream failed", error=str(error))
        else:
            log.error("stream broke", error=str(error), exc_info=cause)
        self._fail_opening(error)
        self.stop_reading()

    def remote_failed(self, remote: Remote, error: CommandError) -> None:
        """End the stream with ``error``, after the events that are ready."""
        target, address = remote.target, remote.cursor.address
        log.warning("stream failed", target=target, address=address, error=str(error))
        if remote.topology and error.code == ErrorCode.ChangeStreamHistoryLost:
            # A client that resumes causes the shard list to be read again, so no event is lost.
            error = CommandError(ErrorCode.RetryChangeStream, error.message)
        self.merged.remote_failed(remote.number, error, address)
        if not remote.in_merge.has_replied:
            self._fail_opening(error.with_change_stream_label())
        else:
            # If other remotes are still being opened, the client's first getMore raises the error.
            self._become_open()
        self.stop_reading()

    def _count_memory(self) -> None:
        """Update the count of bytes held, unless closed: the rest is freed with the last reader."""
        if not self._is_retired:
            self._memory.size = self.merged.held_bytes + self.fan_out.held_bytes

"""The stream runner: opens the remotes of a merged stream, feeds it, and serves its readers."""

import asyncio
from dataclasses import replace
from math import inf

import structlog

from router.catalog.cluster import Cluster
from router.change_stream.actions import Action, CloseRemote, OpenRemote, ReopenRemote
from router.change_stream.log_reader import Batch, LogReader
from router.change_stream.merged_stream import MergedStream
from router.change_stream.request import StreamRequest
from router.memory import Holding, Memory
from router.stream_settings import StreamSettings
from router.streams.delays import Delays
from router.streams.departures import Departures
from router.streams.description import FilterCounts, StreamDescription
from router.streams.filtered_readers import FilteredReaders
from router.streams.nudge_sender import NudgeSender
from router.streams.openings import opening_of, progress_opening_of
from router.streams.remote import Remote
from router.streams.steering import Steering
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, ProtocolError
from shard_client.remote_cursor.cursor_reply import CursorBatch
from shard_client.remote_cursor.progress_cursor import Probing
from shard_client.remote_cursor.remote_cursor import Opening, RemoteCursor
from shard_client.replica_set.read_preference import PRIMARY, ReadPreference

log = structlog.get_logger()


class StreamRunner:
    """Executes a MergedStream: its actions, its remote cursors, and the wakes of its readers.

    It holds no client state: readers pass their log readers to ``take`` and waiters to ``wait``.
    ``Steering`` keeps the budgets and wait times of the remotes.
    """

    def __init__(
        self,
        stream: MergedStream,
        request: StreamRequest,
        cluster: Cluster,
        nudge_sender: NudgeSender,
        limits: StreamSettings,
        memory: Memory,
    ) -> None:
        self.stream = stream
        self._memory = memory
        self._held = Holding(memory)
        self._request = request
        self._cluster = cluster
        self._limits = limits
        self._nudge_sender = nudge_sender
        self._loop = asyncio.get_running_loop()
        self._delays = Delays(nudge_sender.loads, self._loop)
        self._remotes: dict[int, Remote] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        self._opening: asyncio.Future[None] | None = None
        self._departures = Departures(stream, cluster, self._left, limits.departure_interval)
        self.filtered = FilteredReaders(stream, limits.share_filter_bytes, self._distributed)
        self._steering = Steering(
            stream, self._remotes, self.filtered, self._waiters, nudge_sender, limits, memory
        )
        self._closed = False
        self._taken = 0
        self._preference = ReadPreference.of(request.read_preference)

    async def open(self, timeout: float) -> None:
        """Open the remotes and wait up to ``timeout`` seconds until each has answered its opening.

        Raises CommandError: the first failure of a remote, or a timeout. Call ``close`` then.
        """
        self._steering.client_reads()
        self._steering.opening = True
        opening = self._opening = self._loop.create_future()
        self._execute(self.stream.start())
        try:
            async with asyncio.timeout(timeout):
                await opening
        except TimeoutError:
            late = sorted(remote.target for remote in self._remotes.values() if not remote.opened)
            raise CommandError(
                ErrorCode.FailedToSatisfyReadPreference,
                f"no answer from {', '.join(late)} within {self._limits.open_timeout} s",
            ).with_change_stream_label() from None
        finally:
            self._opening = None
            self._steering.opening = False

    def take(self, log_reader: LogReader, max_events: int | None, max_bytes: int) -> Batch:
        """Return the events that are ready for ``log_reader`` and resume prefetching.

        Raises CommandError if the stream has failed.
        """
        self._steering.client_reads()
        enough = self._limits.reply_target_bytes if max_events is None else None
        try:
            if max_events != 0 and not log_reader.release():
                self.filtered.advance(log_reader.stream)
            batch = log_reader.take(max_events, max_bytes, enough)
        finally:
            self._stop_if_broken()
        self.filtered.forget(log_reader.stream, log_reader.number)
        loads = self._nudge_sender.loads
        loads.delivered += len(batch.events)
        loads.delivered_bytes += batch.size
        self._taken += len(batch.events)
        self._count()
        self._steering.client_took(batch.size)
        if not self.filtered.serves(log_reader):
            self.filtered.schedule()
            self._steering.read_on()
        return batch

    def clients_left(self) -> None:
        """Stop prefetching, as the stream has no client; the next one resumes it."""
        self._steering.clients_left()

    def describe(self, cursor_ids: tuple[int, ...]) -> StreamDescription:
        """Return a description of the stream and its remotes; ``cursor_ids`` read it."""
        stream = self.stream
        holder = self._remotes.get(stream.gate_holder) if stream.gate_holder is not None else None
        return StreamDescription(
            cursor_ids=cursor_ids,
            namespace=self._request.namespace,
            events=self._taken,
            buffered_bytes=stream.all_buffered_bytes,
            gate_holder=None if holder is None else holder.target,
            gate_reason=None if holder is None else holder.gate_reason,
            waiting=stream.waiting_for is not None,
            remotes=tuple(
                remote.describe(stream.promise(number), stream.buffered_bytes(number))
                for number, remote in self._remotes.items()
            ),
            filtered=FilterCounts.of(self.filtered.fan_out),
        )

    async def wait(
        self, waiter: asyncio.Future[None], timeout: float, log_reader: LogReader
    ) -> None:
        """Wait until ``waiter`` is released or ``timeout`` seconds have passed.

        It is released when new events become readable for ``log_reader`` or the stream ends.
        """
        self._steering.client_reads()
        reads = log_reader.stream
        if not (self.filtered.waiting and self.filtered.serves(log_reader)):
            # A resumed stream may just have dropped events that its client has, which frees budget.
            self._steering.read_on()
            self._steering.nudge_laggards(self._loop.time())
        if not self.filtered.add_waiter(log_reader, waiter):
            self._waiters.add(waiter)
        timer = self._loop.call_later(timeout, release, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._delays.went_on(waiter)
            self.filtered.remove_waiter(reads)
            self._waiters.discard(waiter)
            self._steering.client_reads()

    def stop_reading(self) -> None:
        """Kill the remote cursors; released events can still be read."""
        for number in list(self._remotes):
            self._close_remote(number)
        self._wake()

    def _wake(self) -> None:
        self._delays.woke(self._waiters)
        for waiter in self._waiters:
            release(waiter)
        self._waiters.clear()
        self.filtered.wake()

    async def close(self) -> None:
        """Kill all remote cursors, within twice ``close_timeout`` plus one connection attempt."""
        if not self._closed:
            self._closed = True
            self._steering.close()
            self._departures.close()
            self.stop_reading()
            self._held.size = 0
        while self._closing:
            await asyncio.wait(self._closing)

    # Actions of the merged stream.

    def _execute(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, OpenRemote):
                self._open_remote(action)
            elif isinstance(action, ReopenRemote):
                self._reopen_remote(action)
            elif isinstance(action, CloseRemote):
                self._close_remote(action.remote)

    def _open_remote(self, action: OpenRemote) -> None:
        log.debug("open remote", target=action.target, start_at=action.start_at)
        remote = self._remotes[action.remote] = Remote(action, self._limits, self._loop.time())
        self._memory.add(remotes=1)
        self._start(action.remote, remote, opening_of(self._request, action))

    def _reopen_remote(self, action: ReopenRemote) -> None:
        remote = self._remotes[action.remote]
        self._end(remote)
        self._start(action.remote, remote, opening_of(self._request, action))

    def _start(self, number: int, remote: Remote, opening: Opening) -> None:
        preference = PRIMARY if remote.topology else self._preference
        settings = self._limits.remote_settings(self._steering.batch_bytes)
        if remote.topology:
            # No event is lost while the gate stands still, but an opening to resume would fail.
            settings = replace(settings, failure_timeout=inf)
        remote.cursor = RemoteCursor(
            remote.target,
            dialer=self._cluster.dialer(remote.target, remote.host or None, preference=preference),
            opening=opening,
            on_batch=lambda batch: self._batch_arrived(number, batch),
            on_failure=lambda error, address: self._remote_failed(number, error, address),
            clock=self._cluster.clock,
            settings=settings,
            sent=self._nudge_sender.loads.of(remote.target),
            probing=None if remote.topology else self._probing(remote, opening),
        )
        remote.cursor.start()

    def _probing(self, remote: Remote, opening: Opening) -> Probing:
        """Return the settings of the progress cursor that reports the member's progress."""
        return Probing(
            opening=progress_opening_of(opening),
            fragments=self._request.splits_large_events,
            on_cost=lambda seconds: remote.probes.spend(self._loop.time(), seconds),
        )

    def _close_remote(self, number: int) -> None:
        remote = self._remotes.pop(number, None)
        if remote is not None:
            self._memory.add(remotes=-1)
            self._end(remote)

    def _end(self, remote: Remote) -> None:
        remote.end_rest()
        if remote.cursor is not None:
            task = self._loop.create_task(remote.cursor.close(), name=f"close {remote.target}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            remote.cursor = None

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
        try:
            actions = self.stream.batch_arrived(number, batch)
        except ProtocolError as error:
            failure = CommandError(ErrorCode.InternalError, str(error))
            self._remote_failed(number, failure, None)
            return
        now = self._loop.time()
        if batch.events:
            load = self._nudge_sender.loads.of(remote.target)
            load.events += len(batch.events)
            load.event_bytes += batch.size
            self._delays.arrived(now)
            self._count()
        remote.record(batch)
        if actions:
            self._execute(actions)
        if remote.topology:
            self._departures.watch()
        if not remote.opened:
            self._has_opened(remote)
        self._steering.batch_arrived(number, remote, now, len(batch.events))
        stream = self.stream
        if stream.error is None and self._waiters and (stream.release() or stream.ended):
            # Waiting clients have consumed the log, so new events wake them.
            self._wake()
        self.filtered.arrived()
        # Prepare the next reply while the client processes the last one.
        stream.merge_ahead(self._limits.reply_target_bytes)
        if self._delays.waiting and not stream.held_back:
            self._delays.released()

    def _left(self, actions: list[Action]) -> None:
        """Execute the actions after draining shards may have left, and nudge past the removals."""
        self._execute(actions)
        if self.stream.leaving:
            self._steering.nudge_laggards(self._loop.time(), arriving=True)
        if self._waiters and (self.stream.release() or self.stream.ended):
            self._wake()
        self.filtered.arrived()

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
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(error)
        self.stop_reading()

    def _distributed(self) -> None:
        """Resume prefetching after events have been distributed to filtered readers."""
        self._stop_if_broken()
        self._count()
        self._steering.read_on()
        self._steering.nudge_laggards(self._loop.time())

    def _remote_failed(self, number: int, error: CommandError, address: str | None) -> None:
        remote = self._remotes.get(number)
        if remote is None or self._closed:
            return
        log.warning("stream failed", target=remote.target, address=address, error=str(error))
        if remote.topology and error.code == ErrorCode.ChangeStreamHistoryLost:
            # A client that resumes causes the shard list to be read again, so no event is lost.
            error = CommandError(ErrorCode.RetryChangeStream, error.message)
        self.stream.remote_failed(number, error, address)
        if self._opening is not None and not self._opening.done():
            if remote.opened:
                # A getMore failed while other remotes were being opened; the client's first
                # getMore raises the error.
                self._opening.set_result(None)
            else:
                self._opening.set_exception(error.with_change_stream_label())
        self.stop_reading()

    def _has_opened(self, remote: Remote) -> None:
        remote.opened = True
        if (
            self._opening is not None
            and not self._opening.done()
            and all(each.opened for each in self._remotes.values())
        ):
            self._opening.set_result(None)

    def _count(self) -> None:
        """Update the count of bytes held, unless closed: the rest is freed with the last reader."""
        if not self._closed:
            self._held.size = self.stream.held_bytes + self.filtered.fan_out.held_bytes


def release(waiter: asyncio.Future[None]) -> None:
    """Complete ``waiter`` if it is not done yet."""
    if not waiter.done():
        waiter.set_result(None)

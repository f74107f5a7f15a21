"""What one client reads: its place in a stream, and its moves between streams."""

import asyncio
from collections.abc import Set
from contextlib import ExitStack
from math import inf
from typing import Self

import structlog
from bson.timestamp import Timestamp

from router.catalog.collection_kind import may_be_view
from router.limits.cursor_admission import Quota
from router.limits.memory import reply_share
from router.request.stream_request import StreamRequest
from router.stream.merge.shard_membership import ShardSpan
from router.stream.open_streams import OpenStreams
from router.stream.readers.log_reader import Batch, LogReader
from router.stream.readers.resume_point import starting_point
from router.stream.readers.views import PartialView
from router.stream.readers.waiting_readers import Waiter, complete
from router.stream.running_stream import RunningStream
from router.stream.sharing_policy import Candidates
from router.stream.sources import Source
from shard_client import spans
from shard_client.bson.resume_token import TIME_DIGITS, cluster_time_of, is_high_water_mark
from shard_client.errors import RESUMABLE_LABEL, CommandError, ErrorCode

log = structlog.get_logger()


class ClientReader:
    """What one client reads of a stream that may serve others as well.

    It delays no other client (docs/design.md#many-clients). If the log drops events that the client
    still needs, it moves to a stream that covers them, which is opened if there is none, and joins
    the main one again once it has caught up. It also moves where its events should come from
    another source from then on (docs/sharing.md). Streams that are opened for it are charged to
    ``quota``. Create it with ``open``; only one ``next_batch`` may run at a time.
    """

    log_reader: LogReader

    def __init__(self, streams: OpenStreams, candidates: Candidates, quota: Quota) -> None:
        self.interrupted: CommandError | None = None
        """The error with which ``interrupt`` has ended it."""
        self._streams = streams
        self._candidates = candidates
        self._quota = quota
        self._loop = asyncio.get_running_loop()
        self._source = candidates.own
        self._since = self._loop.time()
        """When it began to read the source."""
        self._beyond = b""
        """The sort key at which the last wider stream ended: before it no wider one is entered."""
        self._waiter: Waiter | None = None
        self._reads: RunningStream | asyncio.Task[None] | None = None
        """The stream that it reads, or its move to another one, which runs or has failed; None
        before it has entered the first one, and once it is closed."""
        self._joined = ExitStack()
        """Counts the client in the policy, until it is closed."""

    # Opening.

    @classmethod
    async def open(cls, streams: OpenStreams, request: StreamRequest, quota: Quota) -> Self:
        """Return a reader from the start of ``request`` on. Raises CommandError."""
        attributes = {"db.system.name": "mongodb", "db.namespace": request.database}
        with spans.recorded("open change stream", attributes) as span:
            if request.collection is not None:
                span.set_attribute("db.collection.name", request.collection)
            candidates = streams.policy.candidates(request)
            reader = cls(streams, candidates, quota)
            streams.policy.join(candidates, reader._since)
            with ExitStack() as joined:
                joined.callback(lambda: streams.policy.leave(candidates, reader._loop.time()))
                readers = await reader._begin(request)
                reader._joined = joined.pop_all()
            span.set_attribute("mergerouter.readers", readers)
            return reader

    async def _begin(self, request: StreamRequest) -> int:
        """Enter a stream; return the number of its readers."""
        start_at = request.start_time
        source = self._preferred(start_at)
        if source.is_wider and request.collection is not None:
            cluster, timeout = self._streams.cluster, self._streams.resources.settings.reply_timeout
            if await may_be_view(cluster, request.database, request.collection, timeout):
                source = self._candidates.own  # its shards refuse the name of a view
        source, stream, start_at = await self._enter(source, start_at)
        try:
            point = starting_point(request, start_at, self._streams.cluster.versions.of_tokens)
            self.log_reader = LogReader(source.open(stream.fan_out, point.after), point)
        except BaseException:
            stream.leave()
            raise
        self._reads = stream
        self._source, self._since = source, self._loop.time()
        return stream.readers

    async def _enter(
        self,
        source: Source,
        start_at: Timestamp | None,
        after: bytes | None = None,
        needed: Set[ShardSpan] = frozenset(),
    ) -> tuple[Source, RunningStream, Timestamp]:
        """Return the stream of ``source``, entered, and the time from which the client reads it.

        It is the client's own stream if another one cannot be opened. Arguments as for
        ``OpenStreams.find_or_open``. Raises CommandError if the client's own cannot be opened.
        """
        own, streams, begun = self._candidates.own, self._streams, self._loop.time()
        wanted = start_at, self._quota, after, needed
        if source is not own:
            try:
                return source, *await streams.find_or_open(source.request, *wanted)
            except CommandError as error:
                is_over = self._loop.time() - begun >= streams.opening_time(own.request)
                if RESUMABLE_LABEL in error.labels and (
                    start_at is None or (after is None and is_over)
                ):
                    raise  # its own stream would need the same servers, and as long
                now = self._loop.time()
                streams.policy.record_failure(self._candidates, source, error, begun, now)
        try:
            return own, *await streams.find_or_open(own.request, *wanted)
        except CommandError as error:
            if after is None or RESUMABLE_LABEL not in error.labels:
                raise
            log.info("a client waits for the shard list", error=str(error))
        # The client has an open cursor, which an outage of the config server does not end.
        await streams.cluster.shards(inf)
        return own, *await streams.find_or_open(own.request, *wanted)

    # Reading.

    @property
    def stream(self) -> RunningStream | None:
        """The stream that it reads; None during a move and after ``close``."""
        return self._reads if isinstance(self._reads, RunningStream) else None

    @property
    def reply_bytes(self) -> int:
        """Bytes of events that one reply may have now."""
        return reply_share(self._streams.resources.settings, self._streams.policy.clients)

    def prepare(self) -> bool:
        """Release events if necessary; return whether ``take`` has a result at once."""
        if self.stream is None:
            return self._failure_of_move is not None
        return self.log_reader.prepare()

    def first_batch(self) -> Batch:
        """Return the opening's batch, which has no events. Raises CommandError."""
        try:
            return self.log_reader.first_batch()
        except CommandError as error:
            return self._move_after(error)

    async def next_batch(self, batch_size: int | None, max_time: float) -> Batch:
        """Return at most ``batch_size`` ready events; wait up to ``max_time`` seconds for one.

        ``batch_size`` None means as many as fit. If no event arrives, the batch is empty, with
        a postBatchResumeToken that may have advanced. Raises CommandError, labelled as mongos
        labels it, if the stream has failed or the reader was interrupted. Cancellation loses no
        events.
        """
        deadline = self._loop.time() + max_time
        stream = self.stream if max_time > 0 and self.interrupted is None else None
        if stream is not None and stream.waiting.should_gather(self.log_reader, batch_size):
            await self._wait(max_time)  # the ready events are few
        await self.until_ready(deadline)
        if self.interrupted is not None:
            raise self.interrupted
        return self.take(batch_size)

    def take(self, max_events: int | None) -> Batch:
        """Return the events that are ready, without waiting, and resume prefetching.

        Raises CommandError if the stream has failed.
        """
        if self.stream is None or self.log_reader.lost:
            # Start the move here too, for clients that never wait.
            return self._move()
        try:
            batch = self.stream.take(self.log_reader, max_events, self.reply_bytes)
        except CommandError as error:
            return self._move_after(error)
        if batch.closed and self.stream.merged.ended:
            self.stream.stop_reading()
        return batch

    async def until_ready(self, deadline: float) -> None:
        """Wait until ``take`` has a result or it is interrupted, up to ``deadline`` of the loop."""
        while self.interrupted is None and not self.prepare():
            left = deadline - self._loop.time()
            if left <= 0:
                break
            await self._wait(left)

    async def _wait(self, timeout: float) -> None:
        """Wait until events may be ready or it is interrupted, ``timeout`` seconds at most."""
        if self._change_stream():
            return
        waiter = self._waiter = self._loop.create_future()
        try:
            if self.stream is not None:
                await self.stream.wait(waiter, timeout, self.log_reader)
            else:
                await asyncio.wait((waiter,), timeout=timeout)
        finally:
            self._waiter = None

    def interrupt(self, reason: CommandError) -> None:
        """Fail pending and later ``next_batch`` calls at once with ``reason``."""
        if self.interrupted is None:
            self.interrupted = reason
            self._wake()

    def _wake(self) -> None:
        """End the wait."""
        if self._waiter is not None:
            complete(self._waiter)

    def close(self) -> None:
        """Stop reading; remotes without other readers are closed soon. Idempotent."""
        self._leave(self.log_reader.part)
        self._joined.close()

    def _leave(self, part: PartialView | None, into: RunningStream | None = None) -> None:
        """Leave the stream that it reads, and its ``part`` of it, for one that it has entered."""
        left, self._reads = self._reads, into
        if isinstance(left, RunningStream):
            try:
                if part is not None:
                    left.fan_out.close(part)
            finally:
                left.leave()
        elif left is not None:
            left.cancel()

    # From one stream to another. It joins an open stream that has the next events, at once; or it
    # moves: it leaves its stream, and a task enters another one, which is opened if there is none.
    #
    #   its stream                               it goes to
    #   is not the preferred source's            the preferred source: joins, or moves if it may
    #   is not its source's main stream          the main stream: joins
    #   has dropped the next events              the preferred source, or its own: moves
    #   has failed, or has ended as a wider one  its own, while the failure is recent: moves

    def _preferred(self, start_at: Timestamp | None = None) -> Source:
        """Return the source that the client should read from ``start_at`` on; None means now."""
        streams, now = self._streams, self._loop.time()
        late = start_at is not None and not streams.is_recent(start_at)
        return streams.policy.choose_source(self._candidates, self._source, now, late=late)

    def _may_narrow(self, source: Source, after: bytes) -> bool:
        """Return whether the client may read its part of ``source`` beyond a sort key.

        It may read a part of a wider stream from the beginning of a cluster time on, or beyond a
        high water mark. Beyond an event it may not: that event, or one that a filter has left out,
        may be the cause of an invalidate that is still to come. Nor may it before the end of the
        wider stream that it has left.
        """
        if not source.is_wider:
            return True
        part = self.log_reader.part
        if after < self._beyond or (part is not None and part.incarnation.end):
            return False
        return len(after) == TIME_DIGITS or is_high_water_mark(after)

    def _change_stream(self) -> bool:
        """Go to another stream by the table above; return whether it has joined one at once."""
        stream = self.stream
        if stream is None:
            return False  # it moves already
        if self.log_reader.lost:
            self._move()
            return False
        if self.log_reader.part is not None and self._source is not self._candidates.own:
            demand = self._candidates.way_of(self._source).demand
            demand.record(self._source.key, stream.fan_out.traffic, self._loop.time())
        source = self._preferred()
        main = self._streams.stream_to_join(source.key)
        if main is not None and main is not stream and self._join(source, main):
            return True
        if source.key != self._source.key and self._should_move_to(source):
            self._move()
        return False

    def _join(self, source: Source, main: RunningStream) -> bool:
        """Continue on ``main``, a stream of ``source``, if that has the next events.

        Return whether it does. What is ready on its own stream is read there first.
        """
        log_reader = self.log_reader
        low_watermark, needs = log_reader.view.low_watermark, log_reader.needs
        if not (low_watermark and main.has_opened):
            return False
        if main.is_late(cluster_time_of(low_watermark)) or not log_reader.catch_up():
            return False
        if not main.readers and main.merged.reached < needs:
            return False  # it would be read for this client alone, which has its own remotes
        if not self._may_narrow(source, needs):
            return False
        if not main.merged.covers(needs, log_reader.needs_spans):
            return False
        left = log_reader.part
        log_reader.continue_on(source.open(main.fan_out, log_reader.needs))
        self._record_source(source)
        main.enter()
        self._leave(left, main)
        return True

    def _should_move_to(self, source: Source) -> bool:
        """Return whether to move to ``source``, whose main stream cannot be joined now."""
        streams, is_own = self._streams, source is self._candidates.own
        if streams.serves(source.key):
            return is_own
        if is_own:
            return streams.admission.streams_left(self._quota) > len(streams.moving)
        needs = self.log_reader.needs
        time = cluster_time_of(needs)
        is_meant = streams.is_recent(time) or self._preferred(time).key == source.key
        return is_meant and self._may_narrow(source, needs)

    def _record_source(self, source: Source) -> None:
        """Record which source the client reads from now on."""
        streams, own = self._streams, self._candidates.own
        was_own, is_own = self._source is own, source is own
        streams.moves_to_shared += was_own and not is_own
        streams.moves_to_own += is_own and not was_own
        self._source, self._since = source, self._loop.time()

    def _move_after(self, error: CommandError) -> Batch:
        """Move after its stream has failed with ``error``; raise that if it is the client's.

        An unfiltered or a wider stream fails by an event that is too large, or lacks an image that
        is required; the client's own stream, which it reads for a while then, may not have that
        event. It also moves when the wider stream has ended, or other readers have overtaken its
        filter.
        """
        part, own = self.log_reader.part, self._candidates.own
        if part is None:
            raise error
        if part.wider_stream_ended:
            self._beyond = part.low_watermark
        elif error.code != ErrorCode.CappedPositionLost:
            lost_history = error.code == ErrorCode.ChangeStreamHistoryLost
            if lost_history or RESUMABLE_LABEL in error.labels:
                raise error
            if self._source is not own:
                policy, now = self._streams.policy, self._loop.time()
                policy.record_failure(self._candidates, self._source, error, self._since, now)
                self._record_source(own)
        return self._move()

    def _move(self) -> Batch:
        """Begin a move to a stream that has the next events, unless one is in progress.

        Return the batch for a client that asks meanwhile: it is empty, and has no new watermark.
        Raises CommandError if the last move has failed.
        """
        if self.stream is not None:
            self._leave(self.log_reader.part)
            moving = self._streams.moving
            self._reads = move = moving.start(self._enter_next(), "move to another stream")
            move.add_done_callback(self._moved)
        elif (failure := self._failure_of_move) is not None:
            if not isinstance(failure, CommandError):
                log.error("move to another stream failed", exc_info=failure)
                failure = CommandError.unexpected(failure)
            elif failure.code == ErrorCode.TemporarilyUnavailable:
                # The cursor ends; the driver resumes by an aggregate, which it may retry.
                failure = CommandError(failure.code, failure.message, labels=(RESUMABLE_LABEL,))
            raise failure.with_change_stream_label()
        return Batch([], 0, self.log_reader.high_water_mark, closed=False)

    @property
    def _failure_of_move(self) -> BaseException | None:
        """The exception with which the last move has ended, so that no stream is read."""
        move = self._reads
        if not isinstance(move, asyncio.Task) or not move.done() or move.cancelled():
            return None
        return move.exception()

    def _moved(self, move: asyncio.Task[None]) -> None:
        """Wake the client, which gets the error of a move that has failed."""
        self._wake()
        if not move.cancelled():
            move.exception()  # the client may not ask for it any more

    async def _enter_next(self) -> None:
        """Enter a stream that has the next events; raises CommandError.

        A client that leaves a wider stream reads its own stream next.
        """
        own, log_reader = self._candidates.own, self.log_reader
        needs, needs_spans = log_reader.needs, log_reader.needs_spans
        start_at = cluster_time_of(needs)
        source, left = self._preferred(start_at), log_reader.part
        was_wider = left is not None and left.incarnation.namespace is not None
        if (source.is_wider and was_wider) or not self._may_narrow(source, needs):
            source = own
        source, stream, _ = await self._enter(source, start_at, needs, needs_spans)
        try:
            log_reader.continue_on(source.open(stream.fan_out, needs))
            self._record_source(source)
        except BaseException:
            stream.leave()
            raise
        self._reads = stream

"""The stream pool: identical streams share one set of remotes (docs/design.md#many-clients)."""

import asyncio
from collections.abc import Callable, Coroutine, Set
from dataclasses import replace
from functools import partial
from typing import Any, Final

import bson
from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.change_stream.filtered_stream import FilteredStream
from router.change_stream.log_reader import LogReader, ReadableStream
from router.change_stream.remotes import ShardSpan
from router.change_stream.request import AfterToken, AtTime, StreamRequest
from router.change_stream.resume_token import cluster_time_of, first_key
from router.change_stream.starting_point import starting_point
from router.memory import Memory
from router.stream_settings import StreamSettings
from router.streams.admission import NOBODY, Admission, Payer
from router.streams.cluster_time import ClusterTimeFetcher
from router.streams.filter_planner import ALWAYS, FilterPlanner, Placement
from router.streams.nudge_sender import NudgeSender
from router.streams.preparation import prepare_stream
from router.streams.shared_stream import SharedStream
from shard_client import spans
from shard_client.error_codes import ErrorCode
from shard_client.errors import RESUMABLE_LABEL, CommandError

_LEAST_REPLY: Final = 64 * 1024


def identity(request: StreamRequest) -> bytes:
    """Return the key that is equal for requests that may share remotes.

    It covers everything but the start, the batch options and the comment. A request that starts
    after an invalidate shares only with those that start after the same one, because their shards
    also skip the first invalidate.
    """
    after = None
    if request.starts_after_invalidate and isinstance(request.start, AfterToken):
        after = request.start.token.data
    extras = {name: value for name, value in request.extras.items() if name != "comment"}
    return bson.encode(
        {
            "namespace": request.namespace,
            "options": request.change_stream_options,
            "stages": list(request.stages),
            "readPreference": request.read_preference,
            "extras": extras,
            "shard": request.passthrough_to_shard,
            "after": after,
        }
    )


def _scope_of(request: StreamRequest) -> spans.Attributes:
    attributes = {"db.system.name": "mongodb", "db.namespace": request.database}
    if request.collection is not None:
        attributes["db.collection.name"] = request.collection
    return attributes


class _StreamGroup:
    """The shared streams of one identity; readers that have caught up join ``main``."""

    def __init__(self, key: bytes | None) -> None:
        self.key = key
        self.streams: list[SharedStream] = []
        self.main: SharedStream | None = None

    def preparing(self) -> SharedStream | None:
        """Return a shared stream whose start is not known yet."""
        return next((each for each in self.streams if not each.preparation_done.is_set()), None)

    def find(self, after: bytes, time: Timestamp, spans: Set[ShardSpan]) -> SharedStream | None:
        """Return a shared stream that covers the events after ``after``; None if there is none.

        It must serve all ``spans`` and must not be far behind ``time``.
        """
        for shared in sorted(self.streams, key=lambda each: each is not self.main):
            if shared.healthy and shared.covers(after, spans) and not shared.is_late(time):
                return shared
        return None


class StreamPool:
    """All shared streams of a process; identical streams share remotes.

    Must be created in a running loop; ``await close()`` once all readers are closed. A stream's
    events count in ``memory``, in the part of the user that has opened it.
    """

    def __init__(
        self,
        cluster: Cluster,
        nudge_sender: NudgeSender,
        limits: StreamSettings,
        admission: Admission,
        memory: Memory,
    ) -> None:
        self._cluster = cluster
        self._admission = admission
        self._nudge_sender = nudge_sender
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._cluster_time = ClusterTimeFetcher(cluster, limits)
        self._memory = memory
        self._placements: dict[LogReader, Placement] = {}
        self._planner = FilterPlanner(limits)
        self._groups: dict[bytes | None, _StreamGroup] = {}
        self._of: dict[SharedStream, _StreamGroup] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(
        self, request: StreamRequest, payer: Payer = NOBODY
    ) -> tuple[SharedStream, LogReader]:
        """Return a shared stream, entered, and a log reader on it from the start of ``request``.

        Remotes that are opened for them are charged to ``payer``. Raises CommandError.
        """
        with spans.recorded("open change stream", _scope_of(request)) as span:
            shared, log_reader = await self._open(request, payer)
            span.set_attribute("mergerouter.readers", shared.readers)
            return shared, log_reader

    async def _open(self, request: StreamRequest, payer: Payer) -> tuple[SharedStream, LogReader]:
        placement = self._planner.place(request)
        self._planner.join(placement, self._scope(placement), self._loop.time())
        try:
            start_at = request.start_time
            wanted = self._wanted(placement, start_at, None)
            while True:
                shared, start_at = await self._enter(wanted, start_at, payer)
                point = starting_point(request, start_at, self._cluster.token_version)
                if shared.covers(point.after):
                    stream = self._part(shared, placement, wanted)(point.after)
                    log_reader = LogReader(stream, point)
                    self._placements[log_reader] = placement
                    return shared, log_reader
                # Other readers have advanced past the starting point during the opening.
                shared.leave()
        except BaseException:
            self._planner.leave(placement)
            raise

    async def follow(
        self, request: StreamRequest, log_reader: LogReader, payer: Payer
    ) -> SharedStream:
        """Return a shared stream, entered, to which the log reader ``log_reader`` is attached.

        For a log reader of ``payer`` whose shared stream no longer covers the events that it
        needs, or whose filter is evaluated elsewhere from now on. Raises CommandError.
        """
        placement = self._placements[log_reader]
        start_at = cluster_time_of(log_reader.needs)
        wanted = self._wanted(placement, start_at, log_reader)
        if not (request.starts_after_invalidate and log_reader.at_start):
            wanted = replace(wanted, start=AtTime(start_at))
        while True:
            spans = log_reader.needs_spans
            try:
                shared, _ = await self._enter(
                    wanted, wanted.start_time, payer, log_reader.needs, spans
                )
            except CommandError as error:
                if error.code != ErrorCode.TemporarilyUnavailable:
                    raise
                # The cursor ends; the driver resumes by an aggregate, which it may retry.
                raise CommandError(error.code, error.message, labels=(RESUMABLE_LABEL,)) from error
            if shared.covers(log_reader.needs, spans):
                log_reader.attach(self._part(shared, placement, wanted)(log_reader.needs))
                return shared
            shared.leave()

    def join_main(self, shared: SharedStream, log_reader: LogReader) -> SharedStream | None:
        """Move a reader of ``shared`` to the main stream of its group if that has the next events.

        A filtered reader joins the unfiltered stream that its filter is evaluated on. Return the
        main stream, entered, and leave ``shared``; or None if the reader stays.
        """
        placement = self._placements[log_reader]
        group = self._of.get(shared)
        wanted = placement.request
        if placement.whole is not None and self._shares(placement, log_reader):
            wanted = placement.whole
            group = self._groups.get(placement.scope)
        main = None if group is None else group.main
        if main is None or main is shared or not main.has_opened:
            return None
        gate = log_reader.stream.gate
        if gate is None or main.is_late(cluster_time_of(gate)):
            return None
        left = log_reader.stream
        if not log_reader.join(main.runner.stream, self._part(main, placement, wanted)):
            return None
        main.enter()
        self.leave(shared, left)
        return main

    def leave(self, shared: SharedStream, stream: ReadableStream) -> None:
        """Remove a reader of ``stream``, which is ``shared``'s stream or a filtered part of it."""
        shared.runner.filtered.close(stream)
        shared.leave()

    def is_misplaced(self, log_reader: LogReader) -> bool:
        """Return whether a reader's filter should be evaluated elsewhere from now on."""
        placement = self._placements[log_reader]
        if placement.whole is None:
            return False
        shares = self._shares(placement, log_reader)
        if isinstance(log_reader.stream, FilteredStream):
            return not shares
        if not shares or not self._is_recent(cluster_time_of(log_reader.needs)):
            return False
        group = self._groups.get(placement.scope)
        return group is None or group.main is None or not group.main.healthy

    def outlives(self, log_reader: LogReader, error: CommandError) -> bool:
        """Return whether a reader goes on although its stream has failed with ``error``.

        An unfiltered stream fails by an event that is too large, or lacks an image that is
        required; a filter may leave that event out. So the shards evaluate it from now on.
        """
        if not isinstance(log_reader.stream, FilteredStream) or RESUMABLE_LABEL in error.labels:
            return False
        if error.code == ErrorCode.ChangeStreamHistoryLost:
            return False
        self._placements[log_reader].failed = True
        return True

    def explain_filter(self, request: StreamRequest) -> dict[str, Any]:
        """Return where the filter of ``request`` would be evaluated now, and why."""
        placement = self._planner.place(request)
        placement.scope = self._scope(placement)
        return self._planner.explain(placement, self._loop.time())

    def _scope(self, placement: Placement) -> bytes:
        return b"" if placement.whole is None else identity(placement.whole)

    def _shares(self, placement: Placement, log_reader: LogReader | None = None) -> bool:
        let_through = 0.0
        if log_reader is not None and isinstance(log_reader.stream, FilteredStream):
            let_through = log_reader.stream.let_through
        return self._planner.shares(placement, self._loop.time(), let_through)

    def _wanted(
        self, placement: Placement, start_at: Timestamp | None, log_reader: LogReader | None
    ) -> StreamRequest:
        """Return the request of the stream to open: the unfiltered one if the router filters.

        A reader that starts long ago is filtered on the shards until it has caught up.
        """
        if placement.whole is None or not self._shares(placement, log_reader):
            return placement.request
        recent = start_at is None or self._is_recent(start_at)
        return placement.whole if recent or placement.mode == ALWAYS else placement.request

    def _is_recent(self, time: Timestamp) -> bool:
        now = self._cluster.clock.time or time
        return now.time - time.time <= self._limits.share_behind

    def _part(
        self, shared: SharedStream, placement: Placement, wanted: StreamRequest
    ) -> Callable[[bytes], ReadableStream]:
        """Return a function that opens the part of ``shared`` to read beyond a sort key."""
        stream_filter = placement.filter
        if stream_filter is None or wanted.stages:
            return lambda after: shared.runner.stream
        return partial(shared.runner.filtered.open, stream_filter)

    @property
    def reply_bytes(self) -> int:
        """Bytes of events that one reply may have now."""
        share = self._limits.replies_bytes // max(1, len(self._placements))
        return min(self._limits.reply_bytes, max(_LEAST_REPLY, share))

    def closed(self, log_reader: LogReader) -> None:
        """Record that a reader has been closed."""
        self._planner.leave(self._placements.pop(log_reader))

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` in a task for which ``close`` waits."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Close all remotes, within bounded time."""
        for shared in list(self._of):
            self._gone(shared)
        await self._cluster_time.close()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _enter(
        self,
        request: StreamRequest,
        start_at: Timestamp | None,
        payer: Payer,
        after: bytes | None = None,
        spans: Set[ShardSpan] = frozenset(),
    ) -> tuple[SharedStream, Timestamp]:
        """Return an open shared stream, entered, that covers ``after``, and the reader's start.

        ``start_at`` None means now; ``after`` defaults to the first sort key of ``start_at``.
        ``spans`` are the shard spans that are needed, including those of shards that have left.
        """
        key = identity(request) if self._limits.share else None
        while True:
            group = self._groups.get(key) or _StreamGroup(key)
            if (preparing := group.preparing()) is not None:
                await preparing.located()
            elif start_at is None and any(shared.healthy for shared in group.streams):
                start_at = (await self._cluster_time.now(request)).time
            else:
                break
        shared = None
        if start_at is not None:
            now = min(start_at, self._cluster.clock.time or start_at)
            shared = group.find(after or first_key(start_at), now, spans)
            if group.main is not None and group.main.is_late(now):
                group.main = shared
        if shared is None:
            shared = self._new(group, request, start_at, payer, spans)
        shared.enter()
        try:
            await shared.opened()
        except BaseException:
            shared.leave()
            raise
        return shared, start_at or shared.start_at

    def _new(
        self,
        group: _StreamGroup,
        request: StreamRequest,
        start_at: Timestamp | None,
        payer: Payer,
        spans: Set[ShardSpan],
    ) -> SharedStream:
        ticket = self._admission.stream(payer, self._cluster.targets)
        if start_at is not None and not request.starts_after_invalidate:
            request = replace(request, start=AtTime(start_at))
        prepare = partial(
            prepare_stream, request, self._cluster, self._cluster_time, self._nudge_sender,
            self._limits, self._memory.of(payer.user), spans,
        )  # fmt: skip
        shared = SharedStream(
            prepare, self._limits, self._gone, ticket, shareable=self._limits.share
        )
        self._of[shared] = group
        group.streams.append(shared)
        if group.main is None or not group.main.healthy:
            group.main = shared
        if group.key is not None:
            self._groups[group.key] = group
        return shared

    def _gone(self, shared: SharedStream) -> None:
        group = self._of.pop(shared, None)
        if group is None:
            return
        group.streams.remove(shared)
        if group.main is shared:
            group.main = group.streams[-1] if group.streams else None
        if not group.streams:
            self._groups.pop(group.key, None)
        self.spawn(shared.close(), "close remotes")

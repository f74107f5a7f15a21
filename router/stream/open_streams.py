"""The open streams of a process: identical requests share one (docs/design.md#many-clients)."""

import asyncio
from collections.abc import Set
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

import structlog
from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.catalog.cluster_time import ClusterTimeFetcher
from router.counters.loads import StreamLoads
from router.limits.cursor_admission import Admission, Quota
from router.limits.memory import Memory
from router.request.stream_request import StreamRequest
from router.stream.merge.merged_stream import MergedStream
from router.stream.merge.shard_membership import ShardSpan
from router.stream.remotes.noop_writer import NoOpWriter
from router.stream.remotes.open_remotes import StreamResources
from router.stream.running_stream import CLOSED, RunningStream
from router.stream.sharing_policy import SharingPolicy
from router.stream_settings import StreamSettings
from router.tasks import AwaitedTasks, result_of, shutting_down
from shard_client import spans
from shard_client.bson.resume_token import first_key, next_tick
from shard_client.errors import CommandError, ErrorCode
from shard_client.replica_set.replica_set import ReadPreference

log = structlog.get_logger()

_NUMBERS: Final = count(1)


class OpenStreams:
    """The streams that are open, by their identity, and the tasks that open and close them.

    Must be created in a running loop; ``await close()`` once all readers are closed. A stream's
    events count in the part of the memory that belongs to the user that has opened it.
    """

    def __init__(self, cluster: Cluster, settings: StreamSettings) -> None:
        loads, memory = StreamLoads(), Memory(settings.total_buffer_bytes, settings.user_buffer)
        noop_writer = NoOpWriter(cluster, settings, loads)
        self.resources = StreamResources(cluster, settings, loads, noop_writer, memory)
        self.admission = Admission(settings, memory)
        self.cluster = cluster
        self.policy = SharingPolicy(settings, lambda: cluster.versions.undefined_is_null)
        self.moving = AwaitedTasks()
        """The tasks of readers that are moving to another stream."""
        self.moves_to_shared = 0
        """Readers that have moved from their own stream to one that serves others as well."""
        self.moves_to_own = 0
        """Readers that have moved back to their own stream."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.cluster_time = ClusterTimeFetcher(cluster, settings)
        self._by_key: dict[bytes, list[RunningStream]] = {}
        """The streams by identity: the main one first, which readers join once they catch up."""
        self._locating: dict[bytes, asyncio.Task[MergedStream]] = {}
        """The streams whose shards or start are not known yet, by their identity."""
        self._tasks = AwaitedTasks()
        self._closed = False

    async def find_or_open(
        self,
        request: StreamRequest,
        start_at: Timestamp | None,
        quota: Quota,
        after: bytes | None = None,
        needed: Set[ShardSpan] = frozenset(),
    ) -> tuple[RunningStream, Timestamp]:
        """Return an open stream that has all events beyond ``after``, with one reader added.

        Beside it, return the time from which the reader reads it.

        ``start_at`` None means now; ``after`` defaults to the first sort key of ``start_at``.
        ``needed`` are the shard spans to read, including those of shards that have left.
        Remotes that are opened for it are charged to ``quota``. Raises CommandError.
        """
        key = request.sharing_key if self._settings.share else b"alone %d" % next(_NUMBERS)
        while True:
            locating = self._locating.get(key)
            if locating is not None:
                await asyncio.wait((locating,))
                if self._locating.get(key) is locating:  # an exception has kept its client from it
                    del self._locating[key]
                if not locating.cancelled():
                    locating.result()  # a retry would fail as well
                continue
            identical, joined = self._by_key.get(key, []), None
            if start_at is not None:
                joined = self._find(identical, start_at, after or first_key(start_at), needed)
            elif any(stream.healthy for stream in identical):
                start_at = (await self.cluster_time.now(request)).time
                continue
            if joined is None:
                stream = await self._new(key, request, start_at, quota, needed)
            else:
                if self._is_late(identical[0], start_at):
                    _make_main(joined, identical)
                stream = await self._enter(joined)
            with ExitStack() as leaving:
                leaving.callback(stream.leave)
                start_at = start_at or stream.merged.start_at
                if stream.merged.covers(after or first_key(start_at), needed):
                    leaving.pop_all()
                    return stream, start_at
                # Other readers have advanced past the start during the opening.

    async def _enter(self, stream: RunningStream) -> RunningStream:
        """Return a stream with one reader added, once it is open. Raises CommandError."""
        stream.enter()
        try:
            await stream.wait_opened()
        except BaseException:
            stream.leave()
            raise
        return stream

    def _find(
        self,
        identical: list[RunningStream],
        start_at: Timestamp,
        after: bytes,
        needed: Set[ShardSpan],
    ) -> RunningStream | None:
        """Return a stream that covers the events after ``after`` and is not far behind, or None.

        If the reader has a backlog, a stream without readers is used only if it has reached
        ``after``: otherwise it would read the events in between, which may be many, for nobody.
        """
        in_backlog = not self.is_recent(start_at)
        for stream in identical:
            if self._is_late(stream, start_at) or not stream.merged.covers(after, needed):
                continue
            if in_backlog and not stream.readers and stream.merged.reached < after:
                continue
            return stream
        return None

    async def _new(
        self,
        key: bytes,
        request: StreamRequest,
        start_at: Timestamp | None,
        quota: Quota,
        needed: Set[ShardSpan],
    ) -> RunningStream:
        """Return a new stream with one reader added, once it is open. Raises CommandError."""
        self._check_not_closed()
        admitted = self.admission.admit_stream(quota, self.cluster.targets)
        # A client that begins after an invalidate keeps its start, at which each shard skips one.
        # If it moves, ``needed`` has the times at which they do.
        if start_at is not None and (needed or not request.starts_after_invalidate):
            request = replace(request, start=start_at)
        settings = self._settings
        if request.passthrough_to_shard is not None:
            settings = settings.for_one_shard()
        memory = self.resources.memory.of(quota.user)
        resources = self.resources._replace(settings=settings, memory=memory)
        deadline = self._loop.time() + self.opening_time(request)
        stream: RunningStream | None = None
        with spans.recorded("open remotes", {"db.system.name": "mongodb"}):
            try:
                merged = await self._locate(key, request, settings, needed)
                self._check_not_closed()
                stream = RunningStream(
                    request, merged, resources, admitted, partial(self._retire, key)
                )
                identical = self._by_key.setdefault(key, [])
                identical.append(stream)
                if self._is_late(identical[0], start_at):
                    _make_main(stream, identical)
                stream.open(deadline)
                return await self._enter(stream)
            except BaseException as error:
                if stream is None:
                    admitted.close()
                if isinstance(error, CommandError) or not isinstance(error, Exception):
                    raise
                log.error("opening broke", exc_info=error)
                if stream is not None:
                    self._retire(key, stream)
                raise CommandError.unexpected(error) from error

    async def _locate(
        self, key: bytes, request: StreamRequest, settings: StreamSettings, needed: Set[ShardSpan]
    ) -> MergedStream:
        """Return the merged stream of a request, in a task that ``close`` can cancel."""
        task = self._locating[key] = self._tasks.start(
            locate(request, self.cluster, settings, self.cluster_time, needed), "locate a stream"
        )
        try:
            return await result_of(task, CLOSED)
        finally:
            task.cancel()
            if self._locating.get(key) is task:  # not that of a later opening
                del self._locating[key]

    def _check_not_closed(self) -> None:
        if self._closed:
            raise shutting_down(CLOSED)

    def _is_late(self, stream: RunningStream, start_at: Timestamp | None) -> bool:
        """Return whether a stream is too far behind for a reader that starts at ``start_at``."""
        newest = self.cluster.clock.time
        time = min(filter(None, (start_at, newest)), default=None)
        return not stream.healthy if time is None else stream.is_late(time)

    def _retire(self, key: bytes, stream: RunningStream) -> None:
        """Let no reader find a stream any more, and close it; idempotent."""
        identical = self._by_key.get(key, [])
        if stream not in identical:
            return
        was_main = identical[0] is stream
        identical.remove(stream)
        if not identical:
            del self._by_key[key]
        elif was_main:
            _make_main(identical[-1], identical)  # the newest
        self._tasks.start(stream.close(), "close remotes")

    def stream_to_join(self, key: bytes) -> RunningStream | None:
        """Return the stream of this identity that readers join once they have caught up."""
        identical = self._by_key.get(key)
        return None if identical is None else identical[0]

    def serves(self, key: bytes) -> bool:
        """Return whether the stream of this identity is open, or being opened."""
        main = self.stream_to_join(key)
        return key in self._locating or (main is not None and main.healthy)

    def is_recent(self, time: Timestamp) -> bool:
        """Return whether a reader that starts at ``time`` has no backlog to read."""
        newest = self.cluster.clock.time or time
        return newest.time - time.time <= self._settings.share_behind

    def opening_time(self, request: StreamRequest) -> float:
        """Return the seconds within which a client's stream is to be opened."""
        return self._settings.opening_time(ReadPreference.of(request.read_preference))

    async def close(self) -> None:
        """Close all remotes, within bounded time."""
        self._closed = True
        for locating in self._locating.values():
            locating.cancel()
        for key, identical in list(self._by_key.items()):
            for stream in list(identical):
                self._retire(key, stream)
        await self.cluster_time.close()
        await self.moving.wait()
        await self._tasks.wait()
        await self.resources.noop_writer.close()  # streams write no-ops until they are closed


def _make_main(stream: RunningStream, identical: list[RunningStream]) -> None:
    """Make one of the ``identical`` streams the main one."""
    identical.remove(stream)
    identical.insert(0, stream)


async def locate(
    request: StreamRequest,
    cluster: Cluster,
    settings: StreamSettings,
    cluster_time: ClusterTimeFetcher,
    needed: Set[ShardSpan],
) -> MergedStream:
    """Return the merged stream of a request, with its shards and its start.

    ``cluster_time`` returns the start of a stream that starts now. ``needed`` are the shard spans
    of the stream that its client has left: they are read even if their shards have left. Raises
    CommandError, labelled as mongos labels it, after ``open_timeout`` at the latest; 70
    ShardNotFound if the cluster has no shards.
    """
    start_at = request.start_time
    if start_at is None:
        start_at, listed = await cluster_time.now(request)
    else:
        listed = await cluster.shards(settings.open_timeout)
    shards = listed.hosts
    if not shards and request.passthrough_to_shard is None:
        raise CommandError(ErrorCode.ShardNotFound, "No shards found")
    # A listed shard without a known end is still there. A missing shard without a known end left
    # by the time the list was read, not long before.
    left_by = first_key(next_tick(listed.by))
    known = (
        span._replace(until=left_by) if span.until is None and span.shard not in shards else span
        for span in needed
    )
    return MergedStream(
        request,
        shards,
        start_at=start_at,
        topology_from=listed.before,
        spans=sorted(known, key=lambda span: span[:3]),
        draining=listed.draining,
    )

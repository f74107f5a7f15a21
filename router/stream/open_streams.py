"""The open streams of a process: identical requests share one (docs/design.md#many-clients)."""

import asyncio
from collections.abc import Callable, Coroutine, Set
from dataclasses import replace
from typing import Any, Final

import structlog
from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster, may_be_view
from router.loads import MemberLoads
from router.memory import Memory
from router.request.stream_request import AtTime, StreamRequest
from router.stream.admission import Admission, Quota
from router.stream.membership import ShardSpan
from router.stream.noop_writer import NoOpWriter
from router.stream.opening import ClusterTimeFetcher, StreamOpening
from router.stream.remotes import StreamResources
from router.stream.running_stream import RunningStream
from router.stream.sharing import Candidates, SharingPolicy, Source
from router.stream_settings import StreamSettings
from shard_client.bson.resume_token import first_key
from shard_client.errors import RESUMABLE_LABEL, CommandError
from shard_client.replica_set.replica_set import ReadPreference

log = structlog.get_logger()

_LEAST_REPLY: Final = 64 * 1024


class OpenStreams:
    """The streams that are open, by their identity, and the tasks that open and close them.

    Must be created in a running loop; ``await close()`` once all readers are closed. A stream's
    events count in the part of the memory that belongs to the user that has opened it.
    """

    def __init__(self, cluster: Cluster, settings: StreamSettings) -> None:
        loads, memory = MemberLoads(), Memory(settings.total_buffer_bytes, settings.user_buffer)
        noop_writer = NoOpWriter(cluster, settings, loads)
        self.resources = StreamResources(cluster, settings, loads, noop_writer, memory)
        self.admission = Admission(settings, memory)
        self.cluster = cluster
        self.policy = SharingPolicy(settings, lambda: cluster.undefined_is_null)
        self.moving = 0
        """Readers that are moving to another stream."""
        self.moves_to_shared = 0
        """Readers that have moved from their own stream to one that serves others as well."""
        self.moves_to_own = 0
        """Readers that have moved back to their own stream."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.cluster_time = ClusterTimeFetcher(cluster, settings)
        self._by_key: dict[bytes, list[StreamOpening]] = {}
        """The streams by their identity; readers that have caught up join the first one."""
        self._keys: dict[StreamOpening, bytes | None] = {}
        """Each stream's identity; None for one that is not shared."""
        self._tasks: set[asyncio.Task[None]] = set()

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
        key = request.sharing_key if self._settings.share else None
        while True:
            streams = [] if key is None else self._by_key.get(key, [])
            locating = next((stream for stream in streams if stream.is_locating), None)
            if locating is not None:
                await locating.located()
                continue
            if start_at is None and any(stream.healthy for stream in streams):
                start_at = (await self.cluster_time.now(request)).time
                continue
            joined = None
            if start_at is not None:
                joined = self._find(streams, start_at, after or first_key(start_at), needed)
            opening = joined or self._new(key, request, start_at, quota, needed)
            opening.enter()
            try:
                stream = await opening.opened()
                start_at = start_at or stream.merged.start_at
                if stream.merged.covers(after or first_key(start_at), needed):
                    return stream, start_at
            except BaseException:
                opening.leave()
                raise
            opening.leave()  # other readers have advanced past the start during the opening

    async def find_or_open_patiently(
        self,
        request: StreamRequest,
        start_at: Timestamp | None,
        quota: Quota,
        after: bytes | None,
        needed: Set[ShardSpan],
    ) -> tuple[RunningStream, Timestamp]:
        """Return what ``find_or_open`` returns, for a client that has an open cursor.

        It waits while the shard list cannot be read: the config server's outage ends no cursor.
        """
        has_listed = False
        while True:
            try:
                return await self.find_or_open(request, start_at, quota, after, needed)
            except CommandError as error:
                if has_listed or RESUMABLE_LABEL not in error.labels:
                    raise
            try:
                has_listed = bool(await self.cluster.shards())
            except CommandError as error:
                log.info("a client waits for the shard list", error=str(error))

    def _find(
        self,
        streams: list[StreamOpening],
        start_at: Timestamp,
        after: bytes,
        needed: Set[ShardSpan],
    ) -> StreamOpening | None:
        """Return a stream that covers the events after ``after`` and is not far behind, or None.

        If the reader has a backlog, a stream without readers is used only if it has reached
        ``after``: otherwise it would read the events in between, which may be many, for nobody. The
        stream takes the place of one that is far behind as the one that others join.
        """
        in_backlog = not self.is_recent(start_at)
        for opening in streams:
            stream = opening.stream
            if stream is None or self._is_late(opening, start_at):
                continue
            if not stream.merged.covers(after, needed):
                continue
            if in_backlog and not stream.readers and stream.merged.reached < after:
                continue
            if self._is_late(streams[0], start_at):
                streams.remove(opening)
                streams.insert(0, opening)
            return opening
        return None

    def _new(
        self,
        key: bytes | None,
        request: StreamRequest,
        start_at: Timestamp | None,
        quota: Quota,
        needed: Set[ShardSpan],
    ) -> StreamOpening:
        ticket = self.admission.admit_stream(quota, self.cluster.targets)
        # A client that moves knows which invalidates its shards skip from where it is.
        if start_at is not None and (needed or not request.starts_after_invalidate):
            request = replace(request, start=AtTime(start_at))
        streams = [] if key is None else self._by_key.setdefault(key, [])
        is_joined = streams and not self._is_late(streams[0], start_at)
        charged = self.resources._replace(memory=self.resources.memory.of(quota.user))
        opening = StreamOpening(request, charged, self.cluster_time, ticket, self._gone, needed)
        self._keys[opening] = key
        streams.insert(len(streams) if is_joined else 0, opening)
        return opening

    def _is_late(self, opening: StreamOpening, start_at: Timestamp | None) -> bool:
        """Return whether a stream is too far behind for a reader that starts at ``start_at``."""
        newest = self.cluster.clock.time
        time = min(filter(None, (start_at, newest)), default=None)
        if time is None or opening.stream is None:
            return not opening.healthy
        return not opening.healthy or opening.stream.is_late(time)

    def _gone(self, opening: StreamOpening) -> None:
        if opening not in self._keys:
            return
        key = self._keys.pop(opening)
        streams = [] if key is None else self._by_key.get(key, [])
        if opening in streams:
            if streams[0] is opening:
                streams.insert(1, streams.pop())
            streams.remove(opening)
        if key is not None and not streams:
            self._by_key.pop(key, None)
        self.spawn(opening.close, "close remotes")

    def stream_to_join(self, key: bytes) -> RunningStream | None:
        """Return the stream of this identity that readers join once they have caught up."""
        streams = self._by_key.get(key)
        return streams[0].stream if streams else None

    def serves(self, key: bytes) -> bool:
        """Return whether the stream of this identity is open, or being opened."""
        streams = self._by_key.get(key)
        return bool(streams and streams[0].healthy)

    def admits(self, key: bytes, quota: Quota) -> bool:
        """Return whether ``quota`` may read the stream ``key`` beside those that move now."""
        return self.serves(key) or self.admission.streams_left(quota) > self.moving

    def is_recent(self, time: Timestamp) -> bool:
        """Return whether a reader that starts at ``time`` has no backlog to read."""
        newest = self.cluster.clock.time or time
        return newest.time - time.time <= self._settings.share_behind

    def opening_time(self, request: StreamRequest) -> float:
        """Return the seconds within which a client's stream is to be opened."""
        return self._settings.opening_time(ReadPreference.of(request.read_preference))

    def record_failure(
        self, candidates: Candidates, source: Source, error: CommandError, begun: float
    ) -> None:
        """Record that ``source``, tried or read since ``begun``, does not serve a client."""
        if self.policy.record_failure(candidates, source, error, begun, self._loop.time()):
            namespace, cause = source.request.namespace, error.__cause__
            log.warning(
                "a shared stream is avoided", namespace=namespace, error=str(error), exc_info=cause
            )

    async def may_be_view(self, request: StreamRequest) -> bool:
        """Return whether the shards must check that the request's name is not a view's."""
        database, collection = request.database, request.collection
        if collection is None:
            return False
        return await may_be_view(self.cluster, database, collection, self._settings.reply_timeout)

    @property
    def reply_bytes(self) -> int:
        """Bytes of events that one reply may have now."""
        share = self._settings.replies_bytes // max(1, self.policy.clients)
        return min(self._settings.reply_bytes, max(_LEAST_REPLY, share))

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
        """Run ``work`` in a task for which ``close`` waits."""
        task = self._loop.create_task(work(), name=name)
        task.add_done_callback(self._tasks.discard)
        self._tasks.add(task)
        return task

    async def close(self) -> None:
        """Close all remotes, within bounded time."""
        await self.resources.noop_writer.close()
        for opening in list(self._keys):
            self._gone(opening)
        await self.cluster_time.close()
        while self._tasks:
            await asyncio.wait(self._tasks)

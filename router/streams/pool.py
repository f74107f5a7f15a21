"""The stream pool: identical streams share one set of remotes (docs/design.md, section 10)."""

import asyncio
from collections.abc import Coroutine, Set
from dataclasses import replace
from functools import partial
from typing import Any, Final

import bson
from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.change_stream.log_reader import LogReader
from router.change_stream.remotes import ShardSpan
from router.change_stream.request import AfterToken, AtTime, StreamRequest
from router.change_stream.resume_token import cluster_time_of, first_key
from router.change_stream.starting_point import starting_point
from router.stream_settings import StreamSettings
from router.streams.admission import Admission
from router.streams.cluster_time import ClusterTimeFetcher
from router.streams.memory import Memory
from router.streams.nudger import Nudger
from router.streams.preparation import prepare_stream
from router.streams.reader import Reader
from router.streams.shared_stream import SharedStream
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


class _StreamGroup:
    """The shared streams of one identity; readers that have caught up join ``main``."""

    def __init__(self, key: bytes | None) -> None:
        self.key = key
        self.sources: list[SharedStream] = []
        self.main: SharedStream | None = None

    def placing(self) -> SharedStream | None:
        """Return a shared stream whose start is not known yet."""
        return next((each for each in self.sources if not each.placed.is_set()), None)

    def find(self, after: bytes, time: Timestamp, parts: Set[ShardSpan]) -> SharedStream | None:
        """Return a shared stream that covers the events after ``after``; None if there is none.

        It must serve all ``parts`` and must not be far behind ``time``.
        """
        for source in sorted(self.sources, key=lambda each: each is not self.main):
            if source.healthy and source.covers(after, parts) and not source.is_late(time):
                return source
        return None


class StreamPool:
    """All shared streams of a process; identical streams share remotes.

    Must be created in a running loop; ``await close()`` once all readers are closed.
    """

    def __init__(
        self, cluster: Cluster, nudger: Nudger, limits: StreamSettings, admission: Admission
    ) -> None:
        self._cluster = cluster
        self._admission = admission
        self._nudger = nudger
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._present = ClusterTimeFetcher(cluster, limits)
        self._memory = Memory(limits.total_buffer_bytes)
        self._readers = 0
        self._channels: dict[bytes | None, _StreamGroup] = {}
        self._of: dict[SharedStream, _StreamGroup] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, request: StreamRequest, client: str | None = None) -> Reader:
        """Return a reader for ``client`` that starts at the start of ``request``.

        Remotes that are opened for it are charged to ``client``. Raises CommandError.
        """
        start_at = request.start_time
        while True:
            source, start_at = await self._enter(request, start_at, client)
            point = starting_point(request, start_at, self._cluster.token_version)
            if source.covers(point.after):
                position = LogReader(source.upstream.stream, point)
                self._readers += 1
                return Reader(self, source, request, position, client)
            # Other readers have advanced past the starting point during the opening.
            source.leave()

    async def follow(
        self, request: StreamRequest, position: LogReader, client: str | None
    ) -> SharedStream:
        """Return a shared stream, entered, to which the log reader ``position`` is attached.

        For a log reader of ``client`` whose shared stream no longer covers the events that it
        needs. Raises CommandError.
        """
        if not (request.starts_after_invalidate and position.at_start):
            start = AtTime(cluster_time_of(position.needs))
            request = replace(request, start=start)
        while True:
            parts = position.needs_spans
            try:
                source, _ = await self._enter(
                    request, request.start_time, client, position.needs, parts
                )
            except CommandError as error:
                if error.code != ErrorCode.TemporarilyUnavailable:
                    raise
                # The cursor ends; the driver resumes by an aggregate, which it may retry.
                raise CommandError(error.code, error.message, labels=(RESUMABLE_LABEL,)) from error
            if source.covers(position.needs, parts):
                position.attach(source.upstream.stream)
                return source
            source.leave()

    def better(self, source: SharedStream) -> SharedStream | None:
        """Return the shared stream to which readers of ``source`` should move; None if none."""
        channel = self._of.get(source)
        main = None if channel is None else channel.main
        if main is None or main is source or not main.has_opened:
            return None
        gate = source.upstream.stream.gate
        return None if gate is None or main.is_late(cluster_time_of(gate)) else main

    @property
    def reply_bytes(self) -> int:
        """Bytes of events that one reply may have now."""
        share = self._limits.replies_bytes // max(1, self._readers)
        return min(self._limits.reply_bytes, max(_LEAST_REPLY, share))

    def left(self) -> None:
        """Record that a reader has been closed."""
        self._readers -= 1

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` in a task for which ``close`` waits."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Close all remotes, within bounded time."""
        for source in list(self._of):
            self._gone(source)
        await self._present.close()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _enter(
        self,
        request: StreamRequest,
        start_at: Timestamp | None,
        client: str | None,
        after: bytes | None = None,
        parts: Set[ShardSpan] = frozenset(),
    ) -> tuple[SharedStream, Timestamp]:
        """Return an open shared stream, entered, that covers ``after``, and the reader's start.

        ``start_at`` None means now; ``after`` defaults to the first sort key of ``start_at``.
        ``parts`` are the shard spans that are needed, including those of shards that have left.
        """
        key = identity(request) if self._limits.share else None
        while True:
            channel = self._channels.get(key) or _StreamGroup(key)
            if (placing := channel.placing()) is not None:
                await placing.located()
            elif start_at is None and any(source.healthy for source in channel.sources):
                start_at = (await self._present.now(request)).time
            else:
                break
        source = None
        if start_at is not None:
            now = min(start_at, self._cluster.clock.time or start_at)
            source = channel.find(after or first_key(start_at), now, parts)
            if channel.main is not None and channel.main.is_late(now):
                channel.main = source
        if source is None:
            source = self._new(channel, request, start_at, client, parts)
        source.enter()
        try:
            await source.opened()
        except BaseException:
            source.leave()
            raise
        return source, start_at or source.start_at

    def _new(
        self,
        channel: _StreamGroup,
        request: StreamRequest,
        start_at: Timestamp | None,
        client: str | None,
        parts: Set[ShardSpan],
    ) -> SharedStream:
        ticket = self._admission.stream(client, self._cluster.targets)
        if start_at is not None and not request.starts_after_invalidate:
            request = replace(request, start=AtTime(start_at))
        place = partial(
            prepare_stream, request, self._cluster, self._present, self._nudger, self._limits,
            self._memory, parts,
        )  # fmt: skip
        source = SharedStream(place, self._limits, self._gone, ticket, shared=self._limits.share)
        self._of[source] = channel
        channel.sources.append(source)
        if channel.main is None or not channel.main.healthy:
            channel.main = source
        if channel.key is not None:
            self._channels[channel.key] = channel
        return source

    def _gone(self, source: SharedStream) -> None:
        channel = self._of.pop(source, None)
        if channel is None:
            return
        channel.sources.remove(source)
        if channel.main is source:
            channel.main = channel.sources[-1] if channel.sources else None
        if not channel.sources:
            self._channels.pop(channel.key, None)
        self.spawn(source.close(), "close remotes")

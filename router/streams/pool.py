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
from router.memory import Memory
from router.stream_settings import StreamSettings
from router.streams.admission import Admission
from router.streams.cluster_time import ClusterTimeFetcher
from router.streams.nudger import Nudger
from router.streams.preparation import prepare_stream
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

    Must be created in a running loop; ``await close()`` once all readers are closed. The streams'
    events count in ``memory``.
    """

    def __init__(
        self,
        cluster: Cluster,
        nudger: Nudger,
        limits: StreamSettings,
        admission: Admission,
        memory: Memory,
    ) -> None:
        self._cluster = cluster
        self._admission = admission
        self._nudger = nudger
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._cluster_time = ClusterTimeFetcher(cluster, limits)
        self._memory = memory
        self._readers = 0
        self._groups: dict[bytes | None, _StreamGroup] = {}
        self._of: dict[SharedStream, _StreamGroup] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(
        self, request: StreamRequest, client: str | None = None
    ) -> tuple[SharedStream, LogReader]:
        """Return a shared stream, entered, and a log reader on it from the start of ``request``.

        Remotes that are opened for them are charged to ``client``. Raises CommandError.
        """
        start_at = request.start_time
        while True:
            shared, start_at = await self._enter(request, start_at, client)
            point = starting_point(request, start_at, self._cluster.token_version)
            if shared.covers(point.after):
                log_reader = LogReader(shared.runner.stream, point)
                self._readers += 1
                return shared, log_reader
            # Other readers have advanced past the starting point during the opening.
            shared.leave()

    async def follow(
        self, request: StreamRequest, log_reader: LogReader, client: str | None
    ) -> SharedStream:
        """Return a shared stream, entered, to which the log reader ``log_reader`` is attached.

        For a log reader of ``client`` whose shared stream no longer covers the events that it
        needs. Raises CommandError.
        """
        if not (request.starts_after_invalidate and log_reader.at_start):
            start = AtTime(cluster_time_of(log_reader.needs))
            request = replace(request, start=start)
        while True:
            spans = log_reader.needs_spans
            try:
                shared, _ = await self._enter(
                    request, request.start_time, client, log_reader.needs, spans
                )
            except CommandError as error:
                if error.code != ErrorCode.TemporarilyUnavailable:
                    raise
                # The cursor ends; the driver resumes by an aggregate, which it may retry.
                raise CommandError(error.code, error.message, labels=(RESUMABLE_LABEL,)) from error
            if shared.covers(log_reader.needs, spans):
                log_reader.attach(shared.runner.stream)
                return shared
            shared.leave()

    def better(self, shared: SharedStream) -> SharedStream | None:
        """Return the shared stream to which readers of ``shared`` should move; None if none."""
        group = self._of.get(shared)
        main = None if group is None else group.main
        if main is None or main is shared or not main.has_opened:
            return None
        gate = shared.runner.stream.gate
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
        for shared in list(self._of):
            self._gone(shared)
        await self._cluster_time.close()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _enter(
        self,
        request: StreamRequest,
        start_at: Timestamp | None,
        client: str | None,
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
            shared = self._new(group, request, start_at, client, spans)
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
        client: str | None,
        spans: Set[ShardSpan],
    ) -> SharedStream:
        ticket = self._admission.stream(client, self._cluster.targets)
        if start_at is not None and not request.starts_after_invalidate:
            request = replace(request, start=AtTime(start_at))
        prepare = partial(
            prepare_stream, request, self._cluster, self._cluster_time, self._nudger, self._limits,
            self._memory, spans,
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

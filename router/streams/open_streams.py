"""The open shared streams of a process, in groups of equal identity."""

import asyncio
from collections.abc import Coroutine, Set
from dataclasses import replace
from functools import partial
from typing import Any

from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.change_stream.remotes import ShardSpan
from router.change_stream.request import AtTime, StreamRequest
from router.change_stream.resume_token import first_key
from router.memory import Memory
from router.stream_settings import StreamSettings
from router.streams.admission import Admission, Payer
from router.streams.cluster_time import ClusterTimeFetcher
from router.streams.nudge_sender import NudgeSender
from router.streams.preparation import prepare_stream
from router.streams.shared_stream import SharedStream
from router.streams.sources import identity


class StreamGroup:
    """The shared streams of one identity; readers that have caught up join ``main``."""

    def __init__(self, key: bytes | None) -> None:
        self.key = key
        self.streams: list[SharedStream] = []
        self.main: SharedStream | None = None

    def preparing(self) -> SharedStream | None:
        """Return a shared stream whose start is not known yet."""
        return next((each for each in self.streams if not each.preparation_done.is_set()), None)

    def find(
        self, after: bytes, time: Timestamp, spans: Set[ShardSpan], *, in_backlog: bool
    ) -> SharedStream | None:
        """Return a shared stream that covers the events after ``after``; None if there is none.

        It must serve all ``spans`` and must not be far behind ``time``. ``in_backlog`` is whether
        ``after`` lies long ago: a stream without readers must not be behind it at all then, since
        the events in between may be many, and no other client reads them.
        """
        for shared in sorted(self.streams, key=lambda each: each is not self.main):
            if not shared.healthy or not shared.covers(after, spans) or shared.is_late(time):
                continue
            if in_backlog and not shared.readers and shared.is_before(after):
                continue
            return shared
        return None


class OpenStreams:
    """The shared streams that are open, and the tasks that open and close them.

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
        self._groups: dict[bytes | None, StreamGroup] = {}
        self._of: dict[SharedStream, StreamGroup] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def group(self, key: bytes) -> StreamGroup | None:
        """Return the streams whose requests have the identity ``key``, or None."""
        return self._groups.get(key)

    def group_of(self, shared: SharedStream) -> StreamGroup | None:
        """Return the group of a stream, or None if no reader can enter it any more."""
        return self._of.get(shared)

    def admits(self, key: bytes, payer: Payer, others: int) -> bool:
        """Return whether ``payer`` may read the stream ``key`` if ``others`` open one before."""
        group = self._groups.get(key)
        open_one = group is not None and group.main is not None and group.main.healthy
        return open_one or self._admission.room(payer) > others

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

    async def enter(
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
            group = self._groups.get(key) or StreamGroup(key)
            if (preparing := group.preparing()) is not None:
                await preparing.located()
            elif start_at is None and any(shared.healthy for shared in group.streams):
                start_at = (await self._cluster_time.now(request)).time
            else:
                break
        shared = None
        if start_at is not None:
            newest = self._cluster.clock.time or start_at
            now = min(start_at, newest)
            in_backlog = newest.time - start_at.time > self._limits.share_behind
            wanted = after or first_key(start_at)
            shared = group.find(wanted, now, spans, in_backlog=in_backlog)
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
        group: StreamGroup,
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

"""The remotes of one running stream, and their cursors, opened and closed as its merge asks."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import replace
from typing import Any

import structlog
from bson.int64 import Int64

from router.catalog.cluster import Cluster
from router.memory import Memory
from router.merge.actions import Action, CloseRemote, OpenRemote, ReopenRemote
from router.merge.merged_stream import MergedStream
from router.pacing.read_state import ReadState
from router.request.progress_command import progress_command
from router.request.stream_request import StreamRequest
from router.stream_settings import PacingSettings
from router.streams.member_load import MemberLoads
from router.streams.opening import opening_of
from shard_client import spans
from shard_client.bson.resume_token import cluster_time_of
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch
from shard_client.remote_cursor.progress_cursor import Probing
from shard_client.remote_cursor.remote_cursor import RemoteCursor
from shard_client.replica_set.read_preference import PRIMARY, ReadPreference

log = structlog.get_logger()


class ScheduledRemote(ReadState):
    """One remote of a running stream: its cursor, and the state by which its reads are scheduled.

    The read scheduler alone changes the state.
    """

    cursor: RemoteCursor

    def __init__(self, action: OpenRemote, limits: PacingSettings) -> None:
        super().__init__(limits, topology=action.topology)
        self.number = action.remote
        self.target = action.target
        self.host = action.host
        self.noops = 0
        """Number of no-op writes that the stream has requested from its member."""
        self.delay: asyncio.TimerHandle | None = None
        """Timer until which no getMore is sent although the budgets allow it."""
        self.probing: asyncio.Task[None] | None = None

    def may_probe(self, now: float) -> bool:
        """Return whether the progress cursor has kept the member busy for little enough."""
        self.probes.spend(now, 1000 * self.cursor.take_probe_cost())
        return self.probes.tokens(now) > 0

    def end_delay(self) -> None:
        """Let the next getMore be sent."""
        if self.delay is not None:
            self.delay.cancel()
            self.delay = None

    @property
    def state(self) -> str:
        """The state of the cursor: "opening", "reading", "paused" or "failing".

        It is paused by a budget, or because no client reads; not while its next getMore is delayed.
        """
        state = self.cursor.state
        return "reading" if state == "paused" and self.delay is not None else state

    @property
    def slowest_reason(self) -> str:
        """Why the watermark is not greater: one of the four states below, or "opening".

        "reconnecting", "paused", "idle" (the member has no newer events) or "behind" (it still has
        events to read).
        """
        state = self.state
        if state == "reading":
            return "idle" if self.idle else "behind"
        return "reconnecting" if state == "failing" else state

    def describe(self, watermark: bytes | None, buffered: int) -> dict[str, Any]:
        """Return what serverStatus shows, given the watermark and the buffered bytes.

        ``topology`` marks the remote that watches config.shards; a config server that is also a
        shard has another remote for its data. ``reopened`` counts the failures after which the
        cursor was opened again, ``failingMillis`` is the time since a failure that lasts began.
        """
        cursor = self.cursor
        document: dict[str, Any] = {
            "target": self.target,
            "address": cursor.address,
            "state": self.state,
            "watermark": None if watermark is None else cluster_time_of(watermark),
            "events": Int64(self.events),
            "bufferedBytes": Int64(buffered),
            "reopened": cursor.reopened,
            "noopCommands": Int64(self.noops),
        }
        if self.topology:
            document["topology"] = True
        if cursor.failing_for is not None:
            document["failingMillis"] = Int64(cursor.failing_for * 1000)
            document["error"] = None if cursor.last_error is None else str(cursor.last_error)
        return document


class RemoteCursors(dict[int, ScheduledRemote]):
    """The open remotes of one stream by number. Must be created in a running loop.

    ``request`` is what the shards are asked for; ``memory`` counts the remotes, and ``loads`` what
    is sent to members. ``on_batch`` is called with a remote's number and each of its replies,
    ``on_failure`` with its number, its permanent failure and the address that failed, if known.
    ``outlasts`` returns, given a number, whether an outage of any length is waited for.
    """

    def __init__(
        self,
        request: StreamRequest,
        cluster: Cluster,
        limits: PacingSettings,
        memory: Memory,
        loads: MemberLoads,
        on_batch: Callable[[int, CursorBatch], None],
        on_failure: Callable[[int, CommandError, str | None], None],
        outlasts: Callable[[int], bool],
    ) -> None:
        super().__init__()
        self._request = request
        self._cluster = cluster
        self._limits = limits
        self._memory = memory
        self._loads = loads
        self._on_batch = on_batch
        self._on_failure = on_failure
        self._outlasts = outlasts
        self._preference = ReadPreference.of(request.read_preference)
        self._closing: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def execute(self, actions: Iterable[Action], batch_bytes: Callable[[], int]) -> None:
        """Open, reopen and close cursors; ``batch_bytes`` returns the size of a first batch."""
        for action in actions:
            if isinstance(action, OpenRemote):
                log.debug("open remote", target=action.target, start_at=action.start_at)
                remote = self[action.remote] = ScheduledRemote(action, self._limits)
                self._memory.add(remotes=1)
                self._open(remote, action, batch_bytes())
            elif isinstance(action, ReopenRemote):
                remote = self[action.remote]
                self._close(remote)
                self._open(remote, action, batch_bytes())
            elif isinstance(action, CloseRemote) and action.remote in self:
                self._remove(action.remote)

    def describe(self, stream: MergedStream) -> dict[str, Any]:
        """Return what serverStatus shows of the remotes of ``stream``.

        ``waiting`` is whether the slowest shard keeps buffered events back.
        """
        slowest = self.get(-1 if stream.slowest_remote is None else stream.slowest_remote)
        return {
            "bufferedBytes": Int64(stream.all_buffered_bytes),
            "heldBytes": Int64(stream.held_bytes),
            "slowestShard": None if slowest is None else slowest.target,
            "slowestReason": None if slowest is None else slowest.slowest_reason,
            "waiting": slowest is not None and stream.is_held_back,
            "remotes": [
                remote.describe(stream.watermark(number), stream.buffered_bytes(number))
                for number, remote in self.items()
            ],
        }

    def close(self) -> None:
        """Kill all cursors, in the background."""
        for number in list(self):
            self._remove(number)

    def _remove(self, number: int) -> None:
        self._memory.add(remotes=-1)
        self._close(self.pop(number))

    async def closed(self) -> None:
        """Wait until the closed cursors are killed, within bounded time."""
        while self._closing:
            await asyncio.wait(self._closing)

    def _open(
        self, remote: ScheduledRemote, action: OpenRemote | ReopenRemote, batch_bytes: int
    ) -> None:
        number, opening = action.remote, opening_of(self._request, action)
        preference = PRIMARY if remote.topology else self._preference
        settings = replace(self._limits, batch_target_bytes=batch_bytes)
        probing = None
        if not remote.topology:
            probing = Probing(
                lambda pbrt: progress_command(*opening(pbrt), pbrt),
                self._request.splits_large_events,
            )
        remote.cursor = RemoteCursor(
            remote.target,
            dialer=self._cluster.dialer(remote.target, remote.host or None, preference=preference),
            opening=opening,
            clock=self._cluster.clock,
            settings=settings,
            sent=self._loads.of(remote.target),
            probing=probing,
        )
        reading = self._follow(number, remote.cursor)
        self._start(reading, f"remote cursor {remote.target}", spans.apart())

    async def _follow(self, number: int, cursor: RemoteCursor) -> None:
        """Read a cursor until it is closed, ends or fails."""
        with self._failure_reported(number, cursor):
            while True:
                try:
                    batch = await cursor.read()
                except CommandError:
                    if cursor.in_outage and self._outlasts(number):
                        continue
                    raise
                if batch is None:
                    return
                self._on_batch(number, batch)
                del batch  # the merge owns the events, and frees them while the next is awaited

    def probe(self, remote: ScheduledRemote, seconds: float) -> None:
        """Query a member's progress within ``seconds``; what it reports arrives as a batch."""
        if remote.probing is None or remote.probing.done():
            querying = self._query(remote.number, remote.cursor, seconds)
            remote.probing = self._start(querying, f"progress cursor of {remote.target}")

    async def _query(self, number: int, cursor: RemoteCursor, seconds: float) -> None:
        with self._failure_reported(number, cursor):
            batch = await cursor.probe_progress(seconds)
            if batch is not None:
                self._on_batch(number, batch)

    @contextmanager
    def _failure_reported(self, number: int, cursor: RemoteCursor) -> Iterator[None]:
        """Report a failure of the block, unless the cursor is the remote's no longer."""
        try:
            yield
            return
        except CommandError as error:
            failure = error
        except Exception as error:
            log.error("remote cursor broke", remote=cursor.name, exc_info=error)
            failure = CommandError.unexpected(error)
        if number in self and self[number].cursor is cursor:
            self._on_failure(number, failure, cursor.address)

    def _start(
        self, work: Coroutine[Any, Any, None], name: str, context: Context | None = None
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _close(self, remote: ScheduledRemote) -> None:
        remote.end_delay()
        task = self._start(remote.cursor.close(), f"close {remote.target}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

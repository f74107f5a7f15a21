"""The read scheduler: which remotes read on, how long their getMores wait, and which get no-ops."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import structlog
from bson.int64 import Int64
from bson.timestamp import Timestamp

from router.request.progress_command import progress_command
from router.request.stream_request import StreamRequest, shard_command, topology_command
from router.stream.merged_stream import MergedStream
from router.stream.merger import Laggard, OpenRemote, ReopenRemote
from router.stream.noop_writer import NoOpResult
from router.stream.pacing import COLLECTING, FlowControl, ReadState
from router.stream.resources import StreamResources
from router.stream.view_readers import ViewReaders
from router.stream_settings import StreamSettings
from shard_client.bson.resume_token import cluster_time_of, next_tick
from shard_client.remote_cursor.progress_cursor import Probing
from shard_client.remote_cursor.remote_cursor import RemoteCursor
from shard_client.replica_set.replica_set import PRIMARY, ReadPreference

log = structlog.get_logger()

REASONS = ("idle", "behind", "paused", "reconnecting", "opening", "ended")
"""Why a slowest shard's watermark is not greater (``ScheduledRemote.slowest_reason``)."""


class ScheduledRemote(ReadState):
    """One remote of a running stream: its cursor, and the state by which its reads are scheduled.

    The read scheduler changes the state; the running stream starts the probe, and ends the delay of
    a remote that it closes.
    """

    cursor: RemoteCursor

    def __init__(self, action: OpenRemote, settings: StreamSettings) -> None:
        super().__init__(settings, topology=action.topology)
        self.number = action.remote
        self.target = action.target
        self.host = action.host
        self.noops_asked = 0
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
        """The state of the cursor: "opening", "reading", "paused", "failing" or "ended".

        It is paused by a budget, or because no client reads; not while its next getMore is delayed.
        """
        state = self.cursor.state
        return "reading" if state == "paused" and self.delay is not None else state

    @property
    def slowest_reason(self) -> str:
        """Why the watermark is not greater: one of ``REASONS``.

        "idle" is a member without newer events, "behind" one that still has events to read.
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
            "noopCommands": Int64(self.noops_asked),
        }
        if self.topology:
            document["topology"] = True
        if cursor.failing_for is not None:
            document["failingMillis"] = Int64(cursor.failing_for * 1000)
            document["error"] = None if cursor.last_error is None else str(cursor.last_error)
        return document


class Remotes(dict[int, ScheduledRemote]):
    """The open remotes of one stream by number, each with a cursor that its owner reads and closes.

    ``request`` is what the shards are asked for.
    """

    def __init__(self, request: StreamRequest, resources: StreamResources) -> None:
        super().__init__()
        self._request = request
        self._resources = resources
        self._preference = ReadPreference.of(request.read_preference)

    def remove(self, remote: ScheduledRemote) -> None:
        """Remove a remote."""
        del self[remote.number]
        self._resources.memory.add(remotes=-1)

    def open(self, action: OpenRemote | ReopenRemote, batch_bytes: int) -> ScheduledRemote:
        """Give a new or a known remote a new cursor with batches of ``batch_bytes`` at most.

        Return the remote, whose cursor nobody reads yet. If this raises, nothing has changed.
        """
        request, (cluster, settings, loads, _, memory) = self._request, self._resources
        first: Timestamp | bytes
        if isinstance(action, OpenRemote):
            remote, first = ScheduledRemote(action, settings), action.start_at
        else:
            remote, first = self[action.remote], action.start_after

        def command(pbrt: bytes | None) -> tuple[str, dict[str, Any]]:
            start = first if pbrt is None else pbrt
            return topology_command(start) if remote.topology else shard_command(request, start)

        preference = PRIMARY if remote.topology else self._preference
        probing = None
        if not remote.topology:
            probing = Probing(
                lambda pbrt: progress_command(*command(pbrt), pbrt), request.splits_large_events
            )
        remote.cursor = RemoteCursor(
            remote.target,
            dialer=cluster.dialer(remote.target, remote.host or None, preference=preference),
            opening=command,
            clock=cluster.clock,
            settings=replace(settings, batch_target_bytes=batch_bytes),
            sent=loads.of(remote.target),
            probing=probing,
        )
        if isinstance(action, OpenRemote):
            log.debug("open remote", target=action.target, start_at=action.start_at)
            self[action.remote] = remote
            memory.add(remotes=1)
        return remote

    def describe(self, stream: MergedStream) -> dict[str, Any]:
        """Return what serverStatus shows of the remotes of ``stream``.

        ``waiting`` is whether the slowest shard keeps buffered events back.
        """
        slowest = self.get(
            -1 if stream.merger.slowest_remote is None else stream.merger.slowest_remote
        )
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


_TRANSIT = 0.0003
"""Seconds by which a getMore's reply arrives after the end of its wait."""
_LONG = 0.1
"""Seconds: if a getMore waits longer than this, its member is probed regardless of the cost."""
_SOONEST = 0.02
"""Minimum number of seconds before members that still keep events back are checked again."""


class ReadScheduler:
    """Applies flow control to the remotes of one stream, and moves idle members past its events.

    The rules are in docs/design.md#a-remote-cursor and docs/design.md#idle-shards. ``views`` has
    the readers; ``probe`` queries a member's progress, within so many seconds, in the background.
    Must be created in a running loop.
    """

    def __init__(
        self,
        stream: MergedStream,
        remotes: Remotes,
        views: ViewReaders,
        resources: StreamResources,
        probe: Callable[[ScheduledRemote, float], None],
    ) -> None:
        self.opening = True
        """Whether the stream is being opened: then no remote is paused although no client reads."""
        self._stream = stream
        self._remotes = remotes
        self._views = views
        self._noop_writer = resources.noop_writer
        self._settings = resources.settings
        self._memory = resources.memory
        self._probe = probe
        self.flow = FlowControl(resources.settings, resources.memory)
        self._loop = asyncio.get_running_loop()
        self._unread = False
        """Whether no client has read for so long that remotes are paused and get no no-ops."""
        self._soon: asyncio.Handle | None = None
        self._soon_at = 0.0
        self._later: asyncio.TimerHandle | None = None
        self._closed = False

    def batch_bytes(self, *, more: bool) -> int:
        """Return the size of batches with which a remote is opened, one ``more`` or a known one."""
        return self.flow.batch_bytes(len(self._remotes) + more)

    def client_reads(self) -> None:
        """Record client activity and resume prefetching if it had stopped."""
        self.flow.client_read(self._loop.time())
        if self._unread:
            self._unread = False
            self.read_on()

    def close(self) -> None:
        """Write no more no-ops."""
        self._closed = True
        for timer in (self._soon, self._later):
            if timer is not None:
                timer.cancel()

    # GetMores.

    def batch_arrived(
        self, number: int, events: int, reached: Timestamp | None, now: float, *, complete: bool
    ) -> None:
        """Decide whether a remote's next getMore is sent, and with what wait and batch size.

        Call it for each reply of the remote ``number``, once the merged stream has processed it:
        it had so many ``events``, and shows that the member's oplog ends at ``reached``, if given;
        ``complete`` is whether it is known that the member had no more events.
        """
        remote = self._remotes.get(number)
        if remote is None:
            return
        flow, stream, cursor = self.flow, self._stream, remote.cursor
        remote.record(events, reached, now, complete=complete)
        if events:
            flow.events_arrived(remote, events, now)
        size = self._memory.batch_bytes
        if self._views.fan_out.readers:
            size = min(size, flow.batch_bytes(len(self._remotes), filtered=True))
        cursor.aim_at(size)
        needed = stream.is_needed(number)
        if events or needed:
            self.write_noops(now, arriving=True)
        key = stream.watermark(number)
        watermark = None if key is None else cluster_time_of(key)
        if watermark is not None and remote.overdue.waiting:
            self._check_progress(remote, watermark, now)
        if not needed:
            remote.reset_wait()
            remote.noop.shown()
        next_noop = self._next_noop(remote, now)
        alone = len(self._remotes) == 1
        wait = flow.wait(remote, watermark, now, needed=needed, next_noop=next_noop, alone=alone)
        if wait.delay:
            remote.end_delay()
            cursor.pause()
            remote.delay = self._loop.call_later(wait.delay, self._delay_over, remote)
        cursor.set_await(wait.seconds)
        if flow.is_unread(now) and not (self._views.waiting or self.opening):
            self._unread = True
            cursor.pause()
        elif not self._may_read(number):
            cursor.pause()

    def read_on(self) -> None:
        """Resume the paused remotes for which the budgets allow another batch."""
        for number, remote in self._remotes.items():
            if remote.cursor.wants_pause and remote.delay is None and self._may_read(number):
                remote.cursor.resume()

    def _may_read(self, number: int) -> bool:
        """Return whether the byte budgets allow another batch."""
        stream = self._stream
        return self.flow.may_read(
            stream.buffered_bytes(number),
            stream.all_buffered_bytes,
            len(self._remotes),
            filtered=self._views.fan_out.readers > 0,
        )

    def _delay_over(self, remote: ScheduledRemote) -> None:
        remote.end_delay()
        if not self._unread:
            self.read_on()

    def _next_noop(self, remote: ScheduledRemote, now: float) -> float | None:
        """Return the seconds to the member's next no-op if no budget allows a watermark before."""
        if not remote.idle or remote.topology or not self.flow.pace.lively(now):
            return None
        target = self._noop_writer.target(remote.target, remote.host)
        waits = self._settings.writes_noops and target.budget.ready_at(now) > now
        if not waits and remote.may_probe(now):
            return None
        return target.next_done(now) - now

    def _check_progress(self, remote: ScheduledRemote, watermark: Timestamp, now: float) -> None:
        """Leave a member whose watermark does not advance although its replica set has."""
        remote.overdue.watermark(watermark)
        if remote.idle and remote.overdue.give_up(now):
            log.warning(
                "member is left: it does not show what its replica set has written",
                target=remote.target,
                address=remote.cursor.address,
            )
            remote.cursor.leave_member()

    # No-op writes.

    def write_noops(self, now: float, *, arriving: bool = False) -> None:
        """Schedule no-op writes to the members that keep events back.

        ``arriving`` is set while a batch is processed: a write without a delay is then scheduled in
        the next iteration of the event loop, since more batches may have arrived.
        """
        self._schedule(self.flow.noop_delay(now, self._remotes.values()), arriving=arriving)

    def _schedule(self, delay: float, *, arriving: bool) -> None:
        at = self._loop.time() + delay
        if self._soon is not None:
            if self._soon_at <= at:
                return
            self._soon.cancel()
            self._soon = None
        if self._stream.waiting_for is not None or self._stream.leaving:
            self._soon_at = at
            if delay > 0:
                self._soon = self._loop.call_later(delay, self._write_noops)
            elif arriving:
                self._soon = self._loop.call_soon(self._write_noops)
            else:
                self._write_noops()

    def _write_noops(self) -> None:
        self._soon = None
        if self._closed or self._unread:
            return
        now, again, rounds = self._loop.time(), inf, self.flow.rounds
        dense, number = rounds.dense(now), rounds.interval_number(now)
        for laggard in self._lagging:
            remote = self._remotes.get(laggard.remote)
            # A remote that fails, or is getting a no-op write, is checked again when that is over.
            if remote is None or remote.cursor.failing_for is not None:
                continue
            if dense and remote.round == number:
                again = min(again, rounds.next_start(now) + COLLECTING)
                continue
            if not remote.noop.pending:
                remote.round, remote.asked = number, laggard.latest
                self._get_past(remote, laggard, now)
            if not remote.noop.pending:
                again = min(again, max(remote.noop.again, now + _SOONEST))
        if self._later is not None:
            self._later.cancel()
        self._later = None if again == inf else self._loop.call_at(again, self._write_again)

    def _write_again(self) -> None:
        self._later = None
        if self._soon is None:
            self._write_noops()

    @property
    def _lagging(self) -> tuple[Laggard, ...]:
        return (*self._stream.lagging, *self._stream.leaving)

    def _get_past(self, remote: ScheduledRemote, waiting: Laggard, now: float) -> None:
        """Write a no-op, or only ask for the watermark if the oplog is past the events already."""
        if remote.reached > waiting.latest:
            remote.overdue.reached(waiting.latest, now)
            if now >= remote.noop.again:
                remote.noop.done(now)
            self._ask(remote)
        elif not self._settings.writes_noops:
            self._ask(remote)
        elif waiting.latest > remote.noop.past or now >= remote.noop.again:
            remote.noop.ask(waiting.latest)
            remote.noops_asked += 1
            target = self._noop_writer.target(remote.target, remote.host)
            target.write(self, waiting.remote)

    def noop_wanted(self, number: int) -> Timestamp | None:
        """Return the time past which a remote's member is to be moved; None if no event needs it.

        More events may wait for the member than when the no-op write was requested.
        """
        remote = self._remotes.get(number)
        if remote is None or self._closed or self._unread:
            return None
        times = (laggard.latest for laggard in self._lagging if laggard.remote == number)
        latest = max(times, default=None)
        if latest is None or remote.reached > latest:
            return None
        remote.noop.past = latest
        return latest

    def noop_sent(self, number: int, takes: float) -> None:
        """Ask for the watermark of a remote's member, to be answered just after the no-op write.

        ``takes`` is the seconds that the write is expected to take.
        """
        remote = self._remotes.get(number)
        if remote is not None:
            remote.noop.begun = True
            remote.reset_wait()
            self._ask(remote, min(takes - _TRANSIT, self._settings.await_watermark_max))

    def noop_done(self, number: int, result: NoOpResult) -> None:
        """Record the result of a no-op write, and look whether members still keep events back."""
        remote = self._remotes.get(number)
        if remote is None:
            return
        now, past = self._loop.time(), remote.noop.past
        if result is NoOpResult.UNWANTED:
            remote.noop.pending = False
            remote.round = -1
        else:
            remote.noop.done(now)
        if result in {NoOpResult.THERE, NoOpResult.ACKNOWLEDGED}:
            remote.reached = max(remote.reached, next_tick(past))
            remote.overdue.reached(past, now)
        self._schedule(0.0, arriving=True)

    def _ask(self, remote: ScheduledRemote, takes: float | None = None) -> None:
        """Request the remote's watermark, as of now or of ``takes`` seconds from now.

        A remote whose getMore is delayed gets it; one whose getMore waits is asked by its progress
        cursor. A getMore may be delayed while the last one still waits, if the progress cursor was
        asked since. ``takes`` is the time that a no-op write needs.
        """
        cursor = remote.cursor
        if remote.delay is not None:
            cursor.set_await(remote.next_wait() if takes is None else takes)
            self._delay_over(remote)
        if remote.idle and not remote.topology:
            soon = (takes or 0.0) + self._settings.probe_worth
            may_probe = remote.may_probe(self._loop.time())
            if cursor.can_probe(soon if may_probe else max(soon, _LONG)):
                self._probe(remote, remote.next_wait() if takes is None else takes)

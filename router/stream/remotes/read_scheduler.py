"""The read scheduler: which remotes read on, how long their getMores wait, and which get no-ops.

It acts on one stream's remotes. ``flow_control`` decides for it, without I/O; ``noop_writer`` makes
the no-op writes that the streams of the process request, within the budgets of the members.
"""

import asyncio
from math import inf

import structlog
from bson.timestamp import Timestamp

from router.stream.merge.merged_stream import MergedStream
from router.stream.remotes.flow_control import COLLECTING_TIME, FlowControl
from router.stream.remotes.open_remotes import OpenRemotes, StreamResources
from router.stream.remotes.remote import Remote
from shard_client.bson.resume_token import cluster_time_of
from shard_client.remote_cursor.cursor_reply import CursorBatch

log = structlog.get_logger()

_TRANSIT = 0.0003
"""Seconds by which a getMore's reply arrives after the end of its wait."""
_LONG_WAIT = 0.1
"""Seconds: if a getMore waits longer than this, its member is probed regardless of the cost."""
_LEAST_INTERVAL = 0.02
"""Least seconds until members that still keep events back are checked again."""


class ReadScheduler:
    """Applies flow control to the remotes of one stream, and moves idle members past its events.

    After each reply of a remote (``batch_arrived``), flow control decides when the next getMore is
    sent, and how long it waits. When events may be kept back (``check_laggards``), the remotes
    that keep them back are determined. Each is asked for its watermark if its member's oplog is
    past the events. Otherwise the member gets a no-op write, and is asked when that is sent.

    The rules are in docs/design.md#a-remote-cursor and docs/design.md#idle-shards. Must be created
    in a running loop.
    """

    def __init__(
        self,
        stream: MergedStream,
        remotes: OpenRemotes,
        flow: FlowControl,
        resources: StreamResources,
    ) -> None:
        self._stream = stream
        self._remotes = remotes
        self._noop_writer = resources.noop_writer
        self._settings = resources.settings
        self._memory = resources.memory
        self._flow = flow
        self._loop = asyncio.get_running_loop()
        self._suspended = False
        """Whether no client has read for so long that remotes are paused and get no no-ops."""
        self._check: asyncio.Handle | None = None
        """The next check for remotes that keep events back."""
        self._check_asked_at = inf
        """Its time if it was asked for; infinity if it repeats the last one, or there is none."""

    def resume_prefetch(self) -> None:
        """Record client activity and resume prefetching if it had stopped."""
        self._flow.record_client(self._loop.time())
        if self._suspended:
            self._suspended = False
            self.read_on()

    def close(self) -> None:
        """Write no more no-ops, once the remotes are closed."""
        if self._check is not None:
            self._check.cancel()

    # GetMores.

    def batch_arrived(
        self, remote: Remote, batch: CursorBatch, now: float, *, waited_for: bool
    ) -> None:
        """Decide whether a remote's next getMore is sent, and with what wait and batch size.

        Call it for each reply, once the merged stream has processed it. While the stream is
        ``waited_for``, no remote is paused for want of a client that reads.
        """
        number, events = remote.number, len(batch.events)
        if self._remotes.get(number) is None or self._stream.error is not None:
            return
        flow, cursor = self._flow, remote.cursor
        remote.record_reply(events, batch.operation_time, now, complete=batch.complete)
        if events:
            flow.record_events(remote, events, now)
        cursor.aim_at(min(flow.batch_bytes(len(self._remotes)), self._memory.batch_bytes))
        needed = self._stream.is_laggard(number)
        if events or needed or batch.opening:
            self.check_laggards(arriving=True)
        if not needed:
            remote.waits.reset()
            remote.noops.pauses.reset()
        self._set_wait(remote, now, needed=needed)
        if flow.is_unread(now) and not waited_for:
            self._suspended = True
            cursor.pause()
        elif not self._may_read(number):
            cursor.pause()

    def _set_wait(self, remote: Remote, now: float, *, needed: bool) -> None:
        """Set how long the next getMore waits; ``needed`` is whether events need the watermark."""
        watermark = cluster_time_of(remote.in_merge.watermark)
        remote.overdue.record_watermark(watermark)
        if remote.idle and remote.overdue.is_over(now):
            remote.overdue.record_leaving(now)
            log.warning(
                "member is left: it does not show what its replica set has written",
                target=remote.target,
                address=remote.cursor.address,
            )
            remote.cursor.leave_member()
        next_noop, alone = self._next_noop(remote, now), len(self._remotes) == 1
        wait = self._flow.take_next_wait(
            remote, watermark, now, needed=needed, next_noop=next_noop, alone=alone
        )
        if wait.delay:
            remote.delay(wait.delay, self._end_delay)
        remote.cursor.set_await(wait.await_for)

    def read_on(self) -> None:
        """Resume the paused remotes for which the budgets allow another batch."""
        for remote in self._remotes:
            waits = remote.cursor.wants_pause and not remote.is_delayed
            if waits and self._may_read(remote.number):
                remote.cursor.resume()

    def _may_read(self, number: int) -> bool:
        """Return whether the byte budgets allow another batch."""
        stream = self._stream
        buffered, remotes = stream.buffered_bytes(number), len(self._remotes)
        return self._flow.may_read(buffered, stream.all_buffered_bytes, remotes)

    def _end_delay(self, remote: Remote) -> None:
        remote.end_delay()
        if not self._suspended:
            self.read_on()

    def _next_noop(self, remote: Remote, now: float) -> float | None:
        """Return the seconds to the member's next no-op if no budget allows a watermark before."""
        if not remote.idle or remote.topology or not self._flow.is_lively(now):
            return None
        target = self._noop_writer.target_at(remote.target, remote.in_merge.host)
        waits = self._settings.writes_noops and target.budget.ready_at(now) > now
        if not waits and remote.charge_probes(now):
            return None
        return target.next_done(now) - now

    # Members that keep events back.

    def check_laggards(self, *, arriving: bool = False) -> None:
        """Check for remotes that keep events back, after the delay that flow control determines.

        ``arriving`` is set while a batch is processed: a check without a delay then takes place in
        the next iteration of the event loop, since more batches may have arrived.
        """
        self._check_in(self._flow.noop_delay(self._loop.time(), self._remotes), arriving=arriving)

    def _check_in(self, delay: float, *, arriving: bool) -> None:
        """Check after ``delay`` seconds, unless an earlier check has been asked for."""
        at = self._loop.time() + delay
        if at >= self._check_asked_at or not self._stream.has_laggards:
            return
        if delay > 0 or arriving:
            self._set_check(at)
            self._check_asked_at = at
        else:
            self._move_laggards()

    def _set_check(self, at: float) -> None:
        """Set the time of the next check, a past one for at once, infinity for never."""
        if self._check is not None:
            self._check.cancel()
        self._check, self._check_asked_at = None, inf
        if at <= self._loop.time():
            self._check = self._loop.call_soon(self._move_laggards)
        elif at < inf:
            self._check = self._loop.call_at(at, self._move_laggards)

    def _move_laggards(self) -> None:
        """Move the members on that keep events back, and check again when one may still do so."""
        self._set_check(inf)
        now, again, rounds = self._loop.time(), inf, self._flow.rounds
        dense, number = rounds.is_dense(now), rounds.interval_number(now)
        laggards = {} if self._suspended else self._stream.laggards()
        for laggard, latest in laggards.items():
            remote = self._remotes.get(laggard)
            # A remote that fails, or is getting a no-op write, is checked again when that is over.
            if remote is None or remote.cursor.failing_for is not None:
                continue
            if dense and remote.asked_in == number:
                again = min(again, rounds.next_start(now) + COLLECTING_TIME)
                continue
            if remote.noops.state == "none" and not self._move_past(remote, latest, now):
                again = min(again, max(remote.noops.again, now + _LEAST_INTERVAL))
        self._set_check(again)

    def _move_past(self, remote: Remote, latest: Timestamp, now: float) -> bool:
        """Write a no-op, or only ask for the watermark if the oplog is past the events already.

        Return whether a no-op write is requested, the end of which is reported.
        """
        if remote.is_beyond(latest):
            remote.overdue.expect_beyond(latest, now)
            if now >= remote.noops.again:
                remote.noops.delay_repetition(now)
            self._ask(remote, latest)
        elif not self._settings.writes_noops:
            self._ask(remote, latest)
        elif remote.noops.may_request(latest, now):
            remote.noops.record_request(latest)
            target = self._noop_writer.target_at(remote.target, remote.in_merge.host)
            target.request(self, remote.number)
            return True
        return False

    def confirm_noop(self, number: int) -> Timestamp | None:
        """Return the time past which to move a remote's member, or None if no event needs it now.

        More events may wait for the member than when the no-op write was requested.
        """
        remote = self._remotes.get(number)
        if remote is None:
            return None
        latest = None if self._suspended else self._stream.laggards().get(number)
        if latest is None or remote.is_beyond(latest):
            remote.noops.withdraw()
            self._check_in(0.0, arriving=True)
            return None
        return latest

    def noop_sent(self, number: int, past: Timestamp, takes: float) -> None:
        """Ask for the watermark of a remote's member, to be answered just after the no-op write.

        That moves the member ``past`` a time, and is expected to take ``takes`` seconds.
        """
        remote = self._remotes.get(number)
        if remote is not None:
            remote.noops.record_sent(past)
            remote.waits.reset()
            self._ask(remote, past, min(takes - _TRANSIT, self._settings.await_watermark_max))

    def noop_done(self, number: int, *, moved: bool) -> None:
        """Record the result of a no-op write, and look whether members still keep events back."""
        remote = self._remotes.get(number)
        if remote is not None:
            now = self._loop.time()
            past = remote.noops.record_end(now)
            if moved:
                remote.record_noop(past, now)
            self._check_in(0.0, arriving=True)

    def _ask(self, remote: Remote, past: Timestamp, takes: float | None = None) -> None:
        """Request a watermark ``past`` a time, as of now or of ``takes`` seconds from now.

        A remote whose getMore is delayed gets it; one whose getMore waits is asked by its progress
        cursor. A getMore may be delayed while the last one still waits, if the progress cursor was
        asked since. ``takes`` is the time that a no-op write needs.
        """
        cursor, now = remote.cursor, self._loop.time()
        remote.ask_in(self._flow.rounds.interval_number(now), past)
        if remote.is_delayed:
            cursor.set_await(remote.waits.next_pause() if takes is None else takes)
            self._end_delay(remote)
        if remote.idle and not remote.topology:
            soon = (takes or 0.0) + self._settings.probe_worth
            may_probe = remote.charge_probes(now)
            if cursor.can_probe(soon if may_probe else max(soon, _LONG_WAIT)):
                self._remotes.probe(remote, remote.waits.next_pause() if takes is None else takes)

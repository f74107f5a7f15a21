"""Nudging the idle members that keep a stream's events back, and asking for their promises."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from math import inf

import structlog
from bson.timestamp import Timestamp

from router.change_stream.actions import Waiting
from router.change_stream.merged_stream import MergedStream
from router.change_stream.resume_token import cluster_time_of
from router.stream_settings import StreamSettings
from router.streams.nudge_sender import NudgeResult, NudgeSender
from router.streams.remote import Remote
from router.streams.rounds import Rounds
from shard_client.cluster_clock import next_tick

log = structlog.get_logger()

_TRANSIT = 0.0003
"""Seconds by which a getMore's reply arrives after the end of its wait."""
_LONG = 0.1
"""Seconds: if a getMore waits longer than this, its member is probed regardless of the cost."""
COLLECTING = 0.01
"""Seconds from the start of a round until members that keep events back are nudged, if not all
batches of the round have arrived before."""
_SOONEST = 0.02
"""Minimum number of seconds before members that still keep events back are checked again."""


class IdleMembers:
    """Moves the members of one stream past the events that wait for them.

    See docs/design.md#idle-shards. ``lingering`` is set while no client reads the stream; no
    member is nudged then. ``resume`` is called when the rest of a remote has ended and getMores to
    it may continue.
    """

    def __init__(
        self,
        stream: MergedStream,
        remotes: Mapping[int, Remote],
        nudge_sender: NudgeSender,
        limits: StreamSettings,
        rounds: Rounds,
        resume: Callable[[], None],
    ) -> None:
        self.lingering = False
        self._stream = stream
        self._remotes = remotes
        self._nudge_sender = nudge_sender
        self._limits = limits
        self._rounds = rounds
        self._resume = resume
        self._loop = asyncio.get_running_loop()
        self._soon: asyncio.Handle | None = None
        self._soon_at = 0.0
        self._later: asyncio.TimerHandle | None = None
        self._closed = False

    def schedule(self, delay: float, *, arriving: bool = False) -> None:
        """Nudge the members that still keep events back after ``delay`` seconds.

        ``arriving`` is set while a batch is processed: with a ``delay`` of 0 the members are then
        nudged in the next iteration of the event loop, since more batches may have arrived.
        """
        stream = self._stream
        at = self._loop.time() + delay
        if self._soon is not None:
            if self._soon_at <= at:
                return
            self._soon.cancel()
            self._soon = None
        if stream.waiting_for is not None or stream.leaving:
            self._soon_at = at
            if delay > 0:
                self._soon = self._loop.call_later(delay, self._nudge)
            elif arriving:
                self._soon = self._loop.call_soon(self._nudge)
            else:
                self._nudge()

    def rest(self, remote: Remote, seconds: float) -> None:
        """Send ``remote`` no getMore for ``seconds``, or until its member is nudged."""
        if remote.cursor is not None:
            remote.end_rest()
            remote.cursor.pause()
            remote.rest = self._loop.call_later(seconds, self._rested, remote)

    def check_progress(self, number: int, remote: Remote, now: float) -> None:
        """Leave a member whose promise does not advance although its replica set has."""
        promise = self._stream.promise(number)
        if remote.cursor is None or promise is None or not remote.overdue.waiting:
            return
        remote.overdue.promised(cluster_time_of(promise))
        if remote.idle and remote.overdue.give_up(now):
            log.warning(
                "member is left: it does not show what its replica set has written",
                target=remote.target,
                address=remote.cursor.address,
            )
            remote.cursor.leave_member()

    def close(self) -> None:
        """Stop nudging."""
        self._closed = True
        for timer in (self._soon, self._later):
            if timer is not None:
                timer.cancel()

    def _rested(self, remote: Remote) -> None:
        remote.end_rest()
        if not self.lingering:
            self._resume()

    def _nudge(self) -> None:
        self._soon = None
        if self._closed or self.lingering:
            return
        now, again = self._loop.time(), inf
        dense, number = self._rounds.dense(now), self._rounds.number(now)
        for each in (*self._stream.lagging, *self._stream.leaving):
            remote = self._remotes.get(each.remote)
            # A remote that fails, or is being nudged, is checked again when that is over.
            if remote is None or remote.cursor is None or remote.cursor.failing_for is not None:
                continue
            if dense and remote.round == number:
                again = min(again, self._rounds.next_start(now) + COLLECTING)
                continue
            if not remote.nudge.pending:
                remote.round, remote.asked = number, each.latest
                self._get_past(remote, each, now)
            if not remote.nudge.pending:
                again = min(again, max(remote.nudge.again, now + _SOONEST))
        if self._later is not None:
            self._later.cancel()
        self._later = None if again == inf else self._loop.call_at(again, self._nudge_again)

    def _nudge_again(self) -> None:
        self._later = None
        if self._soon is None:
            self._nudge()

    def _get_past(self, remote: Remote, waiting: Waiting, now: float) -> None:
        """Nudge the member, or only ask for its promise if its oplog is past the events already."""
        if remote.reached > waiting.latest:
            remote.overdue.reached(waiting.latest, now)
            if now >= remote.nudge.again:
                remote.nudge.done(now)
            self._ask(remote)
        elif not self._limits.nudges:
            self._ask(remote)
        elif waiting.latest > remote.nudge.past or now >= remote.nudge.again:
            remote.nudge.ask(waiting.latest)
            remote.nudges += 1
            self._nudge_sender.nudge(
                remote.target,
                remote.host,
                wanted=partial(self._wanted, remote, waiting.remote),
                begun=partial(self._nudge_begun, remote),
                done=partial(self._nudge_done, remote),
            )

    def _wanted(self, remote: Remote, number: int) -> Timestamp | None:
        """Return the time that the nudge must move the member past; None if no event needs it.

        More events may wait for the member than when the nudge was requested.
        """
        if self._closed or self.lingering or self._remotes.get(number) is not remote:
            return None
        waiting = (*self._stream.lagging, *self._stream.leaving)
        latest = max((each.latest for each in waiting if each.remote == number), default=None)
        if latest is None or remote.reached > latest:
            return None
        remote.nudge.past = latest
        return latest

    def _nudge_begun(self, remote: Remote, takes: float) -> None:
        """Ask for the member's promise, so that it answers just after the nudge."""
        remote.nudge.begun = True
        remote.policy.reset()
        self._ask(remote, min(takes - _TRANSIT, self._limits.await_gate_max))

    def _nudge_done(self, remote: Remote, result: NudgeResult) -> None:
        now, past = self._loop.time(), remote.nudge.past
        if result is NudgeResult.UNWANTED:
            remote.nudge.pending = False
            remote.round = -1
        else:
            remote.nudge.done(now)
        if result in {NudgeResult.THERE, NudgeResult.ACKNOWLEDGED}:
            remote.reached = max(remote.reached, next_tick(past))
            remote.overdue.reached(past, now)
        self.schedule(0.0, arriving=True)

    def _ask(self, remote: Remote, takes: float | None = None) -> None:
        """Request the remote's promise, as of now or of ``takes`` seconds from now.

        A remote that rests gets its next getMore; one whose getMore waits is asked by its progress
        cursor. A remote may rest while its last getMore still waits, if its progress cursor was
        asked since. ``takes`` is the time that a nudge needs.
        """
        cursor = remote.cursor
        if cursor is None:
            return
        if remote.rest is not None:
            cursor.set_await(remote.policy.next_wait() if takes is None else takes)
            self._rested(remote)
        if remote.idle and not remote.topology:
            soon = (takes or 0.0) + self._limits.probe_worth
            affords = remote.probes.affords(self._loop.time())
            if cursor.can_probe(soon if affords else max(soon, _LONG)):
                cursor.probe_progress(remote.policy.next_wait() if takes is None else takes)

"""Steering of a stream's remotes: which of them read on, how much, and how long getMores wait."""

import asyncio
from collections.abc import Mapping, Set

from router.change_stream.merged_stream import MergedStream
from router.change_stream.resume_token import cluster_time_of
from router.memory import Memory
from router.stream_settings import StreamSettings
from router.streams.filtered_readers import FilteredReaders
from router.streams.flow_control import FlowControl, Wait
from router.streams.idle_members import COLLECTING, IdleMembers
from router.streams.nudge_sender import NudgeSender
from router.streams.remote import Remote
from router.streams.rounds import Rounds

_BUSY = 0.25
"""Seconds after its last event during which a remote is read at the start of each round."""
_COLLECTED = 0.004
"""Seconds for which the first getMore of a round waits for events: about as long as a nudge takes,
so that a member without events shows its progress."""
_MOST_LAG = 2
"""Seconds of cluster time by which the promise of a remote that is read in rounds may lag."""


class Steering:
    """Applies flow control to the remotes of one stream, and nudges its idle members.

    Must be created in a running loop.

    Args:
        stream: the merged stream.
        remotes: its open remotes by number.
        filtered: its filtered readers.
        waiters: the futures of the other readers that wait for events.
        nudge_sender: nudges members.
        limits: the settings of streams.
        memory: the memory of the process.
    """

    def __init__(
        self,
        stream: MergedStream,
        remotes: Mapping[int, Remote],
        filtered: FilteredReaders,
        waiters: Set[asyncio.Future[None]],
        nudge_sender: NudgeSender,
        limits: StreamSettings,
        memory: Memory,
    ) -> None:
        self.opening = False
        """Whether the stream is being opened: then no remote is paused although no client reads."""
        self._stream = stream
        self._remotes = remotes
        self._filtered = filtered
        self._waiters = waiters
        self._nudge_sender = nudge_sender
        self._limits = limits
        self._memory = memory
        self._flow = FlowControl(limits, memory)
        self._loop = asyncio.get_running_loop()
        self._rounds = Rounds(limits, self._loop.time())
        self._idle = IdleMembers(stream, remotes, nudge_sender, limits, self._rounds, self.read_on)

    @property
    def batch_bytes(self) -> int:
        """The size of batches with which a remote is opened."""
        return self._flow.batch_bytes(len(self._remotes))

    def client_reads(self) -> None:
        """Record client activity and resume prefetching if it had stopped."""
        self._flow.client_read(self._loop.time())
        if self._idle.lingering:
            self._idle.lingering = False
            self.read_on()

    def client_took(self, size: int) -> None:
        """Record that a client has taken events of ``size`` bytes."""
        self._flow.client_took(size)

    def clients_left(self) -> None:
        """Stop prefetching, as the stream has no client; the next one resumes it."""
        self._flow.clients_left()

    def batch_arrived(self, number: int, remote: Remote, now: float, events: int) -> None:
        """Decide whether a remote's next getMore is sent, and with what wait and batch size.

        Call it for each reply of the remote, once the merged stream has processed it.

        Args:
            number: the remote's number.
            remote: the remote.
            now: the loop's time.
            events: the number of events in the reply.
        """
        if events:
            self._flow.pace.event(now)
            remote.events_at = now
            if remote.idle:
                self._rounds.charge(events, now)
        remote.collects_in = -1
        cursor = remote.cursor
        if cursor is None:
            return
        size = self._memory.batch_bytes
        if self._filtered.fan_out.readers:
            size = min(size, self._flow.batch_bytes(len(self._remotes), filtered=True))
        cursor.aim_at(size)
        stream = self._stream
        needed = stream.needed_from(number) is not None
        if events or needed:
            self.nudge_laggards(now, arriving=True)
        self._idle.check_progress(number, remote, now)
        if not needed:
            remote.policy.reset()
            remote.nudge.shown()
        promise = stream.promise(number)
        wait = self._of_round(remote, promise, now) or self._flow.wait(
            remote.policy,
            needed=needed,
            due=remote.nudge.begun or promise is None or remote.reached > cluster_time_of(promise),
            idle=remote.idle,
            topology=remote.topology,
            next_note=self._next_note(remote, now),
        )
        if wait.rest:
            self._idle.rest(remote, wait.rest)
        cursor.set_await(wait.seconds)
        if self._flow.is_unread(now) and not (self._are_readers_waiting or self.opening):
            self._idle.lingering = True
            cursor.pause()
        elif not self._may_read(number):
            cursor.pause()

    def nudge_laggards(self, now: float, *, arriving: bool = False) -> None:
        """Schedule nudges of the members that keep events back.

        ``arriving`` is set while a batch is processed, since more batches may have arrived.
        """
        delay = self._flow.nudge_delay(now)
        if self._rounds.dense(now):
            number = self._rounds.number(now)
            collecting = any(each.collects_in == number for each in self._remotes.values())
            delay = COLLECTING if collecting else 0.0
        self._idle.schedule(delay, arriving=arriving)

    def read_on(self) -> None:
        """Resume the paused remotes for which the budgets allow another batch."""
        for number, remote in self._remotes.items():
            cursor = remote.cursor
            if cursor is None or not cursor.paused or remote.rest is not None:
                continue
            if self._may_read(number):
                cursor.resume()

    def close(self) -> None:
        """Stop nudging."""
        self._idle.close()

    @property
    def _are_readers_waiting(self) -> bool:
        return bool(self._waiters) or self._filtered.waiting

    def _next_note(self, remote: Remote, now: float) -> float | None:
        """Return the seconds to the member's next note if no budget allows a promise before it."""
        if not remote.idle or remote.topology or not self._flow.pace.lively(now):
            return None
        nudge_sender, target, host = self._nudge_sender, remote.target, remote.host
        noted = self._limits.nudges and nudge_sender.ready_at(target, host, now) > now
        if not noted and remote.probes.affords(now):
            return None
        return nudge_sender.next_tick(target, host, now) - now

    def _of_round(self, remote: Remote, promise: bytes | None, now: float) -> Wait | None:
        """Return the wait of a remote that is read in rounds; None if it is not."""
        if promise is None or remote.topology or not (remote.idle and self._rounds.dense(now)):
            return None
        promised = cluster_time_of(promise)
        if promised.time + _MOST_LAG < remote.reached.time or not remote.reached.time:
            return None  # a backlog, whose batches are followed at once
        if promised <= remote.asked and (remote.nudge.begun or not remote.nudge.pending):
            return Wait(remote.policy.next_wait())
        remote.policy.reset()
        rest = self._rounds.next_start(now) - now
        if now - remote.events_at < _BUSY:
            remote.collects_in = self._rounds.number(now) + 1
            return Wait(min(self._limits.await_quiet, _COLLECTED), rest)
        # The nudge in the next round ends the rest, unless the stream has no events then.
        return Wait(self._limits.await_quiet, rest + self._rounds.interval / 2)

    def _may_read(self, number: int) -> bool:
        """Return whether the byte budgets allow another batch."""
        stream = self._stream
        return self._flow.may_read(
            stream.buffered_bytes(number),
            stream.all_buffered_bytes,
            len(self._remotes),
            filtered=self._filtered.fan_out.readers > 0,
        )

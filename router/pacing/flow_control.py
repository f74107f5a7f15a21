"""Flow control of a merged stream: which remotes are read, how far ahead, and with what waits.

Pure: times are arguments, in seconds on one clock; sizes are bytes of memory. The rules are in
docs/design.md#a-remote-cursor (budgets) and docs/design.md#idle-shards (waits).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from bson.timestamp import Timestamp

from router.memory import Memory
from router.pacing.read_state import ReadState
from router.pacing.rounds import Rounds
from router.stream_settings import PacingSettings

_AVERAGED = 8
"""Number of batches over which the pace is averaged."""
_FILTERED_PART: Final = 4
"""Divisor of a stream's budgets while its events are distributed to filters: the router takes the
events itself then, as fast as it can."""
_LIVELY = 1.0
"""Seconds after its last event during which a stream is expected to deliver more."""
_BUSY: Final = 0.25
"""Seconds after its last event during which a remote is read at the start of each round."""
_COLLECTED: Final = 0.004
"""Seconds for which the first getMore of a round waits for events: about as long as a no-op write
takes, so that a member without events shows its progress."""
_MOST_LAG: Final = 2
"""Seconds of cluster time by which the watermark of a remote that is read in rounds may lag."""
COLLECTING: Final = 0.01
"""Seconds from the start of a round until members that keep events back get no-op writes, if not
all batches of the round have arrived before."""


class Wait(NamedTuple):
    """The wait of a remote's next getMore, in seconds.

    ``delay`` is the time for which the getMore is not sent at all, unless a no-op write is.
    """

    seconds: float
    delay: float = 0.0


class FlowControl:
    """Decides for one stream when its remotes are read, and how long their getMores wait.

    A getMore waits long, since events end the wait. An event that other members keep back needs
    their watermarks at once, which progress cursors report. While progress cursors or no-op writes
    are out of budget, a getMore ends when the next no-op write is done, so that there is one
    getMore per write. A dense stream is read in ``rounds``.
    """

    def __init__(self, limits: PacingSettings, memory: Memory) -> None:
        self._limits = limits
        self._memory = memory
        self._read_until = 0.0
        self._ahead = limits.first_ahead_bytes
        self.pace = Pace(limits)
        self.rounds = Rounds(limits)

    def events_arrived(self, remote: ReadState, events: int, now: float) -> None:
        """Record that a remote's reply had events."""
        self.pace.event(now)
        if remote.idle:
            self.rounds.charge(events, now)

    def client_read(self, now: float) -> None:
        """Record that a client reads the stream or waits for it."""
        self._read_until = now + self._limits.linger

    def client_took(self, size: int) -> None:
        """Record that a client has taken events of ``size`` bytes, so that more is read ahead."""
        self._ahead += 2 * size

    def clients_left(self) -> None:
        """Record that the last client has left, so that nothing more is read ahead."""
        self._read_until = float("-inf")

    def is_unread(self, now: float) -> bool:
        """Return whether no client has read the stream for so long that prefetching stops."""
        return now > self._read_until

    def batch_bytes(self, remotes: int, *, filtered: bool = False) -> int:
        """Return the size of batches, of which two fit into each remote's even share.

        ``remotes`` is the number of the stream's remotes, ``filtered`` whether its events are
        distributed to filters.
        """
        half = self._even_half(filtered)
        return max(1, min(self._limits.batch_target_bytes, half // (2 * remotes)))

    def may_read(
        self, buffered: int, all_buffered: int, remotes: int, *, filtered: bool = False
    ) -> bool:
        """Return whether the budgets allow another batch of a remote with ``buffered`` bytes.

        ``all_buffered`` is the number of bytes buffered for all ``remotes``. A remote with an empty
        buffer always may. The slowest shard's buffer is empty once the ready events have been
        taken, so the budgets never stop the low watermark, and it never waits for a client.
        ``filtered`` is whether the stream's events are distributed to filters.
        """
        if not buffered:
            return True
        if self._memory.short or (all_buffered > self._ahead and not filtered):
            return False
        batch = self.batch_bytes(remotes, filtered=filtered)
        if buffered + batch > self._limits.remote_buffer_bytes // (
            _FILTERED_PART if filtered else 1
        ):
            return False
        half = self._even_half(filtered)
        return (buffered + batch) * remotes <= half or all_buffered + batch * remotes <= half

    def _even_half(self, filtered: bool) -> int:
        """Return the half of the stream's budget that is divided evenly among the remotes.

        If the others used up the budget, a remote with an empty buffer would hold the low watermark
        and stop them all. The other half is for remotes that are ahead.
        """
        return self._limits.stream_buffer_bytes // (_FILTERED_PART if filtered else 1) // 2

    def noop_delay(self, now: float, remotes: Iterable[ReadState]) -> float:
        """Return the time to wait before the members that keep events back get no-op writes."""
        if self.rounds.dense(now):
            number = self.rounds.interval_number(now)
            return COLLECTING if any(each.collects_in == number for each in remotes) else 0.0
        limits = self._limits
        # If events arrive quickly, most members get past them by themselves.
        least = limits.await_watermark if self.pace.active(now) else 0.0
        return max(limits.noop_delay, least)

    def wait(
        self,
        remote: ReadState,
        watermark: Timestamp | None,
        now: float,
        *,
        needed: bool,
        next_noop: float | None,
    ) -> Wait:
        """Return the wait of a remote's next getMore.

        ``watermark`` is the remote's, and ``needed`` whether events need it to advance;
        ``next_noop`` is the time until the member's next no-op write, if the budgets allow no
        watermark before it.
        """
        if watermark is not None and (wait := self._wait_for_round(remote, watermark, now)):
            return wait
        limits = self._limits
        quiet = limits.await_quiet
        # Whether the member's oplog is already past the watermark, or gets a no-op write.
        due = needed and (remote.noop.begun or watermark is None or remote.reached > watermark)
        if needed and not limits.noops:
            return Wait(min(quiet, remote.next_wait()))
        if remote.topology and remote.idle:
            # It has no events that could end a wait, so it need not wait on the config server.
            return Wait(remote.next_wait()) if due else Wait(limits.await_watermark, delay=quiet)
        if not remote.idle:
            # A getMore that waits cannot be distinguished from one that scans: keep the wait short.
            return Wait(min(quiet, limits.await_unknown))
        if next_noop is not None:
            return Wait(min(quiet, remote.next_wait() if due else next_noop))
        return Wait(quiet)

    def _wait_for_round(self, remote: ReadState, watermark: Timestamp, now: float) -> Wait | None:
        """Return the wait of a remote that is read in rounds; None if it is not."""
        rounds = self.rounds
        if remote.topology or not (remote.idle and rounds.dense(now)):
            return None
        if watermark.time + _MOST_LAG < remote.reached.time or not remote.reached.time:
            return None  # a backlog, whose batches are followed at once
        if watermark <= remote.asked and (remote.noop.begun or not remote.noop.pending):
            return Wait(remote.next_wait())
        remote.reset_wait()
        until = rounds.next_start(now) - now
        if now - remote.events_at < _BUSY:
            remote.collects_in = rounds.interval_number(now) + 1
            return Wait(min(self._limits.await_quiet, _COLLECTED), until)
        # The no-op write in the next round ends the delay, unless the stream has no events then.
        return Wait(self._limits.await_quiet, until + 0.5 / rounds.per_second)


class Pace:
    """The average interval between a stream's events."""

    __slots__ = ("_interval", "_last", "_limits")

    def __init__(self, limits: PacingSettings) -> None:
        self._limits = limits
        self._interval = limits.active_for
        self._last = float("-inf")

    def event(self, now: float) -> None:
        """Record the arrival of a batch with events."""
        # A long pause is capped, since it does not predict the pace after it.
        passed = min(now - self._last, 2 * self._limits.active_for)
        self._interval += (passed - self._interval) / _AVERAGED
        self._last = now

    def active(self, now: float) -> bool:
        """Return whether events arrive in quick succession."""
        return max(self._interval, now - self._last) < self._limits.active_for

    def lively(self, now: float) -> bool:
        """Return whether an event has arrived within the last second."""
        return now - self._last < _LIVELY

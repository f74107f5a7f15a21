"""Pacing: which remotes of a stream are read, how far ahead, and with what waits.

Does no I/O. Times are in seconds on one monotonic clock; sizes are bytes of memory. The rules are
in docs/design.md#a-remote-cursor (budgets) and docs/design.md#idle-shards (waits).
"""

from collections.abc import Callable, Iterable
from functools import partial
from math import floor, inf
from typing import Final, Literal, NamedTuple

from bson.timestamp import Timestamp

from router.limits.memory import Memory
from router.stream_settings import StreamSettings
from shard_client.backoff import Backoff
from shard_client.bson.resume_token import next_tick

_NO_JITTER: Final = partial(float, 1)
_EARLY: Final = 1e-6
"""Fraction of an interval by which a timer may fire early."""


class TokenBucket:
    """Holds up to ``burst`` tokens, one at least, and starts full; does no I/O.

    Times are in seconds on one monotonic clock. One token is added at the start of each interval of
    ``1 / per_second`` on that clock, so that all buckets of one rate fill at the same moments: an
    event that needs tokens of several buckets waits for one such moment, not for the latest of
    several. With ``per_second`` 0 there are no tokens. At most ``debt`` tokens may be owed.
    """

    def __init__(self, per_second: float, burst: float, *, debt: float = inf) -> None:
        self.per_second = per_second
        """Tokens added per second."""
        self._burst = max(1.0, burst) if per_second > 0 else 0.0
        self._debt = debt
        self._tokens = self._burst
        self._number = 0

    def tokens(self, now: float) -> float:
        """Return the tokens that there are; less than 0 if some are owed."""
        number = self.interval_number(now)
        if number > self._number:
            self._tokens = min(self._burst, self._tokens + number - self._number)
            self._number = number
        return self._tokens

    def spend(self, now: float, tokens: float = 1.0) -> None:
        """Remove ``tokens``, even if there are fewer."""
        self._tokens = max(-self._debt, self.tokens(now) - tokens)

    def limit(self, now: float, per_second: float) -> None:
        """Reduce the rate to ``per_second`` if it is higher; tokens that are due are lost."""
        if per_second < self.per_second:
            self.per_second = per_second
            self._number = self.interval_number(now)

    def interval_number(self, now: float) -> int:
        """Return the number of the current interval."""
        return floor(now * self.per_second + _EARLY)

    def next_start(self, now: float) -> float:
        """Return the time at which the next interval starts; infinity if none ever does."""
        return (self.interval_number(now) + 1) / self.per_second if self.per_second > 0 else inf

    def ready_at(self, now: float) -> float:
        """Return the time at which there is a whole token: ``now`` if there is one already."""
        return now if self.tokens(now) >= 1.0 else self.next_start(now)


_MOST_CHARGE: Final = 2
"""Tokens that one batch takes at most. More would put streams of few, larger batches into rounds,
which would then cost the members no less."""
_DEBT: Final = 1.0
"""Tokens that a stream may owe, so that a round without events does not end the rounds."""


class Rounds(TokenBucket):
    """Determines whether a stream is dense, and when its next round starts; does no I/O.

    It holds ``round_burst`` tokens and gets one per round. Each batch that shows the end of a
    member's oplog takes one, or two if it has several events. The stream is dense while there is
    none: then its members are read once a round instead of once for each event. Rounds start when
    tokens for no-op writes are added too. There is one each ``round_interval``, or more if
    ``noops_per_second`` allows a no-op for each of them.
    """

    def __init__(self, settings: StreamSettings) -> None:
        most = settings.noops_per_second if settings.writes_noops else 0.0
        super().__init__(max(most, 1 / settings.round_interval), settings.round_burst, debt=_DEBT)

    def charge(self, events: int, now: float) -> None:
        """Record a batch of ``events`` events after which the member's oplog had no more."""
        self.spend(now, min(events, _MOST_CHARGE))

    def is_dense(self, now: float) -> bool:
        """Return whether the members are to be read in rounds."""
        return self.tokens(now) < 1.0


_AGAIN, _AGAIN_MOST = 0.1, 2.0
"""Seconds, doubling up to a maximum, before a no-op write without effect is repeated."""
_LONGEST_TIMEOUT: Final = 12
"""Maximum of the timeout of a watermark that does not advance, as a multiple of the first one."""


class NoOpRequests:
    """The no-op writes that a stream requests for a remote's member, one at a time.

    Others read its fields; its methods alone change them.
    """

    def __init__(self) -> None:
        self.state: Literal["none", "requested", "sent"] = "none"
        self.count = 0
        """Number of no-op writes that have been requested."""
        self.again = -inf
        """The time from which a write past the same time may be requested again."""
        self.pauses = Backoff(_AGAIN, _AGAIN_MOST, _NO_JITTER)
        """The times until it may; they start over once the watermark has advanced as needed."""
        self._past = Timestamp(0, 0)

    def may_request(self, past: Timestamp, now: float) -> bool:
        """Return whether a write that moves the member past this time may be requested now."""
        return past > self._past or now >= self.again

    def request(self, past: Timestamp) -> None:
        """Record the request for a write past this time."""
        if past > self._past:
            self.pauses.reset()
        self._past, self.state = past, "requested"
        self.count += 1

    def extend(self, past: Timestamp) -> None:
        """Let the requested write move the member past this time, as more events have arrived."""
        self._past = past

    def record_sent(self) -> None:
        """Record that the write is being sent."""
        self.state = "sent"

    def withdraw(self) -> None:
        """Record that the requested write was not sent: no event needed it any more."""
        self.state = "none"

    def record_end(self, now: float) -> Timestamp:
        """Record the end of a write, and delay its repetition; return the time that it passed."""
        self.state = "none"
        self.delay_repetition(now)
        return self._past

    def delay_repetition(self, now: float) -> None:
        """Let the same write be requested again after a pause only."""
        self.again = now + self.pauses.next_pause()


class WatermarkTimeout:
    """Detects a watermark that does not advance although its replica set has.

    ``timeout`` is in seconds; 0 means without limit. It doubles with each member that is left for
    this reason, up to a maximum.
    """

    def __init__(self, timeout: float) -> None:
        self._first = self._timeout = timeout
        self._past: Timestamp | None = None
        self._since = 0.0

    def expect_beyond(self, past: Timestamp, now: float) -> None:
        """Record that the replica set is beyond ``past``, so that a watermark beyond it is due."""
        if self._past is None:
            self._past, self._since = past, now

    def record_watermark(self, time: Timestamp) -> None:
        """Record that the remote's watermark is ``time``."""
        if self._past is not None and time > self._past:
            self._past, self._timeout = None, self._first

    def give_up(self, now: float) -> bool:
        """Return whether to leave the member; if so, increase the timeout for the next one."""
        late = self._past is not None and 0 < self._timeout < now - self._since
        if late:
            self._since = now
            self._timeout = min(2 * self._timeout, _LONGEST_TIMEOUT * self._first)
        return late


_BUSY: Final = 0.25
"""Seconds after its last event during which a remote is read at the start of each round."""
_MOST_LAG: Final = 2
"""Seconds of cluster time by which the watermark of a remote that is read in rounds may lag."""


class PacedRemote:
    """A remote without its cursor: what its member has shown, and what the stream has asked of it.

    ``topology`` is whether the remote watches config.shards. Others read its fields; its methods
    alone change them.
    """

    def __init__(self, settings: StreamSettings, *, topology: bool = False) -> None:
        self.topology = topology
        self.has_replied = False
        """Whether the member has replied."""
        self.events = 0
        """Number of events received."""
        self.idle = False
        """Whether the last reply reached the end of the member's oplog."""
        self.noops = NoOpRequests()
        self.overdue = WatermarkTimeout(settings.watermark_timeout)
        self.waits = Backoff(settings.await_watermark, settings.await_watermark_max, _NO_JITTER)
        """The times that getMores wait while events need the watermark; they start over once it has
        arrived, or is about to arrive."""
        self.collecting: int | None = None
        """The round whose first getMore of this remote is due or in progress."""
        self.asked_in: int | None = None
        """The last round in which the watermark was asked for."""
        self._asked = Timestamp(0, 0)
        self._oplog_end = Timestamp(0, 0)
        self._events_at = -inf

    def record_reply(
        self, events: int, oplog_end: Timestamp | None, now: float, *, complete: bool
    ) -> None:
        """Record a reply: its events, the end of the member's oplog, and whether it got there."""
        self.collecting = None
        if events:
            self.events += events
            self._events_at = now
        if oplog_end is not None:
            self._oplog_end = max(self._oplog_end, oplog_end)
        # The reply of an opening is always empty, so it does not show that the member is idle.
        if self.has_replied:
            self.idle = complete
        self.has_replied = True

    def record_noop(self, past: Timestamp, now: float) -> None:
        """Record that a no-op write has moved the member past this time."""
        self._oplog_end = max(self._oplog_end, next_tick(past))
        self.overdue.expect_beyond(past, now)

    def is_beyond(self, time: Timestamp) -> bool:
        """Return whether the member's oplog is known to have an entry after this time."""
        return self._oplog_end > time

    def is_in_backlog(self, watermark: Timestamp) -> bool:
        """Return whether the watermark is far behind the member's oplog, or its end is unknown."""
        end = self._oplog_end.time
        return not end or watermark.time + _MOST_LAG < end

    def is_busy(self, now: float) -> bool:
        """Return whether the member has sent events lately."""
        return now - self._events_at < _BUSY

    def collect_in(self, number: int) -> None:
        """Record that the next getMore is the first one of a round, given by its number."""
        self.collecting = number

    def ask_in(self, number: int, past: Timestamp) -> None:
        """Record that the watermark is asked for in a round, and the time that it must pass."""
        self.asked_in, self._asked = number, past

    def ask_again(self) -> None:
        """Let the watermark be asked for once more in the same round."""
        self.asked_in = None

    def is_asked_beyond(self, watermark: Timestamp) -> bool:
        """Return whether a later watermark has been asked for, and no no-op write comes first."""
        return watermark <= self._asked and self.noops.state != "requested"


_FILTERED_PART: Final = 4
"""Divisor of a stream's budgets while its events are distributed to filters: the router takes the
events itself then, as fast as it can."""
_LIVELY = 1.0
"""Seconds after its last event during which a stream is expected to deliver more."""
_COLLECTED: Final = 0.004
"""Seconds for which the first getMore of a round waits for events: about as long as a no-op write
takes, so that a member without events shows its progress."""
_ALONE: Final = 0.005
"""Seconds from a reply to the next getMore of a dense stream with a single remote, for whose
watermark no other waits, for each open remote of its user: all of these streams together send 200
getMores a second at most, or one a round each."""
COLLECTING: Final = 0.01
"""Seconds from the start of a round until members that keep events back get no-op writes, if not
all batches of the round have arrived before."""


class Wait(NamedTuple):
    """How long a remote's next getMore waits for events, in seconds.

    ``delay`` is the time for which the getMore is not sent at all, unless a no-op write is.
    """

    seconds: float
    delay: float = 0.0


class FlowControl:
    """Decides for one stream when its remotes are read, and how long their getMores wait.

    A getMore waits long, since events end the wait. An event that other members keep back needs
    their watermarks at once, which progress cursors report. While progress cursors or no-op writes
    are out of budget, a getMore ends when the next no-op write is done, so that there is one
    getMore per write. A dense stream is read in ``rounds``, or with short pauses if it has a single
    remote. ``is_filtered`` returns whether the stream's events are distributed to filters.
    """

    def __init__(
        self, settings: StreamSettings, memory: Memory, is_filtered: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._memory = memory
        self._is_filtered = is_filtered
        self._read_until = 0.0
        self._ahead = settings.first_ahead_bytes
        self.rounds = Rounds(settings)
        self._events_at = -inf

    def record_events(self, remote: PacedRemote, events: int, now: float) -> None:
        """Record that a remote's reply had events."""
        self._events_at = now
        if remote.idle:
            self.rounds.charge(events, now)

    def is_lively(self, now: float) -> bool:
        """Return whether an event has arrived within the last second."""
        return now - self._events_at < _LIVELY

    def record_client(self, now: float) -> None:
        """Record that a client reads the stream or waits for it."""
        self._read_until = now + self._settings.prefetch_time

    def record_taken(self, size: int) -> None:
        """Record that a client has taken events of ``size`` bytes, so that more is read ahead."""
        self._ahead += 2 * size

    def end_prefetch(self) -> None:
        """Record that the last client has left, so that nothing more is read ahead."""
        self._read_until = -inf

    def is_unread(self, now: float) -> bool:
        """Return whether no client has read the stream for so long that prefetching stops."""
        return now > self._read_until

    def batch_bytes(self, remotes: int) -> int:
        """Return the size of batches: two fit into the even share of each of ``remotes``."""
        return max(1, min(self._settings.batch_target_bytes, self._even_half // (2 * remotes)))

    def may_read(self, buffered: int, all_buffered: int, remotes: int) -> bool:
        """Return whether the budgets allow another batch of a remote with ``buffered`` bytes.

        ``all_buffered`` is the number of bytes buffered for all ``remotes``. A remote with an empty
        buffer always may. The slowest shard's buffer is empty once the ready events have been
        taken, so the budgets never stop the low watermark, and it never waits for a client.
        """
        if not buffered:
            return True
        if self._memory.short or (all_buffered > self._ahead and not self._is_filtered()):
            return False
        batch, half = self.batch_bytes(remotes), self._even_half
        if buffered + batch > self._part(self._settings.remote_buffer_bytes):
            return False
        return (buffered + batch) * remotes <= half or all_buffered + batch * remotes <= half

    @property
    def _even_half(self) -> int:
        """Return the half of the stream's budget that is divided evenly among the remotes.

        If the others used up the budget, a remote with an empty buffer would hold the low watermark
        and stop them all. The other half is for remotes that are ahead.
        """
        return self._part(self._settings.stream_buffer_bytes) // 2

    def _part(self, budget: int) -> int:
        return budget // _FILTERED_PART if self._is_filtered() else budget

    def noop_delay(self, now: float, remotes: Iterable[PacedRemote]) -> float:
        """Return the time to wait before the members that keep events back get no-op writes."""
        if self.rounds.is_dense(now):
            number = self.rounds.interval_number(now)
            collects = any(remote.collecting == number for remote in remotes)
            return COLLECTING if collects else 0.0
        return self._settings.noop_delay

    def next_wait(
        self,
        remote: PacedRemote,
        watermark: Timestamp | None,
        now: float,
        *,
        needed: bool,
        next_noop: float | None,
        alone: bool = False,
    ) -> Wait:
        """Return the wait of a remote's next getMore.

        ``watermark`` is the remote's, and ``needed`` whether events need it to advance;
        ``next_noop`` is the time until the member's next no-op write, if the budgets allow no
        watermark before it. ``alone`` is whether the stream has no other remote.
        """
        if watermark is not None:
            wait = self._wait_for_round(remote, watermark, now, alone=alone)
            if wait is not None:
                return wait
        settings = self._settings
        quiet = settings.await_quiet
        if needed and not settings.writes_noops:
            return Wait(min(quiet, remote.waits.next_pause()))
        # Whether the member's oplog is already past the watermark, or gets a no-op write.
        moves = watermark is None or remote.is_beyond(watermark) or remote.noops.state == "sent"
        due = needed and moves
        if not remote.idle:
            # A getMore that waits cannot be distinguished from one that scans: keep the wait short.
            return Wait(min(quiet, settings.await_unknown))
        if remote.topology:
            # It has no events that could end a wait, so it need not wait on the config server.
            if due:
                return Wait(remote.waits.next_pause())
            return Wait(settings.await_watermark, delay=quiet)
        if next_noop is not None:
            return Wait(min(quiet, remote.waits.next_pause() if due else next_noop))
        return Wait(quiet)

    def _wait_for_round(
        self, remote: PacedRemote, watermark: Timestamp, now: float, *, alone: bool
    ) -> Wait | None:
        """Return the wait of a remote that is read in rounds; None if it is not."""
        rounds, quiet = self.rounds, self._settings.await_quiet
        if remote.topology or not (remote.idle and rounds.is_dense(now)):
            return None
        if remote.is_in_backlog(watermark):
            return None  # its batches are followed at once
        if alone:
            return Wait(quiet, min(self._settings.round_interval, _ALONE * self._memory.remotes))
        if remote.is_asked_beyond(watermark):
            return Wait(remote.waits.next_pause())
        remote.waits.reset()
        until = rounds.next_start(now) - now
        if remote.is_busy(now):
            remote.collect_in(rounds.interval_number(now) + 1)
            return Wait(min(quiet, _COLLECTED), until)
        # The no-op write in the next round ends the delay, unless the stream has no events then.
        return Wait(quiet, until + 0.5 / rounds.per_second)

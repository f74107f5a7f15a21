"""Pacing: which remotes of a stream are read, how far ahead, and with what waits.

Does no I/O. Times are in seconds on one monotonic clock; sizes are bytes of memory. The rules are
in docs/design.md#a-remote-cursor (budgets) and docs/design.md#idle-shards (waits).
"""

from collections.abc import Callable, Iterable
from math import floor, inf
from typing import Final, NamedTuple

from bson.timestamp import Timestamp

from router.limits.memory import Memory
from router.stream.paced_remote import PacedRemote
from router.stream_settings import StreamSettings

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


class Rounds:
    """Determines whether a stream is dense, and when its next round starts; does no I/O.

    A bucket holds ``round_burst`` tokens and gets one per round. Each batch that shows the end of a
    member's oplog takes one, or two if it has several events. The stream is dense while there is
    none: then its members are read once a round instead of once for each event. Rounds start when
    tokens for no-op writes are added too. There is one each ``round_interval``, or more if
    ``noops_per_second`` allows a no-op for each of them.
    """

    def __init__(self, settings: StreamSettings) -> None:
        most = settings.noops_per_second if settings.writes_noops else 0.0
        per_second = max(most, 1 / settings.round_interval)
        self.length = 1 / per_second
        """Seconds from the start of a round to that of the next one."""
        self._bucket = TokenBucket(per_second, settings.round_burst, debt=_DEBT)

    def charge(self, events: int, now: float) -> None:
        """Record a batch of ``events`` events after which the member's oplog had no more."""
        self._bucket.spend(now, min(events, _MOST_CHARGE))

    def is_dense(self, now: float) -> bool:
        """Return whether the members are to be read in rounds."""
        return self._bucket.tokens(now) < 1.0

    def number(self, now: float) -> int:
        """Return the number of the current round."""
        return self._bucket.interval_number(now)

    def next_start(self, now: float) -> float:
        """Return the time at which the next round starts."""
        return self._bucket.next_start(now)


_FILTERED_PART: Final = 4
"""Divisor of a stream's budgets while its events are distributed to filters: the router takes the
events itself then, as fast as it can."""
_LIVELY = 1.0
"""Seconds after its last event during which a stream is expected to deliver more."""
_FIRST_OF_ROUND: Final = 0.004
"""Seconds for which the first getMore of a round waits for events: about as long as a no-op write
takes, so that a member without events shows its progress."""
_SINGLE_REMOTE_PAUSE: Final = 0.005
"""Seconds from a reply to the next getMore of a dense stream with a single remote, for whose
watermark no other waits, for each open remote of its user: all of these streams together send 200
getMores a second at most, or one a round each."""
COLLECTING_TIME: Final = 0.01
"""Seconds from the start of a round until members that keep events back get no-op writes, if not
all batches of the round have arrived before."""


class Wait(NamedTuple):
    """How long a remote's next getMore waits for events, and when it is sent; both in seconds.

    ``send_after`` is the time after which it is sent, or with a no-op write before.
    """

    await_for: float
    send_after: float = 0.0


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
            number = self.rounds.number(now)
            collects = any(remote.collecting == number for remote in remotes)
            return COLLECTING_TIME if collects else 0.0
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
        watermark before it. ``alone`` is whether the stream has no other remote. A watermark is
        due if it is needed, and the member's oplog is past it or is getting a no-op write. The
        first line that holds decides; ``pause`` is the next pause of the remote's ``waits``.

        - read in rounds: as ``_wait_in_rounds``
        - needed, without no-op writes: ``pause``
        - the last reply did not reach the oplog's end: ``await_unknown``
        - watches config.shards, due: ``pause``
        - watches config.shards: ``await_watermark``, sent after ``await_quiet``
        - over budget, due: ``pause``
        - over budget: up to ``next_noop``, ``await_quiet`` at most
        - any other: ``await_quiet``
        """
        if watermark is not None and self._is_in_rounds(remote, watermark, now):
            return self._wait_in_rounds(remote, watermark, now, alone=alone)
        settings, quiet = self._settings, self._settings.await_quiet
        moves = watermark is None or remote.is_beyond(watermark) or remote.noops.state == "sent"
        due = needed and moves
        if needed and not settings.writes_noops:
            await_for = remote.waits.next_pause()
        elif not remote.idle:
            # A getMore that waits cannot be distinguished from one that scans: keep the wait short.
            await_for = settings.await_unknown
        elif due and (remote.topology or next_noop is not None):
            await_for = remote.waits.next_pause()
        elif remote.topology:
            # It has no events that could end a wait, so it need not wait on the config server.
            return Wait(settings.await_watermark, send_after=quiet)
        else:
            await_for = quiet if next_noop is None else next_noop
        return Wait(min(quiet, await_for))

    def _is_in_rounds(self, remote: PacedRemote, watermark: Timestamp, now: float) -> bool:
        """Return whether a remote is read in rounds; batches of a backlog follow at once."""
        dense = remote.idle and not remote.topology and self.rounds.is_dense(now)
        return dense and not remote.is_in_backlog(watermark)

    def _wait_in_rounds(
        self, remote: PacedRemote, watermark: Timestamp, now: float, *, alone: bool
    ) -> Wait:
        """Return the wait of a remote that is read in rounds, by the first line that holds.

        - alone: ``await_quiet``, sent after a short pause
        - a later watermark is asked for: ``pause``
        - has had events lately: a short wait, sent at the start of the next round
        - any other: ``await_quiet``, sent with the no-op write of the next round, or half a round
          after its start if the stream has no events then
        """
        rounds, quiet = self.rounds, self._settings.await_quiet
        if alone:
            pause = _SINGLE_REMOTE_PAUSE * self._memory.remotes
            return Wait(quiet, min(self._settings.round_interval, pause))
        if remote.is_asked_beyond(watermark):
            return Wait(remote.waits.next_pause())
        remote.waits.reset()
        until = rounds.next_start(now) - now
        if remote.is_busy(now):
            remote.collect_in(rounds.number(now) + 1)
            return Wait(min(quiet, _FIRST_OF_ROUND), until)
        return Wait(quiet, until + rounds.length / 2)

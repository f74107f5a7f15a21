"""Flow control: when a stream's remotes are read, how far ahead, and how long their getMores wait.

It decides by what each remote has shown, and does no I/O. Times are in seconds on one monotonic
clock; sizes are bytes of memory. The rules are in docs/design.md: #a-remote-cursor (budgets) and
#idle-shards (waits).
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Final, NamedTuple

from bson.timestamp import Timestamp

from router.limits.memory import Memory
from router.stream.remotes.remote_progress import RemoteProgress
from router.stream.remotes.rounds import Rounds
from router.stream_settings import StreamSettings

_MOST_CHARGE: Final = 2
"""Tokens that one batch takes at most. More would put streams of few, larger batches into rounds,
which would then cost the members no less."""
_FAN_OUT_PART: Final = 4
"""Divisor of a stream's budgets while a fan-out takes its events itself, as fast as it can."""
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

    It is sent after the ``delay``, or earlier, together with a no-op write.
    """

    await_for: float
    delay: float = 0.0


class FlowControl:
    """Decides for one stream when its remotes are read, and how long their getMores wait.

    A getMore waits long, since events end the wait. An event that other members keep back needs
    their watermarks at once, which progress cursors report. While progress cursors or no-op writes
    are out of budget, a getMore ends when the next no-op write is done, so that there is one
    getMore per write. A dense stream is read in ``rounds``, or with short pauses if it has a single
    remote. ``is_fanned_out`` returns whether a fan-out passes the stream's events on to views.
    """

    def __init__(
        self, settings: StreamSettings, memory: Memory, is_fanned_out: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._memory = memory
        self._is_fanned_out = is_fanned_out
        self._read_until = 0.0
        self._ahead = settings.first_ahead_bytes
        self.rounds = Rounds(settings)
        self._events_at = -inf

    def record_events(self, remote: RemoteProgress, events: int, now: float) -> None:
        """Record that a reply had events, after the remote itself has recorded the reply."""
        self._events_at = now
        if remote.idle:
            self.rounds.spend(now, min(events, _MOST_CHARGE))

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
        buffer always may. The slowest shard's is empty once a client has taken the ready events, so
        the budgets stop the low watermark only while there are ready events.
        """
        if not buffered:
            return True
        if self._memory.short or (all_buffered > self._ahead and not self._is_fanned_out()):
            return False
        batch, half = self.batch_bytes(remotes), self._even_half
        if buffered + batch > self._part(self._settings.remote_buffer_bytes):
            return False
        return (buffered + batch) * remotes <= half or all_buffered + batch * remotes <= half

    @property
    def _even_half(self) -> int:
        """Return the half of the stream's budget that is divided evenly among the remotes.

        Of this budget each remote has a part that the others cannot use up. The other half is for
        remotes that are ahead.
        """
        return self._part(self._settings.stream_buffer_bytes) // 2

    def _part(self, budget: int) -> int:
        return budget // _FAN_OUT_PART if self._is_fanned_out() else budget

    def noop_delay(self, now: float, remotes: Iterable[RemoteProgress]) -> float:
        """Return the time to wait before the members that keep events back get no-op writes."""
        if self.rounds.is_dense(now):
            number = self.rounds.interval_number(now)
            collects = any(remote.collecting == number for remote in remotes)
            return COLLECTING_TIME if collects else 0.0
        return self._settings.noop_delay

    def take_next_wait(
        self,
        remote: RemoteProgress,
        watermark: Timestamp,
        now: float,
        *,
        needed: bool,
        next_noop: float | None,
        alone: bool = False,
    ) -> Wait:
        """Return the wait of a remote's next getMore, and use up its pause or its round.

        ``watermark`` is the remote's, and ``needed`` whether events need it to advance;
        ``next_noop`` is the time until the member's next no-op write, if the budgets allow no
        watermark before it. ``alone`` is whether the stream has no other remote.
        """
        dense = remote.idle and not remote.topology and self.rounds.is_dense(now)
        if dense and not remote.is_in_backlog(watermark):  # whose batches follow at once
            return self._plan_in_rounds(remote, watermark, now, alone=alone)
        # The first row that applies decides:
        #
        #   the watermark is needed, no no-ops are written  a growing pause: only time moves it
        #   the member may have more events                 short: it may be scanning, not waiting
        #   the watermark is needed and about to advance,   a growing pause: this getMore is what
        #   and no progress cursor may report it            reports it
        #   it watches config.shards                        none until later: no event ends its wait
        #   the budgets allow nothing before a no-op write  until that is done: one getMore a write
        #   otherwise                                       long: an event ends it, and a progress
        #                                                   cursor reports the watermark
        settings, quiet = self._settings, self._settings.await_quiet
        advances = remote.is_beyond(watermark) or remote.noops.state == "sent"
        reports = needed and advances and (remote.topology or next_noop is not None)
        if needed and not settings.writes_noops:
            await_for = remote.waits.next_pause()
        elif not remote.idle:
            await_for = settings.await_unknown
        elif reports:
            await_for = remote.waits.next_pause()
        elif remote.topology:
            return Wait(settings.await_watermark, delay=quiet)
        elif next_noop is not None:
            await_for = next_noop
        else:
            await_for = quiet
        return Wait(min(quiet, await_for))

    def _plan_in_rounds(
        self, remote: RemoteProgress, watermark: Timestamp, now: float, *, alone: bool
    ) -> Wait:
        """Return the wait of a remote that is read in rounds, and record its next round."""
        rounds, quiet = self.rounds, self._settings.await_quiet
        if alone:
            pause = _SINGLE_REMOTE_PAUSE * self._memory.remotes
            return Wait(quiet, min(self._settings.round_interval, pause))
        if remote.is_asked_beyond(watermark):
            return Wait(remote.waits.next_pause())
        remote.waits.reset()
        until = rounds.next_start(now) - now
        if remote.is_busy(now):
            remote.collecting = rounds.interval_number(now) + 1
            return Wait(min(quiet, _FIRST_OF_ROUND), until)
        # It is sent with the next round's no-op write, or without one if no event has come by then.
        return Wait(quiet, until + rounds.length / 2)

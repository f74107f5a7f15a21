"""Rounds: the fixed rhythm in which a stream with many small batches reads its remotes."""

from math import floor
from typing import Final

from router.stream_settings import StreamSettings

_EARLY: Final = 1e-6
"""Fraction of a round by which a timer may fire early."""
_MOST_CHARGE: Final = 2
"""Tokens that one batch takes at most. More would put streams of few, larger batches into rounds,
which would then cost the members no less."""
_DEBT: Final = 1.0
"""Tokens that a stream may owe, so that a round without events does not end the rounds."""


class Rounds:
    """Tells whether a stream is dense, and when its next round starts; does no I/O.

    A token bucket holds ``round_burst`` tokens and gets one per round. Each batch that shows the
    end of a member's oplog takes one, or two if it has several events. The stream is dense while
    the bucket is empty: then its members are read once a round instead of once for each event.
    Times are in seconds on one monotonic clock; rounds start at the multiples of the interval on
    it, when notes become available too (``NoteBudget``). The interval is ``round_interval``, or
    shorter if ``nudges_per_second`` allows a note for each of more rounds.
    """

    __slots__ = ("_at", "_burst", "_interval", "_tokens")

    def __init__(self, limits: StreamSettings, now: float) -> None:
        most = limits.nudges_per_second if limits.nudges else 0.0
        self._interval = 1 / max(most, 1 / limits.round_interval)
        self._burst = limits.round_burst
        self._tokens = limits.round_burst
        self._at = now

    @property
    def interval(self) -> float:
        """Seconds from the start of one round to the start of the next."""
        return self._interval

    def charge(self, events: int, now: float) -> None:
        """Record a batch of ``events`` events after which the member's oplog had no more."""
        self._fill(now)
        self._tokens = max(-_DEBT, self._tokens - min(events, _MOST_CHARGE))

    def dense(self, now: float) -> bool:
        """Return whether the members are to be read in rounds."""
        self._fill(now)
        return self._tokens < 1.0

    def number(self, now: float) -> int:
        """Return the number of the current round."""
        return floor(now / self._interval + _EARLY)

    def next_start(self, now: float) -> float:
        """Return the time at which the next round starts."""
        return (self.number(now) + 1) * self._interval

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._at) / self._interval)
        self._at = now

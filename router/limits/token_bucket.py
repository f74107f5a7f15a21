"""A bound of a rate that allows bursts; does no I/O."""

from math import floor, inf
from typing import Final

_EARLY: Final = 1e-6
"""Fraction of an interval by which a timer may fire early."""


class TokenBucket:
    """Holds up to ``burst`` tokens, one at least, and starts full.

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

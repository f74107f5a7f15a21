"""Rate limit of the oplog notes sent to one member; short bursts are allowed."""

from math import floor, inf
from typing import Final

NOTE_BYTES: Final = 101
"""Size of one note in an oplog, as measured on a mongod 6.0."""

LEAST_DAYS: Final = 3.0
"""Minimum number of days that an oplog must cover if only notes are written to it."""

_DAY = 24 * 60 * 60.0
_EARLY = 1e-6
"""Fraction of a token by which a timer may fire early."""


class NoteBudget:
    """A token bucket of which each note takes a token; does no I/O.

    Times are in seconds on one monotonic clock. Tokens are added at the multiples of
    ``1 / per_second`` on that clock, so that the buckets of all members fill at the same moments:
    an event that needs notes of several members waits for one such moment, not for the latest of
    several. With ``per_second`` 0 there are no tokens.
    """

    __slots__ = ("_burst", "_per_second", "_tick", "_tokens")

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = max(1.0, burst)
        self._tokens = self._burst if per_second > 0 else 0.0
        self._tick: int | None = None

    @property
    def per_second(self) -> float:
        """Tokens added per second."""
        return self._per_second

    def bound_by_oplog(self, max_size: int, share: float = 1.0) -> None:
        """Limit the rate so that notes alone fill an oplog of ``max_size`` bytes in three days.

        ``share`` is this bucket's fraction of the notes that all routers' workers may write.
        """
        most = max_size / (LEAST_DAYS * _DAY * NOTE_BYTES) * share
        if most < self._per_second:
            self._per_second, self._tick = most, None

    def ready_at(self, now: float) -> float:
        """Return the time at which a token is available: ``now`` if there is one already."""
        self._fill(now)
        return now if self._tokens >= 1.0 else self.next_tick(now)

    def next_tick(self, now: float) -> float:
        """Return the next time at which a token is added; infinity if none ever is."""
        if self._per_second <= 0:
            return inf
        return (self._ticks(now) + 1) / self._per_second

    def take(self, now: float) -> bool:
        """Take a token; return False if there is none."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _fill(self, now: float) -> None:
        tick = self._ticks(now)
        if self._tick is not None and tick > self._tick:
            self._tokens = min(self._burst, self._tokens + tick - self._tick)
        self._tick = tick if self._tick is None else max(tick, self._tick)

    def _ticks(self, now: float) -> int:
        return floor(now * self._per_second + _EARLY)

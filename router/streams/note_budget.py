"""How many oplog notes one member may be sent: bursts are free, load is not."""

from math import floor, inf
from typing import Final

NOTE_BYTES: Final = 101
"""Size of one note in an oplog, as measured on a mongod 6.0."""

LEAST_DAYS: Final = 3.0
"""Days that an oplog must reach back at least, if nothing but notes were written to it."""

_DAY = 24 * 60 * 60.0
_EARLY = 1e-6
"""Part of a token by which a timer may fire too early."""


class NoteBudget:
    """A token bucket, pure: each note takes a token. Times in seconds on one monotonic clock.

    Tokens come at the multiples of ``1 / per_second`` on that clock, so that the buckets of all
    members fill at the same moments: an event that waits for notes of several members waits for
    one such moment, not for the latest of several. With ``per_second`` 0 there is never a token.
    """

    __slots__ = ("_burst", "_per_second", "_tick", "_tokens")

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = max(1.0, burst)
        self._tokens = self._burst if per_second > 0 else 0.0
        self._tick: int | None = None

    @property
    def per_second(self) -> float:
        """Tokens that come in a second."""
        return self._per_second

    def bound_by_oplog(self, max_size: int, share: float = 1.0) -> None:
        """Slow down so that notes alone need three days to fill an oplog of ``max_size`` bytes.

        ``share`` is this bucket's part of what all routers' workers may write together.
        """
        most = max_size / (LEAST_DAYS * _DAY * NOTE_BYTES) * share
        if most < self._per_second:
            self._per_second, self._tick = most, None

    def ready_at(self, now: float) -> float:
        """Return when there is a token: ``now`` if there is one already."""
        self._fill(now)
        return now if self._tokens >= 1.0 else self.next_tick(now)

    def next_tick(self, now: float) -> float:
        """Return the next moment at which a token comes."""
        if self._per_second <= 0:
            return inf
        return (self._ticks(now) + 1) / self._per_second

    def take(self, now: float) -> bool:
        """Take a token; False if there is none."""
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

"""The rate at which a stream's events arrive (docs/design.md, section 9)."""

from router.stream_settings import StreamSettings

_MEMORY = 8
"""Number of batches over which the pace is averaged."""
_LIVELY = 1.0
"""Seconds after its last event during which a stream is expected to deliver more."""


class Pace:
    """The average interval between a stream's events, in seconds; does no I/O."""

    __slots__ = ("_interval", "_last", "_limits")

    def __init__(self, limits: StreamSettings) -> None:
        self._limits = limits
        self._interval = limits.active_for
        self._last = float("-inf")

    def event(self, now: float) -> None:
        """Record the arrival of a batch with events."""
        # A long pause is capped, since it does not predict the pace after it.
        passed = min(now - self._last, 2 * self._limits.active_for)
        self._interval += (passed - self._interval) / _MEMORY
        self._last = now

    def active(self, now: float) -> bool:
        """Return whether events arrive in quick succession."""
        return max(self._interval, now - self._last) < self._limits.active_for

    def lively(self, now: float) -> bool:
        """Return whether an event has arrived within the last second."""
        return now - self._last < _LIVELY

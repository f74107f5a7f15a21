"""How quickly a stream's events come (docs/design.md, section 9)."""

from router.stream_settings import StreamSettings

_MEMORY = 8
"""Events over which the pace is averaged."""
_LIVELY = 1.0
"""Seconds after its last event in which a stream is expected to have more."""


class Pace:
    """A stream's pace, pure: told of events and of the time, in seconds."""

    __slots__ = ("_interval", "_last", "_limits")

    def __init__(self, limits: StreamSettings) -> None:
        self._limits = limits
        self._interval = limits.active_for
        self._last = float("-inf")

    def event(self, now: float) -> None:
        """Take note of a batch with events."""
        # A pause says nothing about the pace after it.
        passed = min(now - self._last, 2 * self._limits.active_for)
        self._interval += (passed - self._interval) / _MEMORY
        self._last = now

    def active(self, now: float) -> bool:
        """Tell whether events come in quick succession."""
        return max(self._interval, now - self._last) < self._limits.active_for

    def lively(self, now: float) -> bool:
        """Tell whether there have been events of late."""
        return now - self._last < _LIVELY

"""How quickly a stream's events come, and so how long its shards may be asked to wait."""

from router.cursors.limits import StreamLimits

_MEMORY = 8
"""Events over which the pace is averaged."""
_SHARE = 4
"""A wait lasts this part of the time from event to event."""


class Pace:
    """A stream's pace, pure: told of events and of the time, in seconds.

    A no-op wakes no getMore (docs/protocol.md, section 6), so an event waits for the end of what
    the idle members have been asked to wait. Where events come in quick succession the waits are a
    part of the time between them; where they are rare, the waits are long and one that stands in
    an event's way is broken off (docs/design.md, section 9).
    """

    __slots__ = ("_interval", "_last", "_limits")

    def __init__(self, limits: StreamLimits) -> None:
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

    def wait(self, now: float) -> float:
        """Return the seconds that a getMore may wait for events."""
        return self._limits.await_active if self.active(now) else self._limits.await_quiet

"""Traffic: the recent events of a stream that several views share, and what the views get of it."""

from typing import Final

_RECENT_EVENTS: Final = 1000
_RECENT_BYTES: Final = 16 * 1024 * 1024
"""After so many events, or bytes of them, those read before count half."""


class Traffic:
    """The events that a fan-out has read recently, and those that its views have got.

    ``behind_since`` is the time since which events have been ready without a pause: the router
    does not keep up. None if it does.
    """

    __slots__ = ("_bytes", "_events", "_passed", "_passed_bytes", "_settled", "behind_since")

    def __init__(self) -> None:
        self._events = self._bytes = self._passed = self._passed_bytes = 0
        self._settled = False
        self.behind_since: float | None = None

    def add(self, events: int, size: int) -> None:
        """Count events of ``size`` bytes that have been read."""
        self._events += events
        self._bytes += size
        if self._events >= _RECENT_EVENTS or self._bytes >= _RECENT_BYTES:
            self._settled = True
            self._events //= 2
            self._bytes //= 2
            self._passed //= 2
            self._passed_bytes //= 2

    def add_passed(self, events: int, size: int) -> None:
        """Count events of ``size`` bytes that a filter or a namespace has let through."""
        self._passed += events
        self._passed_bytes += size

    def is_behind(self, time: float) -> bool:
        """Return whether the router has had events to pass on without a pause since ``time``."""
        return self.behind_since is not None and self.behind_since <= time

    @property
    def let_through(self) -> float:
        """How often an event is let through, by any filter or namespace."""
        return self._passed / max(1, self._events)

    @property
    def unwatched_bytes(self) -> float:
        """Bytes of an average event that are read beyond those that are let through.

        0 until enough events have been read.
        """
        if not self._settled:
            return 0.0
        return max(0, self._bytes - self._passed_bytes) / max(1, self._events)

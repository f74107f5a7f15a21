"""Wait times of getMores to a remote that keeps events back (docs/design.md, section 9)."""

from router.stream_settings import StreamSettings


class AwaitPolicy:
    """The wait time of one remote's getMores while events need its promise; does no I/O.

    It starts short and doubles with each getMore until the promise arrives.
    """

    __slots__ = ("_in_vain", "_limits")

    def __init__(self, limits: StreamSettings) -> None:
        self._limits = limits
        self._in_vain = 0

    def in_vain(self) -> float:
        """Return the seconds that the next getMore may wait, and double them for the one after."""
        limits = self._limits
        seconds = limits.await_gate * (1 << min(self._in_vain, 16))
        self._in_vain += 1
        return min(limits.await_gate_max, seconds)

    def reset(self) -> None:
        """Start over with the shortest wait: the promise has arrived or is about to arrive."""
        self._in_vain = 0


class LookBudget:
    """The time for which one progress cursor may keep its member busy, in seconds; does no I/O.

    A progress cursor may use ``look_share`` of the time in the long run, and ``look_burst`` at
    once. This does not limit looks at an idle member, only those that have much to scan.
    """

    __slots__ = ("_at", "_left", "_limits")

    def __init__(self, limits: StreamSettings, now: float) -> None:
        self._limits = limits
        self._left = limits.look_burst
        self._at = now

    def spend(self, now: float, seconds: float) -> None:
        """Charge a look that kept the member busy for ``seconds``."""
        self._fill(now)
        self._left -= seconds

    def affords(self, now: float) -> bool:
        """Return whether the budget allows another look."""
        self._fill(now)
        return self._left > 0

    def _fill(self, now: float) -> None:
        earned = (now - self._at) * self._limits.look_share
        self._left = min(self._limits.look_burst, self._left + earned)
        self._at = now

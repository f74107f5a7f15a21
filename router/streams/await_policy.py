"""Wait times of getMores to a remote that keeps events back (docs/design.md, section 9)."""

from router.stream_settings import StreamSettings


class AwaitPolicy:
    """The wait time of one remote's getMores while events need its promise; does no I/O.

    It starts short and doubles with each getMore until the promise arrives.
    """

    __slots__ = ("_limits", "_repeated")

    def __init__(self, limits: StreamSettings) -> None:
        self._limits = limits
        self._repeated = 0

    def next_wait(self) -> float:
        """Return the seconds that the next getMore may wait, and double them for the one after."""
        limits = self._limits
        seconds = limits.await_gate * (1 << min(self._repeated, 16))
        self._repeated += 1
        return min(limits.await_gate_max, seconds)

    def reset(self) -> None:
        """Start over with the shortest wait: the promise has arrived or is about to arrive."""
        self._repeated = 0


class ProbeBudget:
    """The time for which one progress cursor may keep its member busy, in seconds; does no I/O.

    A progress cursor may use ``probe_share`` of the time in the long run, and ``probe_burst`` at
    once. Probes of an idle member cost next to nothing; those that scan much use up the budget.
    """

    __slots__ = ("_at", "_left", "_limits")

    def __init__(self, limits: StreamSettings, now: float) -> None:
        self._limits = limits
        self._left = limits.probe_burst
        self._at = now

    def spend(self, now: float, seconds: float) -> None:
        """Charge a probe that kept the member busy for ``seconds``."""
        self._fill(now)
        self._left -= seconds

    def affords(self, now: float) -> bool:
        """Return whether the budget allows another probe."""
        self._fill(now)
        return self._left > 0

    def _fill(self, now: float) -> None:
        earned = (now - self._at) * self._limits.probe_share
        self._left = min(self._limits.probe_burst, self._left + earned)
        self._at = now

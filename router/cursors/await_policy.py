"""How long a shard's getMore may wait while events wait for it (docs/design.md, section 9)."""

from router.cursors.limits import StreamLimits


class AwaitPolicy:
    """One remote's waiting time, pure: short while events wait for it, doubling while in vain."""

    __slots__ = ("_in_vain", "_limits")

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._in_vain = 0

    def next_await(self, *, lags: bool, usual: float) -> float:
        """Return the seconds that the next getMore may wait.

        ``lags`` tells whether buffered events wait for this remote's promise; ``usual`` is what
        the stream's pace allows otherwise.
        """
        if not lags:
            self._in_vain = 0
            return usual
        limits = self._limits
        seconds = limits.await_gate * (1 << min(self._in_vain, 16))
        self._in_vain += 1
        return min(limits.await_gate_max, seconds)

    def nudged(self) -> None:
        """The remote's member has moved on: its next promise is worth asking for at once."""
        self._in_vain = 0

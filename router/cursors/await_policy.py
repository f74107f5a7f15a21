"""How long a shard's getMore may wait for events (docs/design.md, section 9)."""

from router.cursors.limits import StreamLimits


class AwaitPolicy:
    """One remote's waiting time, pure.

    A no-op wakes no getMore, so the waiting time bounds how soon a new promise is seen. It is short
    while events wait for this remote, doubling while that is in vain; moderate while events come;
    longer when the stream has been quiet for a while.
    """

    __slots__ = ("_in_vain", "_limits")

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._in_vain = 0

    def next_await(self, *, lags: bool, quiet_for: float) -> float:
        """Return the seconds that the next getMore may wait.

        ``lags`` tells whether buffered events wait for this remote's promise, ``quiet_for`` the
        seconds since the stream's last event.
        """
        limits = self._limits
        if not lags:
            self._in_vain = 0
            return limits.await_active if quiet_for < limits.active_for else limits.await_quiet
        seconds = limits.await_gate * (1 << min(self._in_vain, 16))
        self._in_vain += 1
        return min(limits.await_gate_max, seconds)

    def nudged(self) -> None:
        """The remote's member has moved on: its next promise is worth asking for at once."""
        self._in_vain = 0

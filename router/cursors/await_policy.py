"""How long a shard's getMore may wait while events wait for it (docs/design.md, section 9)."""

from router.cursors.limits import StreamLimits


class AwaitPolicy:
    """One remote's waiting time, pure: short while events wait for it, doubling while in vain."""

    __slots__ = ("_in_vain", "_limits")

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._in_vain = 0

    def in_vain(self) -> float:
        """Return the seconds that a getMore may wait for what it was asked for before."""
        limits = self._limits
        seconds = limits.await_gate * (1 << min(self._in_vain, 16))
        self._in_vain += 1
        return min(limits.await_gate_max, seconds)

    def reset(self) -> None:
        """Its promise has come, or is about to: it is worth asking for at once."""
        self._in_vain = 0

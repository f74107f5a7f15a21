"""How a remote is asked while events wait for it (docs/design.md, section 9)."""

from router.stream_settings import StreamSettings


class AwaitPolicy:
    """One remote's waiting time, pure: short while events wait for it, doubling while in vain."""

    __slots__ = ("_in_vain", "_limits")

    def __init__(self, limits: StreamSettings) -> None:
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


class LookBudget:
    """The time for which one progress cursor may keep its member busy, pure; in seconds.

    It may take ``look_share`` of the time in the long run, and ``look_burst`` at once: a cursor on
    an idle member may look as often as it likes, one that has much to scan may not.
    """

    __slots__ = ("_at", "_left", "_limits")

    def __init__(self, limits: StreamSettings, now: float) -> None:
        self._limits = limits
        self._left = limits.look_burst
        self._at = now

    def spend(self, now: float, seconds: float) -> None:
        """Take note of a look that kept the member busy for ``seconds``."""
        self._fill(now)
        self._left -= seconds

    def affords(self, now: float) -> bool:
        """Tell whether there may be another look."""
        self._fill(now)
        return self._left > 0

    def _fill(self, now: float) -> None:
        earned = (now - self._at) * self._limits.look_share
        self._left = min(self._limits.look_burst, self._left + earned)
        self._at = now

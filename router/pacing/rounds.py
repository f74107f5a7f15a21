"""Rounds: the fixed rhythm in which a stream with many small batches reads its remotes."""

from typing import Final

from router.pacing.token_bucket import TokenBucket
from router.stream_settings import PacingSettings

_MOST_CHARGE: Final = 2
"""Tokens that one batch takes at most. More would put streams of few, larger batches into rounds,
which would then cost the members no less."""
_DEBT: Final = 1.0
"""Tokens that a stream may owe, so that a round without events does not end the rounds."""


class Rounds(TokenBucket):
    """Tells whether a stream is dense, and when its next round starts; does no I/O.

    It holds ``round_burst`` tokens and gets one per round. Each batch that shows the end of a
    member's oplog takes one, or two if it has several events. The stream is dense while there is
    none: then its members are read once a round instead of once for each event. Rounds start when
    tokens for no-op writes are added too. There is one each ``round_interval``, or more if
    ``noops_per_second`` allows a no-op for each of them.
    """

    __slots__ = ()

    def __init__(self, limits: PacingSettings) -> None:
        most = limits.noops_per_second if limits.noops else 0.0
        super().__init__(max(most, 1 / limits.round_interval), limits.round_burst, debt=_DEBT)

    def charge(self, events: int, now: float) -> None:
        """Record a batch of ``events`` events after which the member's oplog had no more."""
        self.spend(now, min(events, _MOST_CHARGE))

    def dense(self, now: float) -> bool:
        """Return whether the members are to be read in rounds."""
        return self.tokens(now) < 1.0

"""The rounds in which a dense stream is read (docs/design.md#dense-streams), without I/O."""

from typing import Final

from router.limits.token_bucket import TokenBucket
from router.stream_settings import StreamSettings

_ROUNDS_WITHOUT_EVENTS: Final = 2
"""Rounds without events after which a stream is no longer dense: it owes one token less at most."""


class Rounds(TokenBucket):
    """Determines whether a stream is dense, and when its next round starts.

    It is a bucket that holds ``round_burst`` tokens and gets one per round, its interval. A batch
    that reaches the end of a member's oplog takes one for a single event, two for several, and none
    if it is empty. Without a token the stream is dense: its members are read once a round, not once
    for each event. Rounds start when tokens for no-op writes are added too. There is one each
    ``round_interval``, or more if ``noops_per_second`` allows a no-op for each of them.
    """

    def __init__(self, settings: StreamSettings) -> None:
        most = settings.noops_per_second if settings.writes_noops else 0.0
        per_second = max(most, 1 / settings.round_interval)
        self.length = 1 / per_second
        """Seconds from the start of a round to that of the next one."""
        super().__init__(per_second, settings.round_burst, debt=_ROUNDS_WITHOUT_EVENTS - 1)

    def is_dense(self, now: float) -> bool:
        """Return whether the members are to be read in rounds."""
        return self.tokens(now) < 1.0

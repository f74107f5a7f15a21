"""The state by which the reads of one remote, and the no-op writes to its member, are decided.

Does no I/O. Times are in seconds on one monotonic clock.
"""

from math import inf
from typing import Final

from bson.timestamp import Timestamp

from router.pacing.token_bucket import TokenBucket
from router.stream_settings import PacingSettings

_AGAIN, _AGAIN_MOST = 0.1, 2.0
"""Seconds, doubling up to a maximum, before a no-op write without effect is repeated."""
_LONGEST_TIMEOUT: Final = 12
"""Maximum of the timeout of a watermark that does not advance, as a multiple of the first one."""


class NoOpState:
    """The state of the no-op writes of a remote's member."""

    def __init__(self) -> None:
        self.pending = False
        """Whether a no-op write has been requested and is not done yet."""
        self.begun = False
        """Whether the pending no-op write has been sent."""
        self.past = Timestamp(0, 0)
        """The cluster time past which the no-op write moves the member."""
        self.again = 0.0
        """The time from which the same no-op write may be repeated."""
        self._pause = _AGAIN

    def ask(self, past: Timestamp) -> None:
        """Record the request for a no-op write past this time."""
        if past > self.past:
            self._pause = _AGAIN
        self.past, self.pending, self.begun = past, True, False

    def done(self, now: float) -> None:
        """Record the end of the no-op write, and set the time from which it may be repeated."""
        self.pending = self.begun = False
        self.again = now + self._pause
        self._pause = min(_AGAIN_MOST, 2 * self._pause)

    def shown(self) -> None:
        """Record that the watermark has advanced as far as needed."""
        self._pause = _AGAIN


class WatermarkTimeout:
    """Detects a watermark that does not advance although its replica set has.

    ``timeout`` is in seconds; 0 means without limit. It doubles with each member that is left for
    this reason, up to a maximum.
    """

    def __init__(self, timeout: float) -> None:
        self._first = self._timeout = timeout
        self._past: Timestamp | None = None
        self._since = 0.0

    @property
    def waiting(self) -> bool:
        """Whether a watermark is due."""
        return self._past is not None

    def reached(self, past: Timestamp, now: float) -> None:
        """Record that the replica set is beyond ``past``, so that a watermark beyond it is due."""
        if self._past is None:
            self._past, self._since = past, now

    def watermark(self, time: Timestamp) -> None:
        """Record that the remote's watermark is ``time``."""
        if self._past is not None and time > self._past:
            self._past, self._timeout = None, self._first

    def give_up(self, now: float) -> bool:
        """Return whether to leave the member; if so, increase the timeout for the next one."""
        late = self._past is not None and 0 < self._timeout < now - self._since
        if late:
            self._since = now
            self._timeout = min(2 * self._timeout, _LONGEST_TIMEOUT * self._first)
        return late


class ReadState:
    """What is known of one remote's member, and what has been requested from it.

    ``topology`` is whether the remote watches config.shards.
    """

    def __init__(self, limits: PacingSettings, *, topology: bool = False) -> None:
        self.topology = topology
        self.opened = False
        """Whether the member has replied."""
        self.events = 0
        """Number of events received."""
        self.events_at = -inf
        """The time of the last batch with events."""
        self.idle = False
        """Whether the last reply reached the end of the member's oplog."""
        self.reached = Timestamp(0, 0)
        """The end of the member's oplog, as of the last reply."""
        self.collects_in = -1
        """The number of the round whose first getMore of this remote is due or in progress."""
        self.round = -1
        """The number of the last round in which the watermark was requested for waiting events."""
        self.asked = Timestamp(0, 0)
        """The cluster time that the watermark must pass in that round."""
        self.noop = NoOpState()
        self.overdue = WatermarkTimeout(limits.watermark_timeout)
        self.probes = TokenBucket(1000 * limits.probe_share, 1000 * limits.probe_burst)
        """The milliseconds for which the progress cursor may keep the member busy: probes of an
        idle member cost next to nothing; those that scan much use up the bucket."""
        self._limits = limits
        self._waits = 0

    def record(self, events: int, reached: Timestamp | None, now: float, *, complete: bool) -> None:
        """Record a reply: its events, the end of the member's oplog, and whether it got there."""
        self.collects_in = -1
        if events:
            self.events += events
            self.events_at = now
        if reached is not None:
            self.reached = max(self.reached, reached)
        # The reply of an opening is always empty, so it does not show that the member is idle.
        if self.opened:
            self.idle = complete
        self.opened = True

    def next_wait(self) -> float:
        """Return the seconds that the next getMore may wait while events need the watermark.

        They double with each getMore until ``reset_wait``.
        """
        limits = self._limits
        seconds = limits.await_watermark * (1 << min(self._waits, 16))
        self._waits += 1
        return min(limits.await_watermark_max, seconds)

    def reset_wait(self) -> None:
        """Start over with the shortest wait: the watermark has arrived or is about to arrive."""
        self._waits = 0

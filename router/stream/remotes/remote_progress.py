"""What one remote of a stream has shown, and what the stream has asked of its member.

This module does no I/O. ``flow_control`` decides by it. All times are in seconds on one monotonic
clock.
"""

from math import inf
from typing import Final, Literal

from bson.timestamp import Timestamp

from router.stream_settings import StreamSettings
from shard_client.backoff import Backoff
from shard_client.bson.resume_token import next_tick

_AGAIN, _AGAIN_MOST = 0.1, 2.0
"""Seconds, doubling up to a maximum, before a no-op write without effect is repeated."""

_LONGEST_TIMEOUT: Final = 12
"""Maximum of the timeout of a watermark that does not advance, as a multiple of the first one."""

_BUSY: Final = 0.25
"""Seconds after its last event during which a remote is read at the start of each round."""
_MOST_LAG: Final = 2
"""Seconds of cluster time by which the watermark of a remote that is read in rounds may lag."""


class NoOpRequests:
    """The no-op writes that a stream requests for a remote's member, one at a time.

    Others read its fields; its methods alone change them.
    """

    def __init__(self) -> None:
        self.state: Literal["none", "requested", "sent"] = "none"
        self.count = 0
        """Number of no-op writes that have been sent."""
        self.again = -inf
        """The time from which a write past the same time may be requested again."""
        self.pauses = Backoff(_AGAIN, _AGAIN_MOST, jitter=0)
        """The times until it may; they start over once the watermark has advanced as needed."""
        self._past = Timestamp(0, 0)

    def may_request(self, past: Timestamp, now: float) -> bool:
        """Return whether a write that moves the member past this time may be requested now."""
        return past > self._past or now >= self.again

    def record_request(self, past: Timestamp) -> None:
        """Record the request for a write past this time."""
        if past > self._past:
            self.pauses.reset()
        self._past, self.state = past, "requested"

    def record_sent(self, past: Timestamp) -> None:
        """Record that the write is being sent: past a later time, if more events have arrived."""
        self._past, self.state = past, "sent"
        self.count += 1

    def withdraw(self) -> None:
        """Record that the requested write was not sent: no event needed it any more."""
        self.state = "none"

    def record_end(self, now: float) -> Timestamp:
        """Record the end of a write, and delay its repetition; return the time that it was
        to pass."""
        self.state = "none"
        self.delay_repetition(now)
        return self._past

    def delay_repetition(self, now: float) -> None:
        """Let the same write be requested again after a pause only."""
        self.again = now + self.pauses.next_pause()


class WatermarkTimeout:
    """Detects a watermark that does not advance although its replica set has.

    ``timeout`` is in seconds; 0 means without limit. It doubles with each member that is left for
    this reason, up to a maximum.
    """

    def __init__(self, timeout: float) -> None:
        self._first = self._timeout = timeout
        self._past: Timestamp | None = None
        self._since = 0.0

    def expect_beyond(self, past: Timestamp, now: float) -> None:
        """Record that the replica set is beyond ``past``, so that a watermark beyond it is due."""
        if self._past is None:
            self._past, self._since = past, now

    def record_watermark(self, time: Timestamp) -> None:
        """Record that the remote's watermark is ``time``."""
        if self._past is not None and time > self._past:
            self._past, self._timeout = None, self._first

    def is_over(self, now: float) -> bool:
        """Return whether the watermark is due for longer than the timeout."""
        return self._past is not None and 0 < self._timeout < now - self._since

    def record_leaving(self, now: float) -> None:
        """Record that the member is left; the next one gets more time."""
        self._since = now
        self._timeout = min(2 * self._timeout, _LONGEST_TIMEOUT * self._first)


class RemoteProgress:
    """The progress of one remote; ``topology`` marks the one that watches config.shards."""

    def __init__(self, settings: StreamSettings, *, topology: bool = False) -> None:
        self.topology = topology
        self.events = 0
        """Number of events received."""
        self.idle = False
        """Whether the last reply reached the end of the member's oplog."""
        self.noops = NoOpRequests()
        self.overdue = WatermarkTimeout(settings.watermark_timeout)
        self.waits = Backoff(settings.await_watermark, settings.await_watermark_max, jitter=0)
        """The times that getMores wait while events need the watermark; they start over once it has
        arrived, or is about to arrive."""
        self.collecting: int | None = None
        """The round whose first getMore of this remote is due or in progress."""
        self.asked_in: int | None = None
        """The last round in which the watermark was asked for."""
        self._asked = Timestamp(0, 0)
        self._oplog_end = Timestamp(0, 0)
        self._events_at = -inf

    def record_reply(
        self, events: int, oplog_end: Timestamp | None, now: float, *, complete: bool
    ) -> None:
        """Record a reply: its events, the end of the member's oplog, and whether it got there."""
        self.collecting = None
        if events:
            self.events += events
            self._events_at = now
        if oplog_end is not None:
            self._oplog_end = max(self._oplog_end, oplog_end)
        self.idle = complete

    def record_noop(self, past: Timestamp, now: float) -> None:
        """Record that a no-op write has moved the member past this time."""
        self._oplog_end = max(self._oplog_end, next_tick(past))
        self.overdue.expect_beyond(past, now)

    def is_beyond(self, time: Timestamp) -> bool:
        """Return whether the member's oplog is known to have an entry after this time."""
        return self._oplog_end > time

    def is_in_backlog(self, watermark: Timestamp) -> bool:
        """Return whether the watermark is far behind the member's oplog, or its end is unknown."""
        end = self._oplog_end.time
        return not end or watermark.time + _MOST_LAG < end

    def is_busy(self, now: float) -> bool:
        """Return whether the member has sent events lately."""
        return now - self._events_at < _BUSY

    def ask_in(self, number: int, past: Timestamp) -> None:
        """Record that the watermark is asked for in a round, and the time that it must pass."""
        self.asked_in, self._asked = number, past

    def is_asked_beyond(self, watermark: Timestamp) -> bool:
        """Return whether a later watermark has been asked for, and no no-op write comes first."""
        return watermark <= self._asked and self.noops.state != "requested"

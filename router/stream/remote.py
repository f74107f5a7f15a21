"""One remote of a stream: its cursor, its place in the merge, and what it has shown and been asked.

``flow_control`` decides by it, ``read_scheduler`` acts on it, and ``remotes`` opens it.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Final

from bson.int64 import Int64
from bson.timestamp import Timestamp

from router.limits.token_bucket import TokenBucket
from router.stream.merger import MergeInput
from router.stream.noop_writer import NoOpRequests
from router.stream_settings import StreamSettings
from shard_client.backoff import Backoff
from shard_client.bson.resume_token import cluster_time_of, next_tick
from shard_client.remote_cursor.remote_cursor import RemoteCursor

_LONGEST_TIMEOUT: Final = 12
"""Maximum of the timeout of a watermark that does not advance, as a multiple of the first one."""


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


_BUSY: Final = 0.25
"""Seconds after its last event during which a remote is read at the start of each round."""
_MOST_LAG: Final = 2
"""Seconds of cluster time by which the watermark of a remote that is read in rounds may lag."""


REASONS = ("idle", "behind", "paused", "reconnecting", "opening", "ended")
"""Why a slowest shard's watermark is not greater (``Remote.slowest_reason``)."""


class Remote:
    """One remote of a running stream, with its cursor and its input of the merge.

    Times are in seconds on one monotonic clock. A reading can be delayed: then no getMore is sent
    although the budgets allow it.
    """

    def __init__(
        self, in_merge: MergeInput, cursor: RemoteCursor, settings: StreamSettings
    ) -> None:
        self.number = in_merge.number
        self.target = in_merge.target
        self.topology = in_merge.topology
        """Whether it watches config.shards."""
        self.in_merge = in_merge
        self.cursor = cursor
        self.opened_at = in_merge.opens_at
        """Where the cursor begins."""
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
        self._delay: asyncio.TimerHandle | None = None
        self._probes = TokenBucket(1000 * settings.probe_share, 1000 * settings.probe_burst)
        """The milliseconds for which the progress cursor may keep the member busy: probes of an
        idle member cost next to nothing; those that scan much use up the bucket."""

    # What its member has shown, and what the stream has asked of it.

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

    def charge_probes(self, now: float) -> bool:
        """Charge the probes since the last call; return whether the budget allows another."""
        self._probes.spend(now, 1000 * self.cursor.take_probe_cost())
        return self._probes.tokens(now) > 0

    # Its cursor.

    @property
    def is_delayed(self) -> bool:
        """Whether the next getMore is delayed."""
        return self._delay is not None

    def delay(self, seconds: float, then: Callable[["Remote"], None]) -> None:
        """Delay the next getMore; ``then`` is called after ``seconds``, and has to end the delay.

        It is not called if the delay has ended before.
        """
        self.end_delay()
        self.cursor.pause()
        self._delay = asyncio.get_running_loop().call_later(seconds, then, self)

    def end_delay(self) -> None:
        """Let the next getMore be sent."""
        if self._delay is not None:
            self._delay.cancel()
            self._delay = None

    @property
    def state(self) -> str:
        """The state of the cursor: "opening", "reading", "paused", "failing" or "ended".

        It is paused by a budget, or because no client reads; not while its next getMore is delayed.
        """
        state = self.cursor.status
        return "reading" if state == "paused" and self.is_delayed else state

    @property
    def slowest_reason(self) -> str:
        """Why the watermark is not greater: one of ``REASONS``.

        "idle" is a member without newer events, "behind" one that still has events to read.
        """
        state = self.state
        if state == "reading":
            return "idle" if self.idle else "behind"
        return "reconnecting" if state == "failing" else state

    def describe(self, buffered: int) -> dict[str, Any]:
        """Return what serverStatus shows; ``buffered`` are the bytes of its unread events.

        ``topology`` marks the remote that watches config.shards; a config server that is also a
        shard has another remote for its data. ``reopened`` counts the failures after which the
        cursor was opened again, ``failingMillis`` is the time since a failure that lasts began.
        """
        cursor, watermark = self.cursor, self.in_merge.watermark
        document: dict[str, Any] = {
            "target": self.target,
            "address": cursor.address,
            "state": self.state,
            "watermark": cluster_time_of(watermark) if watermark else None,
            "events": Int64(self.events),
            "bufferedBytes": Int64(buffered),
            "reopened": cursor.outages.reopenings,
            "noopCommands": Int64(self.noops.count),
        }
        if self.topology:
            document["topology"] = True
        if cursor.failing_for is not None:
            document["failingMillis"] = Int64(cursor.failing_for * 1000)
            error = cursor.outages.last_error
            document["error"] = None if error is None else str(error)
        return document

"""One remote of a running stream: its progress, its place in the merge, and its cursor.

``read_scheduler`` acts on it, and ``open_remotes`` opens it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from bson.int64 import Int64

from router.limits.token_bucket import TokenBucket
from router.stream.merge.merger import MergeInput
from router.stream.remotes.remote_progress import RemoteProgress
from router.stream_settings import StreamSettings
from shard_client.bson.resume_token import cluster_time_of
from shard_client.remote_cursor.remote_cursor import RemoteCursor

REASONS = ("idle", "behind", "paused", "reconnecting", "opening", "ended")
"""Why a slowest shard's watermark is not greater (``Remote.slowest_reason``)."""


class Remote(RemoteProgress):
    """One remote of a running stream, with its cursor and its input of the merge.

    A reading can be delayed: then no getMore is sent although the budgets allow it.
    """

    def __init__(
        self, in_merge: MergeInput, cursor: RemoteCursor, settings: StreamSettings
    ) -> None:
        super().__init__(settings, topology=in_merge.topology)
        self.number = in_merge.number
        self.target = in_merge.target
        self.in_merge = in_merge
        self.cursor = cursor
        self.opened_at = in_merge.opens_at
        """Where the cursor begins."""
        self._delay: asyncio.TimerHandle | None = None
        self._probes = TokenBucket(1000 * settings.probe_share, 1000 * settings.probe_burst)
        """The milliseconds for which the progress cursor may keep the member busy: probes of an
        idle member cost next to nothing; those that scan much use up the bucket."""

    def charge_probes(self, now: float) -> bool:
        """Charge the probes since the last call; return whether the budget allows another."""
        self._probes.spend(now, 1000 * self.cursor.take_probe_cost())
        return self._probes.tokens(now) > 0

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

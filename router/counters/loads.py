"""What the streams of a process cost and deliver: commands and events by member, and delays."""

from bisect import bisect_left
from dataclasses import asdict, dataclass
from typing import Any, Final

from bson.int64 import Int64
from pydantic.alias_generators import to_camel

BOUNDS: Final = (
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
)  # fmt: skip
"""Upper bounds of the buckets in seconds; the last bucket has none."""


class Histogram:
    """Counts of times by bucket, one more than ``BOUNDS``; ``total`` is their sum in seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def record(self, seconds: float) -> None:
        """Record one time."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def to_document(self) -> dict[str, Any]:
        """Return the counts by the upper bound of their bucket, and the sum."""
        bounds = (*map(str, BOUNDS), "+Inf")
        return {"counts": dict(zip(bounds, self.counts, strict=True)), "total": self.total}


@dataclass(slots=True)
class MemberLoad:
    """Counts of the commands sent to one replica set, and of its events, since the start."""

    openings: int = 0
    """``aggregate`` commands that open cursors."""
    get_mores: int = 0
    """``getMore`` commands."""
    noop_commands: int = 0
    """Commands that make an idle oplog advance: no-op writes, or reads where these are refused."""
    noop_writes: int = 0
    """No-op writes that were made; the oplog had already advanced far enough for the others."""
    noop_write_bytes: int = 0
    """Bytes that these no-op writes take in the oplog."""
    reopenings: int = 0
    """Failures after which a cursor is opened again."""
    events: int = 0
    """Events received."""
    event_bytes: int = 0
    """Bytes of these events."""

    def to_document(self) -> dict[str, Any]:
        """Return what serverStatus shows."""
        return {to_camel(name): Int64(count) for name, count in asdict(self).items()}


class StreamLoads:
    """The load of each shard and of the config server, by target, and what clients receive.

    ``delivered`` and ``delivered_bytes`` count the events that all clients have received.
    ``low_watermark_waits`` are the times for which events waited for the low watermark, one for
    each batch of a shard that was held back or released; ``reply_delays`` the times from the
    release of events until a client that waits for them continues.
    """

    def __init__(self) -> None:
        self.low_watermark_waits = Histogram()
        self.reply_delays = Histogram()
        self.delivered = 0
        self.delivered_bytes = 0
        self.by_target: dict[str, MemberLoad] = {}

    def of(self, target: str) -> MemberLoad:
        """Return the counts of ``target``, for the caller to increment."""
        return self.by_target.setdefault(target, MemberLoad())

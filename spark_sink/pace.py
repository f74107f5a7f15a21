"""How many events a stretch of cluster time holds: an estimate, learned from what was read.

A cluster time is a second and a tick, which counts the writes within the second. The pace treats it
as a real number, the tick being a fraction of the second, and the events as coming evenly. Tasks
tell what they read (spark_sink.read_reports), so that on a steady backlog the next batch has the
size that was asked for. Nothing but the size of batches depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bson.timestamp import Timestamp

# Ticks of a second before one was seen to its end. A large number makes the first batches too
# small rather than too large, since a batch then ends with its first second.
_UNKNOWN_TICKS = 1 << 17
# A sample that differs from what was read before by this factor shows that the load has changed.
_CHANGED = 4.0
# Events of a batch while nothing tells how large an event is.
_UNKNOWN_SIZE_EVENTS = 1000


@dataclass(frozen=True)
class Passage:
    """What was read of a stretch of the stream.

    events, size: how many, and their bytes; first, last: cluster times of the first and the last
    event; ticks: the highest tick of a second that was seen to its end, 0 if none was.
    """

    events: int
    size: int
    first: Timestamp
    last: Timestamp
    ticks: int = 0


class Pace:
    """Estimates where so many events end. Knows nothing until it has been told something."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._ticks = 0
        self._event_size: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether anything was told that `end_of` can go by."""
        return self._rate is not None

    def has_read(self, passages: Sequence[Passage], end: Timestamp | None) -> None:
        """Learn from what tasks have read: the parts of a batch that ended at `end`."""
        full = [passage for passage in passages if passage.events]
        if not full:
            return
        events = sum(passage.events for passage in full)
        self._event_size = sum(passage.size for passage in full) / events
        first, last = min(p.first for p in full), max(p.last for p in full)
        current = last.time if end is None else end.time  # the second that goes on behind the end
        ended = [p.last.inc for p in full if p.last.time < current]
        self._ticks = max([*ended, *(p.ticks for p in full)]) or self._ticks
        span = self._moment(last) - self._moment(first)
        if span > 0 and events > 1:
            self._rate = events / span

    def has_seen(self, sample: Sequence[Timestamp]) -> None:
        """Learn from cluster times of events that follow each other, where they show a change."""
        if sample[-1].time > sample[0].time and not self._ticks:
            self._ticks = max(time.inc for time in sample if time.time < sample[-1].time)
        span = self._moment(sample[-1]) - self._moment(sample[0])
        if span <= 0:
            return
        rate = len(sample) / span
        known = self._rate
        if known is None or not known / _CHANGED <= rate <= known * _CHANGED:
            self._rate = rate

    def most_events(self, max_events: int | None, max_bytes: int | None) -> int | None:
        """The most events of a batch under both limits; None when there is none."""
        if max_bytes is None:
            return max_events
        if self._event_size is None:
            within_bytes = _UNKNOWN_SIZE_EVENTS
        else:
            within_bytes = max(1, int(max_bytes / self._event_size))
        return within_bytes if max_events is None else min(within_bytes, max_events)

    def end_of(self, start: Timestamp, events: int) -> Timestamp:
        """Where about so many events after `start` end. Only once `is_known`."""
        assert self._rate is not None
        return self._time(self._moment(start) + events / self._rate)

    def between(self, start: Timestamp, end: Timestamp, parts: int) -> list[Timestamp]:
        """The inner bounds of so many about equal parts; fewer where there is no room for them."""
        begin, width = self._moment(start), self._moment(end) - self._moment(start)
        bounds = (self._time(begin + width * part / parts) for part in range(1, parts))
        return sorted({bound for bound in bounds if start < bound < end})

    def _moment(self, time: Timestamp) -> float:
        return time.time + min(time.inc / (self._ticks or _UNKNOWN_TICKS), 0.999)

    def _time(self, moment: float) -> Timestamp:
        second = int(moment)
        return Timestamp(second, int((moment - second) * (self._ticks or _UNKNOWN_TICKS)))

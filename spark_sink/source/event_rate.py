"""Estimates how many events a range of cluster times contains, from what was read before.

A cluster time is a second and an ordinal within it. The estimate treats it as a real number, whose
fraction is the ordinal divided by the events of a second, and assumes an even rate. Nothing but the
size of batches depends on the estimate.
"""

from __future__ import annotations

from collections.abc import Sequence

from bson.timestamp import Timestamp

from spark_sink.source.task_reports import ReadStats

# Ordinals of a second before a second was read to its end. A large number makes the first batches
# too small rather than too large, because a batch then ends with its first second.
_UNKNOWN_TICKS = 1 << 17
# A sample whose rate differs from the known one by this factor replaces it.
_CHANGED = 4.0
# Events of a batch while the size of events is unknown.
_UNKNOWN_SIZE_EVENTS = 1000


class EventRate:
    """Estimates the time after a number of events, once it has learned a rate."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._ticks = 0
        self._event_size: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is an estimate."""
        return self._rate is not None

    def learn_from_tasks(self, tasks: Sequence[ReadStats], end: Timestamp | None) -> None:
        """Learn from what the tasks of a batch have read, which ended at `end`."""
        full = [stats for stats in tasks if stats.events]
        if not full:
            return
        events = sum(stats.events for stats in full)
        self._event_size = sum(stats.size for stats in full) / events
        first, last = min(task.first for task in full), max(task.last for task in full)
        current = last.time if end is None else end.time  # the second that contains the end
        ended = [task.last.inc for task in full if task.last.time < current]
        self._ticks = max([*ended, *(task.ticks for task in full)]) or self._ticks
        span = self._moment(last) - self._moment(first)
        if span > 0 and events > 1:
            self._rate = events / span

    def learn_from_sample(self, sample: Sequence[Timestamp]) -> None:
        """Learn from the cluster times of consecutive events, if they show a different rate."""
        if sample[-1].time > sample[0].time and not self._ticks:
            self._ticks = max(time.inc for time in sample if time.time < sample[-1].time)
        span = self._moment(sample[-1]) - self._moment(sample[0])
        if span <= 0:
            return
        rate = len(sample) / span
        known = self._rate
        if known is None or not known / _CHANGED <= rate <= known * _CHANGED:
            self._rate = rate

    def event_limit(self, max_events: int | None, max_bytes: int | None) -> int | None:
        """Return the most events of a batch under both limits; None if there is none."""
        if max_bytes is None:
            return max_events
        if self._event_size is None:
            within_bytes = _UNKNOWN_SIZE_EVENTS
        else:
            within_bytes = max(1, int(max_bytes / self._event_size))
        return within_bytes if max_events is None else min(within_bytes, max_events)

    def estimated_end(self, start: Timestamp, events: int) -> Timestamp:
        """Return the time after about `events` events from `start`. Requires `is_known`."""
        assert self._rate is not None
        return self._time(self._moment(start) + events / self._rate)

    def split_points(self, start: Timestamp, end: Timestamp, parts: int) -> list[Timestamp]:
        """Return the times that divide a range into about equal parts; fewer if it is too short."""
        begin, width = self._moment(start), self._moment(end) - self._moment(start)
        bounds = (self._time(begin + width * part / parts) for part in range(1, parts))
        return sorted({bound for bound in bounds if start < bound < end})

    def _moment(self, time: Timestamp) -> float:
        return time.time + min(time.inc / (self._ticks or _UNKNOWN_TICKS), 0.999)

    def _time(self, moment: float) -> Timestamp:
        second = int(moment)
        return Timestamp(second, int((moment - second) * (self._ticks or _UNKNOWN_TICKS)))

"""The events of one cursor, and how they differ from the shards' oplogs."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice, pairwise
from typing import Any

from embedded.logical_clock import as_ordinal, as_timestamp

Event = dict[str, Any]

_SHOWN = 3


@dataclass
class Segment:
    """The events of one cursor after ``start``; ``opened`` has the oplogs' positions then."""

    start: str
    """The sort key after which the events begin."""
    events: list[Event] = field(default_factory=list)
    first_mark: str = ""
    end: str = ""
    """The sort key that the next cursor resumes from."""
    replies: list[tuple[str, int]] = field(default_factory=list)
    """Each reply's watermark, and the number of events that had come by its end."""
    closed: bool = False
    """Whether an invalidate ended the stream."""
    positions: dict[str, int] | None = None
    """Each shard's oplog position when a stream from now was open."""


def key_of(event: Event) -> str:
    """Return an event's sort key."""
    data: str = event["_id"]["_data"]
    return data


def segment_problems(
    segment: Segment,
    history: Sequence[Event],
    *,
    last: bool = False,
    present: Sequence[Event] | None = None,
) -> Iterator[str]:
    """Compare one cursor's events with the history; ``last`` if no cursor resumed from it.

    ``present`` are the events that it must contain, by default all of ``history``.
    """
    got = [event for event in segment.events if event["operationType"] != "invalidate"]
    keys = [key_of(event) for event in got]
    if keys != sorted(keys):
        yield f"events are out of order: {_out_of_order(keys)}"
        return
    if present is None:
        yield from _reply_problems(segment, [key_of(event) for event in history])
    wanted = [event for event in history if segment.start < key_of(event) <= segment.end]
    by_key = _groups(got)
    needed = _groups(history if present is None else present)
    for key, events in _groups(wanted).items():
        given = by_key.pop(key, [])
        least = len(needed.get(key, ()))
        if key == segment.end and not last and len(events) > 1:
            least = 0  # DDL events may share a token, and resuming from it skips them all
        if not given and least:
            yield f"missing: {_short(events[0])}"
        elif not least <= len(given) <= len(events):
            yield f"given {len(given)} times instead of {len(events)}: {_short(events[0])}"
        elif any(_content(each) not in map(_content, events) for each in given):
            yield f"not as the shard has it: {_short(given[0])}"
    for key, events in list(by_key.items())[:_SHOWN]:
        where = "never happened" if not any(key_of(e) == key for e in history) else "out of place"
        yield f"{where}: {_short(events[0])} (cursor from {segment.start} to {segment.end})"


def _reply_problems(segment: Segment, keys: Sequence[str]) -> Iterator[str]:
    """Check that each reply's watermark covers exactly the events that had come by its end.

    ``keys`` are those of the stream's whole history. Of events that share the watermark's token, as
    only DDL events do, later replies may have the rest.
    """
    ends = sum(event["operationType"] == "invalidate" for event in segment.events)
    before = bisect_right(keys, segment.start)
    for mark, count in segment.replies:
        count = min(count, len(segment.events) - ends)
        least = bisect_left(keys, mark) - before
        most = bisect_right(keys, mark) - before
        if not min(least + 1, most) <= count <= most:
            yield f"{count} events instead of {most} had come by the watermark {mark}"
            return


def end_problems(segment: Segment, end: str) -> Iterator[str]:
    """Check that a stream ends at the sort key ``end``, or not before its last reply if ""."""
    if end and end < segment.end:
        yield f"goes on to {segment.end}, beyond its invalidate {end}"
    elif segment.closed and end != segment.end:
        yield f"ends at {segment.end} instead of {end or 'never'}"


def start_problems(segment: Segment, shards: Iterable[Any]) -> Iterator[str]:
    """Check that a stream from now has all events written after it was open."""
    if segment.positions is None:
        return
    start = int(segment.start[2:18], 16)
    for shard in shards:
        position = segment.positions.get(shard.name)
        if position is None:
            continue
        for entry in islice(shard.oplog.since(as_timestamp(position)), 1):
            ts = entry["ts"]
            if as_ordinal(ts) < start:
                yield f"from {segment.start}: leaves out {ts} of {shard.name}, written later"


def _groups(events: Sequence[Event]) -> dict[str, list[Event]]:
    return {key: list(group) for key, group in groupby(events, key=key_of)}


def _content(event: Event) -> Event:
    if event["operationType"] == "update":  # a lookup returns the current document
        return {name: value for name, value in event.items() if name != "fullDocument"}
    return event


def _short(event: Event) -> str:
    where = event.get("ns", {})
    what = event.get("documentKey", "")
    return f"{event['operationType']} {where} {what} {key_of(event)}"


def _out_of_order(keys: list[str]) -> str:
    for before, after in pairwise(keys):
        if after < before:
            return f"{after} after {before}"
    return ""

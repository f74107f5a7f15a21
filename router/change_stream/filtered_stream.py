"""Filtered streams: the parts of one merged stream that its readers' filters let through.

The merged stream passes each block that it releases to a ``Distribution``, which appends every
event to the logs of the filtered streams that it belongs to. So a shard is read once for all
filters, and an event meets only the filters that it may match (docs/sharing.md).
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

from router.change_stream.merged_stream import MergedStream
from router.change_stream.remotes import ShardSpan
from router.change_stream.resume_token import (
    TIME_DIGITS,
    ResumeToken,
    cluster_time_of,
    event_key,
    high_water_mark,
    is_high_water_mark,
    version_of,
)
from router.filters.index import FilterIndex
from router.filters.stream_filter import StreamFilter
from router.merge.merged_log import MergedLog
from router.merge.merger import EVENT_OVERHEAD, Block
from shard_client.error_codes import ErrorCode
from shard_client.errors import RESUMABLE_LABEL, CommandError

LEAST_KEPT: Final = 64 * 1024
"""Bytes of memory that the events of a filtered stream may always take."""

_LEAST_FULL: Final = LEAST_KEPT // 2
_MOST_FULL: Final = 2 * LEAST_KEPT
"""Bounds of ``FilteredStream.full``: a larger reply costs hardly less for each event."""

_RECENT_EVENTS: Final = 1000
_RECENT_BYTES: Final = 16 * 1024 * 1024
"""After so many events, or bytes of them, those read before count half (``Traffic``)."""

MALFORMED: Final = (ValueError, IndexError, struct.error)

_TIME_AND_VERSION: Final = TIME_DIGITS + 4
"""Length of the part of a sort key that holds the cluster time and the version."""


class Traffic:
    """The events that a distribution has read recently, and those that its streams have got."""

    __slots__ = ("_bytes", "_events", "_passed", "_passed_bytes", "_settled")

    def __init__(self) -> None:
        self._events = self._bytes = self._passed = self._passed_bytes = 0
        self._settled = False

    def add(self, events: int, size: int) -> None:
        """Count events of ``size`` bytes that have been read."""
        self._events += events
        self._bytes += size
        if self._events >= _RECENT_EVENTS or self._bytes >= _RECENT_BYTES:
            self._settled = True
            self._events //= 2
            self._bytes //= 2
            self._passed //= 2
            self._passed_bytes //= 2

    def add_passed(self, events: int, size: int) -> None:
        """Count events of ``size`` bytes that a filter or a namespace has let through."""
        self._passed += events
        self._passed_bytes += size

    @property
    def let_through(self) -> float:
        """How often an event is let through, by any filter or namespace."""
        return self._passed / max(1, self._events)

    @property
    def unwatched_bytes(self) -> float:
        """Bytes of an average event that are read beyond those that are let through.

        0 until enough events have been read.
        """
        if not self._settled:
            return 0.0
        return max(0, self._bytes - self._passed_bytes) / max(1, self._events)


class FilteredStream:
    """The events of a merged stream that pass a filter, for one log reader.

    It is readable like a merged stream. Its log has the matching events of all blocks that the
    merged stream has released. It releases nothing itself: its ``Distribution`` does.
    ``on_events`` is called when events have been appended, ``waited_for`` is whether its log
    reader waits for more of them. Once it is ``closed`` it gets no events any more, and so makes no
    promises either.
    """

    __slots__ = ("_distribution", "closed", "filter", "log", "on_events", "waited_for")

    def __init__(
        self, distribution: "Distribution", stream_filter: StreamFilter, floor: bytes
    ) -> None:
        self._distribution = distribution
        self.filter = stream_filter
        self.log = MergedLog(floor, event_key, distribution.stream.log.join_bytes)
        self.on_events: Callable[[], None] | None = None
        self.waited_for = False
        self.closed = False

    def release(self) -> bool:
        """Return False: events are appended as the merged stream releases them."""
        return False

    @property
    def mark(self) -> tuple[bytes, bytes] | None:
        """Sort key and token of the mark for a client that has read everything, or None."""
        return None if self.closed else self._distribution.mark

    @property
    def gate(self) -> bytes | None:
        """The sort key up to which all events are in the log."""
        return None if self.closed else self._distribution.gate

    @property
    def error(self) -> CommandError | None:
        """The error that ended the stream after the log's end."""
        return None if self.closed else self._distribution.error

    @property
    def refused(self) -> bool:
        """Whether the error occurred at the opening."""
        return self._distribution.stream.refused

    @property
    def ended(self) -> bool:
        """Whether an invalidate has ended the stream and nothing is left to release."""
        return not self.closed and self._distribution.stream.ended

    def spans_beyond(self, key: bytes) -> frozenset[ShardSpan]:
        """Return the spans, removed shards included, that may have events beyond a sort key."""
        return self._distribution.stream.spans_beyond(key)

    @property
    def swallowed(self) -> list[bytes]:
        """Sort keys of the invalidates that the stream has swallowed."""
        return self._distribution.stream.swallowed

    @property
    def traffic(self) -> Traffic:
        """The recent events of the merged stream."""
        return self._distribution.traffic

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the events in its log take."""
        return self.log.memory

    @property
    def full(self) -> bool:
        """Whether its log reader has enough events, so that it should not wait for more."""
        return self.log.memory >= self._distribution.full


class StreamsByFilter:
    """Filtered streams by the identities of their filters, which are found through an index.

    Streams without a filter have the identity b"" and are not in the index.
    """

    def __init__(self) -> None:
        self.index: FilterIndex[bytes] = FilterIndex()
        self.by_identity: dict[bytes, list[FilteredStream]] = {}
        """The streams by the identity of their filter; none of the lists is empty."""

    def __iter__(self) -> Iterator[FilteredStream]:
        """All streams."""
        return chain.from_iterable(self.by_identity.values())

    def __bool__(self) -> bool:
        """Whether there are streams."""
        return bool(self.by_identity)

    def add(self, stream: FilteredStream) -> None:
        """Add a stream."""
        identity = stream.filter.identity
        if identity not in self.by_identity:
            self.by_identity[identity] = []
            if identity:
                self.index.add(identity, stream.filter)
        self.by_identity[identity].append(stream)

    def remove(self, stream: FilteredStream) -> None:
        """Remove a stream."""
        identity = stream.filter.identity
        self.by_identity[identity].remove(stream)
        if not self.by_identity[identity]:
            del self.by_identity[identity]
            self.index.remove(identity)


class Distribution:
    """Distributes the released events of ``stream`` to filtered streams.

    ``kept_bytes`` bounds the memory that all their unread events take. While they take more, the
    oldest events of each filtered stream that gets further ones are dropped beyond an equal share
    of it, ``LEAST_KEPT`` at least, and its log reader is lost, as in a merged stream's log.
    """

    def __init__(self, stream: MergedStream, kept_bytes: int) -> None:
        self.stream = stream
        self._kept_bytes = kept_bytes
        self._streams = StreamsByFilter()
        self._count = 0
        self._last: bytes | None = None
        self._mark: tuple[bytes, bytes] | None = None
        self._broken: CommandError | None = None
        self.held_bytes = 0
        """Bytes of memory that the unread events of all filtered streams take."""
        self.examined = 0
        """The number of events that have met the filters."""
        self.pressed: list[FilteredStream] = []
        """Filtered streams that have become ``full`` while their log readers wait; clear it after
        these are woken."""
        self.full = _MOST_FULL
        """Bytes of memory of unread events from which on a filtered stream is ``full``."""
        self.matches = 0
        """The number of times that a filter has let an event through."""
        self.traffic = Traffic()

    @property
    def readers(self) -> int:
        """The number of filtered streams."""
        return self._count

    @property
    def filters(self) -> int:
        """The number of different filters."""
        return len(self._streams.index)

    def open(self, stream_filter: StreamFilter, after: bytes) -> FilteredStream:
        """Return a filtered stream with all matching events beyond the sort key ``after``.

        The merged stream must cover ``after``.
        """
        filtered = FilteredStream(self, stream_filter, max(after, self.stream.log.floor))
        log = self.stream.log
        alone: FilterIndex[None] = FilterIndex()
        alone.add(None, stream_filter)
        number = log.number_beyond(after)
        while number < log.end:
            block = log.block_from(number)
            number += len(block)
            try:
                for _, events in alone.route(block):
                    self._append(filtered, [stream_filter.project(each) for each in events])
            except MALFORMED as error:
                self._break(error)
                break
        self._streams.add(filtered)
        self._opened()
        return filtered

    def close(self, filtered: FilteredStream) -> None:
        """Stop filling a filtered stream; its reader has left."""
        self._streams.remove(filtered)
        self._closed(filtered)

    def _opened(self) -> None:
        """Count a stream that has been opened, the first of which begins the distribution."""
        self._count_readers(1)
        if self.stream.distribute is None:
            self.stream.distribute = self._distribute

    def _closed(self, filtered: FilteredStream) -> None:
        """Stop counting a stream, the last of which ends the distribution."""
        filtered.closed = True
        self._count_readers(-1)
        self.held_bytes -= filtered.held_bytes
        if not self._count:
            self.stream.distribute = None
            self._last = None

    def _count_readers(self, more: int) -> None:
        """Update the number of readers and what follows from it."""
        self._count += more
        # All readers may have so much unread before anything is dropped.
        share = self._kept_bytes * 3 // (4 * max(1, self._count))
        self.full = max(_LEAST_FULL, min(_MOST_FULL, share))

    def forget(self, filtered: FilteredStream, number: int) -> None:
        """Drop the events of a filtered stream before ``number``, which have been read."""
        if filtered.log.start < number:
            before = filtered.held_bytes
            filtered.log.forget(number)
            self.held_bytes += filtered.held_bytes - before

    @property
    def error(self) -> CommandError | None:
        """The error of the merged stream, once all its events have been distributed."""
        if self._broken is not None:
            return self._broken
        return None if self.stream.ready else self.stream.error

    @property
    def gate(self) -> bytes | None:
        """The sort key up to which all events have been distributed."""
        if self.stream.ready:
            return self._last
        return self.stream.gate

    @property
    def mark(self) -> tuple[bytes, bytes] | None:
        """The high water mark of a filtered stream whose events have all been read.

        It is never an event's token, because a filter may not let that event through: then no
        stream with this filter could resume after it. The mark before the event's cluster time
        takes its place, except at an invalidate, which ends every stream.
        """
        stream = self.stream
        if stream.ready:
            return None if self._last is None else self._mark_before(self._last)
        mark = stream.mark
        if mark is None or stream.ended or is_high_water_mark(mark[0]):
            return mark
        return self._mark_before(mark[0])

    def _mark_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the high water mark that sorts before every event of the key's cluster time."""
        version = version_of(key)
        if version is None:
            return None
        known = self._mark
        if known is None or known[0][:_TIME_AND_VERSION] != key[:_TIME_AND_VERSION]:
            token: ResumeToken = high_water_mark(cluster_time_of(key), version)
            known = self._mark = (token.data, token.raw)
        return known

    def _distribute(self, block: Block) -> None:
        """Append the events of a released block to the filtered streams that they belong to."""
        self._last = block.last_key
        self.examined += len(block.events)
        self.traffic.add(len(block.events), block.size)
        if self._broken is not None:
            return
        try:
            if self._streams:
                self._route(block.events, self._streams)
            self._narrow(block.events)
        except MALFORMED as error:
            self._break(error)

    def _narrow(self, events: list[bytes]) -> None:
        """Append events to the narrowed streams; there are none here."""

    def _route(self, events: Iterable[bytes], streams: StreamsByFilter) -> None:
        """Append events to the ``streams`` whose filters let them through."""
        matches = size = 0
        append, by_identity = self._append, streams.by_identity
        for identity, passed in streams.index.route(events):
            readers = by_identity[identity]
            first = readers[0]
            matches += len(passed)
            if first.filter.projections:
                passed = [first.filter.project(each) for each in passed]
            if len(readers) > 1:
                for filtered in readers[1:]:
                    append(filtered, list(passed))
            size += append(first, passed)
        self.matches += matches
        self.traffic.add_passed(matches, size)

    def _append(self, filtered: FilteredStream, events: list[bytes]) -> int:
        """Append events to the log of a stream; return their size in bytes."""
        count = len(events)
        size = len(events[0]) if count == 1 else sum(map(len, events))
        log = filtered.log
        log.append(events, size)
        self.held_bytes += size + EVENT_OVERHEAD * count
        held = log.memory
        if held >= self.full:
            if filtered.waited_for:
                filtered.waited_for = False
                self.pressed.append(filtered)
            if held > LEAST_KEPT and self.held_bytes > self._kept_bytes:
                log.trim(max(LEAST_KEPT, self._kept_bytes // max(1, self._count)))
                self.held_bytes += log.memory - held
        if filtered.on_events is not None:
            filtered.on_events()
        return size

    def _break(self, error: Exception) -> None:
        message = f"An event of the change stream is malformed: {error!r}"
        self._broken = CommandError(ErrorCode.InternalError, message, labels=(RESUMABLE_LABEL,))

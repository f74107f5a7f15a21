"""Log readers: one client's reading of a merged stream."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from router.change_stream.remotes import ShardSpan, covers_all
from router.change_stream.resume_point import ResumePoint
from router.change_stream.resume_token import TIME_DIGITS, event_key, token_of
from router.change_stream.starting_point import StartingPoint
from router.merge.merged_log import ELEMENT_OVERHEAD, MergedLog, cut
from shard_client.errors import CommandError

MAX_BATCH_BYTES: Final = 16 * 1024 * 1024


class Batch(NamedTuple):
    """The contents of one reply of a merged stream.

    ``events`` are raw BSON slices, ``size`` is their size in bytes, ``pbrt`` the raw token document
    of the reply's postBatchResumeToken. ``closed`` is whether the stream has ended: the reply has
    cursor id 0.
    """

    events: list[bytes]
    size: int
    pbrt: bytes
    closed: bool


class ReadableStream(Protocol):
    """The interface of a merged stream that log readers use."""

    @property
    def log(self) -> MergedLog:
        """The log of released events."""

    def release(self) -> bool:
        """Append the next block to the log, after a client has read the log to its end.

        Return False if nothing is ready.
        """

    @property
    def mark(self) -> tuple[bytes, bytes] | None:
        """Sort key and token of the mark for a client that has read everything, or None."""

    @property
    def gate(self) -> bytes | None:
        """The sort key up to which all events are released once nothing is ready."""

    @property
    def error(self) -> CommandError | None:
        """The error that ended the stream after the log's end."""

    @property
    def refused(self) -> bool:
        """Whether the error occurred at the opening."""

    @property
    def ended(self) -> bool:
        """Whether an invalidate has ended the stream and nothing is left to release."""

    def spans_beyond(self, key: bytes) -> frozenset[ShardSpan]:
        """Return the spans, removed shards included, that may have events beyond a sort key."""

    @property
    def swallowed(self) -> list[bytes]:
        """Sort keys of the invalidates that the stream has swallowed."""


class LogReader:
    """Reads a merged stream for one client (docs/design.md#many-clients).

    Many log readers share one stream; each has its own high water mark. The log has dropped the
    next events of a ``lost`` log reader: attach it to another stream that covers its ``needs``.
    """

    __slots__ = (
        "_after",
        "_error",
        "_held",
        "_mark",
        "_mark_key",
        "_number",
        "_point",
        "_resume",
        "_stream",
    )

    def __init__(self, stream: ReadableStream, point: StartingPoint) -> None:
        """Start at ``point``; ``stream`` must cover its ``after``."""
        self._point = point
        self._mark = point.mark
        self._mark_key = point.mark_key
        self._error: CommandError | None = None
        self._resume: ResumePoint | None = None
        # Events read from the log but not returned yet: those that share the last one's key, and
        # after a resume those of the block in which the resume point was passed.
        self._held: list[bytes] = []
        self.attach(stream)

    # Location.

    @property
    def high_water_mark(self) -> bytes:
        """The raw token document from which the client may resume after the events received."""
        return self._mark

    @property
    def lost(self) -> bool:
        """Whether the log has dropped the next events, or they lie beyond the stream's end."""
        if self._held or self._error is not None:
            return False
        stream = self._stream
        if self._number < stream.log.start:
            return True
        if self._after is None or not stream.ended:
            return False
        # From the end's own time on, a separate stream would end at the same event.
        return self._after[:TIME_DIGITS] > (stream.gate or b"")[:TIME_DIGITS]

    @property
    def at_start(self) -> bool:
        """Whether the client has received no token beyond its starting point."""
        return self._resume is not None or self._mark is self._point.mark

    @property
    def needs(self) -> bytes:
        """The sort key beyond which the log reader needs all events of its next stream."""
        return self._point.after if self.at_start else self._mark_key

    @property
    def needs_spans(self) -> frozenset[ShardSpan]:
        """The spans, removed shards included, that the next stream must cover."""
        return self._stream.spans_beyond(self.needs)

    @property
    def reached(self) -> bytes:
        """The sort key beyond which it has read nothing, if it has read all that is ready."""
        return max(self.needs, self._stream.gate or b"")

    @property
    def stream(self) -> ReadableStream:
        """The stream that it reads."""
        return self._stream

    @property
    def number(self) -> int:
        """The number of the next event that it reads from the stream's log."""
        return self._number

    def attach(self, stream: ReadableStream) -> None:
        """Continue on ``stream``, a stream that covers all events beyond ``needs``.

        Of the events that have been read but not returned, it keeps those that share their key
        with the last one that was: ``stream`` is read beyond that key.
        """
        if self.at_start:
            # All events of its starting point's cluster time come again.
            self._held = []
            self._resume = _resume_point(self._point)
        else:
            end = bisect_right(self._held, self._mark_key, key=event_key)
            self._held = self._held[:end]
        self._go_on(stream, self.needs)

    def join(
        self,
        stream: ReadableStream,
        opened: Callable[[bytes], ReadableStream] | None = None,
    ) -> bool:
        """Move to ``stream`` if it covers all events that are not returned yet.

        ``opened`` returns the part of it to read instead, given the sort key beyond which events
        are needed. Return whether the log reader moved.
        """
        own = self._stream
        if stream is own or self._resume is not None or self._fill() or self._over or self.lost:
            return False
        reached = self.reached
        if stream.log.floor > reached:
            return False
        if not covers_all(stream.spans_beyond(reached), own.spans_beyond(reached), reached):
            return False
        self._go_on(stream if opened is None else opened(reached), reached)
        return True

    def _go_on(self, stream: ReadableStream, after: bytes) -> None:
        self._stream = stream
        self._after: bytes | None = after
        self._number = stream.log.number_beyond(after)

    # Reading.

    def release(self) -> bool:
        """Make the stream release events if none is left to read.

        Return whether ``take`` has a result at once: events, the end, or an error.
        """
        return self._fill() or self._over

    def take(
        self,
        max_events: int | None,
        max_bytes: int = MAX_BATCH_BYTES,
        enough: int | None = None,
    ) -> Batch:
        """Return the next batch, possibly empty, without waiting.

        ``max_events``: None for as many as fit, 0 for none (an opening's first batch, which has the
        starting point's token, and fails only if a cursor could not be opened). ``max_bytes``
        bounds the batch, but the first event is always included (docs/protocol.md#cursor-replies).
        At ``enough`` bytes the batch stops at the next boundary between blocks. Raises CommandError
        as mongos does, labels included, once all ready events have been returned.
        """
        events: list[bytes] = []
        size = 0
        last: bytes | None = None
        enough = max_bytes if enough is None else enough
        while size < enough and (max_events is None or len(events) < max_events) and self._fill():
            wanted = None if max_events is None else max_events - len(events)
            space = max_bytes - size - ELEMENT_OVERHEAD * len(events)
            part, part_size = self._read(wanted, space, first=not events)
            if not part:
                break
            last = part[-1]
            events.extend(part)
            size += part_size
        more = self._fill()
        if last is not None:
            self._mark_key, self._mark = event_key(last), token_of(last)
            if more:
                self._hold_equals()
        elif not more and self._over:
            error = self._error or self._stream.error
            if error is None:
                if max_events != 0:
                    self._raise_mark()
                    return Batch([], 0, self._mark, closed=True)
            elif max_events != 0 or self._stream.refused:
                raise error.with_change_stream_label()
        if not more and max_events != 0 and not self.lost:
            self._raise_mark()
        return Batch(events, size, self._mark, closed=False)

    @property
    def _over(self) -> bool:
        """Whether the stream has ended or failed, provided that nothing is left to read."""
        if self._error is not None:
            return True
        stream = self._stream
        return (stream.error is not None or stream.ended) and not self.lost

    def _fill(self) -> bool:
        """Return whether there is an event to read; make the stream release more if necessary."""
        if self._held:
            return True
        if self._error is not None:
            return False
        log = self._stream.log
        while log.start <= self._number:
            if self._number == log.end and not self._stream.release():
                return False
            if self._after is None and self._resume is None:
                return True
            self._skip(log)
            if self._held:
                return True
            if self._error is not None:
                return False
        return False

    def _skip(self, log: MergedLog) -> None:
        """Skip the events that the client must not receive."""
        if self._after is not None:
            self._number = max(self._number, log.number_beyond(self._after))
            if self._number == log.end:
                return
            self._after = None
        if self._resume is None:
            return
        for key in self._stream.swallowed:
            self._resume.swallowed(key)
        events = self._resume.concerned(log.block_from(self._number))
        try:
            self._held = self._resume.drop_seen(events)
        except CommandError as error:
            # No event beyond a resume point that was not found is ever returned.
            self._error = error
        self._number += len(events)
        if self._resume.passed:
            self._resume = None

    def _read(self, wanted: int | None, space: int, *, first: bool) -> tuple[list[bytes], int]:
        if self._held:
            part, size = cut(self._held, wanted, space, first=first)
            self._held = self._held[len(part) :]
        else:
            part, size = self._stream.log.read(self._number, wanted, space, first=first)
            self._number += len(part)
        return part, size

    def _hold_equals(self) -> None:
        """Hold the events with the last event's key: no stream can resume between equal tokens."""
        if not self._held and self._after is None:
            self._held = self._stream.log.equal_from(self._number, self._mark_key)
            self._number += len(self._held)

    def _raise_mark(self) -> None:
        """Advance to the stream's mark, after all ready events have been returned."""
        mark = self._stream.mark
        if mark is not None and mark[0] > self._mark_key and mark[0] > self._point.floor:
            self._mark_key, self._mark = mark
            if self._resume is not None and self._resume.found:
                self._resume = None  # the mark is beyond it, and so is every event to come


def _resume_point(point: StartingPoint) -> ResumePoint | None:
    return None if point.resume is None else ResumePoint(point.resume)

"""One client's place in a merged stream: what it has been given, and what comes next."""

from typing import Final, Protocol

from router.change_stream.actions import Taken
from router.change_stream.remotes import ShardSpan, serve
from router.change_stream.resume_point import ResumePoint
from router.change_stream.resume_token import TIME_DIGITS, event_key, token_of
from router.change_stream.starting_point import StartingPoint
from router.merge.merged_log import ELEMENT_OVERHEAD, MergedLog, cut
from shard_client.errors import CommandError

MAX_BATCH_BYTES: Final = 16 * 1024 * 1024


class ReadableStream(Protocol):
    """A merged stream as its readers see it."""

    @property
    def log(self) -> MergedLog:
        """What has been released."""

    def release(self) -> bool:
        """Append what is ready to the log, of which all has been read; False if nothing is."""

    @property
    def mark(self) -> tuple[bytes, bytes] | None:
        """Sort key and token that may be the mark of who has read all; None if there is none."""

    @property
    def gate(self) -> bytes | None:
        """The sort key up to which everything has been released once nothing is ready."""

    @property
    def error(self) -> CommandError | None:
        """What ended the stream after the log's end."""

    @property
    def refused(self) -> bool:
        """Whether the error was there at the opening."""

    @property
    def ended(self) -> bool:
        """Whether an invalidate has ended the stream, nothing being left to release."""

    def spans_beyond(self, key: bytes) -> frozenset[ShardSpan]:
        """The shards, those that have left included, that may have events beyond a sort key."""

    @property
    def swallowed(self) -> list[bytes]:
        """Sort keys of the invalidates that were taken out of the stream."""


class LogReader:
    """Reads a merged stream for one client (docs/design.md, section 10).

    Many positions share one stream; each has its own high water mark. One that is ``lost`` has been
    overtaken by the log's end: attach it to another stream that has what it needs.
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
        "_source",
    )

    def __init__(self, source: ReadableStream, point: StartingPoint) -> None:
        """Start at ``point``; ``source`` must cover its ``after``."""
        self._point = point
        self._mark = point.mark
        self._mark_key = point.mark_key
        self._error: CommandError | None = None
        # Taken out of the log, not handed out yet: what has a key or a time in common, no more.
        self._held: list[bytes] = []
        self._resume = ResumePoint(point.resume) if point.resume is not None else None
        self.attach(source)

    # Where it is.

    @property
    def high_water_mark(self) -> bytes:
        """The raw token document that the client may resume from, given what it has been given."""
        return self._mark

    @property
    def lost(self) -> bool:
        """Whether what comes next has been let go by the log, or lies beyond the stream's end."""
        if self._held or self._error is not None:
            return False
        source = self._source
        if self._number < source.log.start:
            return True
        if self._after is None or not source.ended:
            return False
        # From the end's own time on, a stream of its own would come to the same end.
        return self._after[:TIME_DIGITS] > (source.gate or b"")[:TIME_DIGITS]

    @property
    def at_start(self) -> bool:
        """Whether the client has not been told of any place beyond its starting point."""
        return self._resume is not None or self._mark is self._point.mark

    @property
    def needs(self) -> bytes:
        """The sort key that everything beyond is needed of, from whatever stream comes next."""
        return self._point.after if self.at_start else self._mark_key

    @property
    def needs_spans(self) -> frozenset[ShardSpan]:
        """The shards of which these events are needed, those that have left included."""
        return self._source.spans_beyond(self.needs)

    def attach(self, source: ReadableStream) -> None:
        """Go on with ``source``, which covers what this position ``needs``."""
        if self._resume is not None and self._point.resume is not None:
            # What was seen of its cluster time comes again.
            self._resume = ResumePoint(self._point.resume)
        self._go_on(source, self.needs)

    def join(self, source: ReadableStream) -> bool:
        """Go over to ``source`` once it covers all that has not been handed out yet."""
        own = self._source
        if source is own or self._resume is not None or self._fill() or self._over or self.lost:
            return False
        reached = max(self.needs, own.gate or b"")
        if source.log.floor > reached:
            return False
        if not serve(source.spans_beyond(reached), own.spans_beyond(reached), reached):
            return False
        self._go_on(source, reached)
        return True

    def _go_on(self, source: ReadableStream, after: bytes) -> None:
        self._source = source
        self._after: bytes | None = after
        self._number = source.log.number_beyond(after)

    # Reading.

    @property
    def ready(self) -> bool:
        """Whether ``take`` has something to say at once: events, the end, or an error."""
        return self._fill() or self._over

    def take(
        self,
        max_events: int | None,
        max_bytes: int = MAX_BATCH_BYTES,
        enough: int | None = None,
    ) -> Taken:
        """Hand out the next batch, without waiting; it may be empty.

        ``max_events``: None for as many as fit, 0 for none (an opening's first batch, which has the
        starting point's token, and fails only if a cursor could not be opened). ``max_bytes``
        bounds the batch, save that the first event always goes (docs/protocol.md, section 2); from
        ``enough`` bytes on nothing further is looked for, where the batch may stop between blocks.
        Raises CommandError as mongos would, labels included, once everything that was ready has
        been handed out.
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
            error = self._error or self._source.error
            if error is None:
                if max_events != 0:
                    self._raise_mark()
                    return Taken([], 0, self._mark, closed=True)
            elif max_events != 0 or self._source.refused:
                raise error.with_change_stream_label()
        if not more and max_events != 0 and not self.lost:
            self._raise_mark()
        return Taken(events, size, self._mark, closed=False)

    @property
    def _over(self) -> bool:
        """Whether, nothing being left to read, the stream has ended or failed."""
        if self._error is not None:
            return True
        source = self._source
        return (source.error is not None or source.ended) and not self.lost

    def _fill(self) -> bool:
        """Tell whether there is an event to read; have the stream release more if need be."""
        if self._held:
            return True
        if self._error is not None:
            return False
        log = self._source.log
        while log.start <= self._number:
            if self._number == log.end and not self._source.release():
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
        """Go past what the client is not to get."""
        if self._after is not None:
            self._number = max(self._number, log.number_beyond(self._after))
            if self._number == log.end:
                return
            self._after = None
        if self._resume is None:
            return
        for key in self._source.swallowed:
            self._resume.swallowed(key)
        events = self._resume.concerned(log.block_from(self._number))
        try:
            self._held = self._resume.drop_seen(events)
        except CommandError as error:
            # Nothing beyond a point that was not found is ever handed out.
            self._error = error
        self._number += len(events)
        if self._resume.passed:
            self._resume = None

    def _read(self, wanted: int | None, space: int, *, first: bool) -> tuple[list[bytes], int]:
        if self._held:
            part, size = cut(self._held, wanted, space, first=first)
            self._held = self._held[len(part) :]
        else:
            part, size = self._source.log.read(self._number, wanted, space, first=first)
            self._number += len(part)
        return part, size

    def _hold_equals(self) -> None:
        """Keep what has the last event's key: a token that stands for several cannot be resumed."""
        if not self._held and self._after is None:
            self._held = self._source.log.equal_from(self._number, self._mark_key)
            self._number += len(self._held)

    def _raise_mark(self) -> None:
        """Take on the stream's mark, all that is ready having been handed out."""
        mark = self._source.mark
        if mark is not None and mark[0] > self._mark_key and mark[0] > self._point.floor:
            self._mark_key, self._mark = mark

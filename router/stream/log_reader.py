"""Log readers: one client's reading of a merged stream."""

from typing import Final, NamedTuple

from router.request.resume_point import ResumePoint, StartingPoint
from router.stream.event_log import ELEMENT_OVERHEAD, EventLog, cut
from router.stream.membership import ShardSpan
from router.stream.views import PartialView, View
from shard_client.bson.resume_token import TIME_DIGITS
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import KeyedToken, event_key, token_of

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


class LogReader:
    """Reads a merged stream for one client (docs/design.md#many-clients).

    Many log readers share one stream; each has its own high water mark. A log reader is ``lost`` if
    the log has dropped its next events: then ``continue_on`` a view that covers ``needs``.
    """

    def __init__(self, view: View, point: StartingPoint) -> None:
        """Start at ``point``; ``view`` must cover its ``after``."""
        self._point = point
        self._mark = point.high_water_mark
        self._error: CommandError | None = None
        self._resume: ResumePoint | None = None
        self._rewritten: frozenset[bytes] = frozenset()
        self._past_rewritten = b""
        # Events read from the log but not returned yet: those that share the last one's key, and
        # after a resume those of the block in which the resume point was passed.
        self._taken: list[bytes] = []
        self.continue_on(view)

    # Location.

    @property
    def high_water_mark(self) -> bytes:
        """The raw token document from which the client may resume after the events received."""
        return self._mark.token

    @property
    def lost(self) -> bool:
        """Whether the log has dropped the next events, or they lie beyond the stream's end."""
        if self._taken or self._error is not None:
            return False
        view = self.view
        if self.number < view.log.start:
            return True
        if self._after is None or not view.ended:
            return False
        # From the end's own time on, a separate stream would end at the same event.
        return self._after[:TIME_DIGITS] > view.low_watermark[:TIME_DIGITS]

    @property
    def at_start(self) -> bool:
        """Whether the client has received no token beyond its starting point."""
        return self._resume is not None or self._mark is self._point.high_water_mark

    @property
    def needs(self) -> bytes:
        """The sort key beyond which the log reader needs all events of its next stream."""
        if self.at_start:
            return self._point.after
        return self._past_rewritten if self._mark.key in self._rewritten else self._mark.key

    @property
    def needs_spans(self) -> frozenset[ShardSpan]:
        """The spans, removed shards included, that the next stream must cover."""
        return self._stream.membership.spans_beyond(self.needs)

    @property
    def part(self) -> PartialView | None:
        """The part of a merged stream that it reads; None if it reads all events of one."""
        return self.view if isinstance(self.view, PartialView) else None

    def continue_on(self, view: View) -> None:
        """Continue on ``view``, which covers all events beyond ``needs``.

        Of the events that have been read but not returned, it keeps those that share their key
        with the last one that was, or that have rewritten tokens: ``view`` is read beyond them.
        """
        if self.at_start:
            # All events of its starting point's cluster time come again.
            self._taken = []
            self._resume = self._point.resume_point()
            self._rewritten = frozenset()
        else:
            kept = self._rewritten if self._mark.key in self._rewritten else {self._mark.key}
            self._taken = [event for event in self._taken if event_key(event) in kept]
        self.view = view
        """What it reads."""
        self._stream = view.stream if isinstance(view, PartialView) else view
        self._after: bytes | None = self.needs
        self.number = view.log.number_beyond(self.needs)
        """The number of the next event that it reads from the view's log."""

    def has_caught_up(self) -> bool:
        """Return whether all that is ready has been returned; then its high water mark advances."""
        if self._resume is not None or self._fill() or self._over or self.lost:
            return False
        self._raise_mark()
        return True

    # Reading.

    def is_ready(self) -> bool:
        """Return whether ``take`` has a result at once: events, the end, or an error.

        Makes the stream release events if none is left to read.
        """
        return self._fill() or self._over

    def first_batch(self) -> Batch:
        """Return an opening's batch: it has no events, and the starting point's token.

        Raises CommandError as ``take`` does, if a cursor could not be opened.
        """
        error = None if self._fill() else self._error or self.view.error
        if error is not None and self._stream.refused:
            raise error.with_change_stream_label()
        return Batch([], 0, self._mark.token, closed=False)

    def take(
        self, max_events: int | None, max_bytes: int = MAX_BATCH_BYTES, enough: int | None = None
    ) -> Batch:
        """Return the next batch, possibly empty, without waiting.

        ``max_events`` None means as many as fit. ``max_bytes`` bounds the batch, but the first
        event is always included (docs/protocol.md#cursor-replies).
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
            self._mark = KeyedToken.of(token_of(last))
            if more:
                self._hold_equals()
        elif not more and self._over:
            if (error := self._error or self.view.error) is not None:
                raise error.with_change_stream_label()
            self._raise_mark()
            return Batch([], 0, self._mark.token, closed=True)
        if not more and not self.lost:
            self._raise_mark()
        return Batch(events, size, self._mark.token, closed=False)

    @property
    def _over(self) -> bool:
        """Whether the stream has ended or failed, provided that nothing is left to read."""
        if self._error is not None:
            return True
        view = self.view
        return (view.error is not None or view.ended) and not self.lost

    def _fill(self) -> bool:
        """Return whether there is an event to read; make the stream release more if necessary."""
        if self._taken:
            return True
        if self._error is not None:
            return False
        log = self.view.log
        while log.start <= self.number:
            if self.number == log.end and not self.view.release():
                resume, view = self._resume, self.view
                if resume is not None and (view.ended or resume.waits(view.low_watermark)):
                    self._drop_seen(resume, [], all_arrived=True)
                return bool(self._taken)
            if self._after is None and self._resume is None:
                return True
            self._skip(log)
            if self._taken:
                return True
            if self._error is not None:
                return False
        return False

    def _skip(self, log: EventLog) -> None:
        """Skip the events that the client must not receive."""
        if self._after is not None:
            self.number = max(self.number, log.number_beyond(self._after))
            if self.number == log.end:
                return
            self._after = None
        if self._resume is None:
            return
        for key in self._stream.skipped_invalidates:
            self._resume.skipped_invalidates(key)
        events = self._resume.concerned(log.rest_of_block(self.number))
        self._drop_seen(self._resume, events)
        self.number += len(events)

    def _drop_seen(
        self, resume: ResumePoint, events: list[bytes], *, all_arrived: bool = False
    ) -> None:
        try:
            self._taken = resume.drop_seen(events, all_arrived=all_arrived)
        except CommandError as error:
            # No event beyond a resume point that was not found is ever returned.
            self._error = error
        if resume.passed:
            self._rewritten, self._past_rewritten = resume.rewritten, resume.past_rewritten
            self._resume = None

    def _read(self, wanted: int | None, space: int, *, first: bool) -> tuple[list[bytes], int]:
        if self._taken:
            part, size = cut(self._taken, wanted, space, first=first)
            self._taken = self._taken[len(part) :]
        else:
            part, size = self.view.log.read(self.number, wanted, space, first=first)
            self.number += len(part)
        return part, size

    def _hold_equals(self) -> None:
        """Hold the events with the last event's key: no stream can resume between equal tokens."""
        if not self._taken and self._after is None:
            self._taken = self.view.log.events_with_key(self.number, self._mark.key)
            self.number += len(self._taken)

    def _raise_mark(self) -> None:
        """Advance to the view's high water mark, after all ready events have been returned."""
        mark = self.view.high_water_mark
        if mark is not None and mark.key > max(self._mark.key, self._point.floor):
            self._mark = mark
            if self._resume is not None and self._resume.found:
                self._resume = None  # the mark is beyond it, and so is every event to come

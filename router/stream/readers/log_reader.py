"""Log readers: one client's reading of a merged stream."""

from typing import Final, NamedTuple

from router.stream.merge.event_log import ELEMENT_OVERHEAD, cut
from router.stream.merge.shard_membership import ShardSpan
from router.stream.readers.resume_point import ResumePoint, StartingPoint
from router.stream.readers.views import PartialView, View
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

    On each view it first skips the events that it does not need. Those that follow it compares with
    its resume point, until that has been passed; then it returns them. It fails, and returns none,
    if the resume point's own event is missing.
    """

    def __init__(self, view: View, point: StartingPoint) -> None:
        """Start at ``point``; ``view`` must cover its ``after``."""
        self._point = point
        self._mark = point.high_water_mark
        self._resume: ResumePoint | None = None
        """The resume point, also once it has been passed: it knows the rewritten tokens."""
        self._error: CommandError | None = None
        """Why it has failed."""
        self._taken: list[bytes] = []
        """Events that it has read from the log, but not returned yet: those that share the last
        one's key, and those of the block in which the resume point was passed."""
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
        if not (self._skipping and view.ended):
            return False
        # From the end's own time on, a separate stream would end at the same event.
        return self._after[:TIME_DIGITS] > view.low_watermark[:TIME_DIGITS]

    @property
    def at_start(self) -> bool:
        """Whether the client has received no token beyond its starting point."""
        return self._pending is not None or self._mark == self._point.high_water_mark

    @property
    def _pending(self) -> ResumePoint | None:
        """The resume point, if it has still to be passed."""
        return None if self._resume is None or self._resume.passed else self._resume

    @property
    def needs(self) -> bytes:
        """The sort key beyond which the log reader needs all events of its next stream."""
        if self.at_start:
            return self._point.after
        if self._resume is not None and self._mark.key in self._resume.rewritten:
            return self._resume.past_rewritten
        return self._mark.key

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
        else:
            rewritten = frozenset[bytes]() if self._resume is None else self._resume.rewritten
            kept = rewritten if self._mark.key in rewritten else {self._mark.key}
            self._taken = [event for event in self._taken if event_key(event) in kept]
        self._error = None
        self._skipping = True
        """Whether no event beyond ``_after`` has come yet."""
        self.view = view
        """What it reads."""
        self._stream = view.stream if isinstance(view, PartialView) else view
        self._after = self.needs
        """The sort key up to which it skips events."""
        self.number = view.log.number_beyond(self._after)
        """The number of the next event that it reads from the view's log."""

    def catch_up(self) -> bool:
        """Advance the high water mark if all that is ready has been returned; return if it has."""
        if self._pending is not None or self._advance() or self._over or self.lost:
            return False
        self._raise_mark()
        return True

    # Reading.

    def prepare(self) -> bool:
        """Make the stream release events if none is left to read.

        Return whether ``take`` has a result at once: events, the end, or an error.
        """
        return self._advance() or self._over

    def first_batch(self) -> Batch:
        """Return an opening's batch: it has no events, and the starting point's token.

        Raises CommandError as ``take`` does, if a cursor could not be opened.
        """
        error = None if self._advance() else self._error or self.view.error
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
        while size < enough and (max_events is None or len(events) < max_events):
            if not self._advance():
                break
            wanted = None if max_events is None else max_events - len(events)
            space = max_bytes - size - ELEMENT_OVERHEAD * len(events)
            part, part_size = self._read(wanted, space, first=not events)
            if not part:
                break
            last = part[-1]
            events.extend(part)
            size += part_size
        more = self._advance()
        if last is not None:
            self._mark = KeyedToken.of(token_of(last))
            if more and not self._taken:  # no stream can resume between equal tokens
                self._taken = self.view.log.events_with_key(self.number, self._mark.key)
                self.number += len(self._taken)
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

    def _advance(self) -> bool:
        """Go on to the next event to return, and return whether there is one.

        The stream releases more events if the log has none left.
        """
        log = self.view.log
        while not self._taken and self._error is None and self.number >= log.start:
            resume = self._pending
            if self.number == log.end and not self.view.release():
                view = self.view
                if resume is not None and (view.ended or resume.waits(view.low_watermark)):
                    self._compare(resume, [], all_arrived=True)
                break
            if self._skipping:
                self.number = max(self.number, log.number_beyond(self._after))
                self._skipping = self.number == log.end
            elif resume is None:
                return True
            else:
                for key in self._stream.skipped_invalidates:
                    resume.skipped_invalidates(key)
                events = resume.concerned(log.rest_of_block(self.number))
                self._compare(resume, events)
                self.number += len(events)
        return bool(self._taken)

    def _compare(
        self, resume: ResumePoint, events: list[bytes], *, all_arrived: bool = False
    ) -> None:
        """Compare events with the resume point's token, and take those beyond it."""
        try:
            self._taken = resume.drop_seen(events, all_arrived=all_arrived)
        except CommandError as error:
            # No event beyond a resume point that was not found is ever returned.
            self._error = error

    def _read(self, wanted: int | None, space: int, *, first: bool) -> tuple[list[bytes], int]:
        if self._taken:
            part, size = cut(self._taken[:wanted], space, first=first)
            self._taken = self._taken[len(part) :]
        else:
            part, size = self.view.log.read(self.number, wanted, space, first=first)
            self.number += len(part)
        return part, size

    def _raise_mark(self) -> None:
        """Advance to the view's high water mark, after all ready events have been returned."""
        mark = self.view.high_water_mark
        if mark is not None and mark.key > max(self._mark.key, self._point.floor):
            self._mark = mark
            if (resume := self._pending) is not None and resume.found:
                resume.passed = True  # the mark is beyond it, and so is every event to come

"""Log readers: one client's reading of a merged stream."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from bson.timestamp import Timestamp

from router.bson_text import render
from router.request.event_conditions import leaves_alone
from router.request.stream_request import AfterToken, StreamRequest
from router.stream.event_log import ELEMENT_OVERHEAD, EventLog, cut
from router.stream.membership import ShardSpan
from router.stream.merged_stream import MergedStream
from router.stream.views import View
from shard_client.bson.keystring import encode_integer
from shard_client.bson.resume_token import (
    AFTER_ANY_DIGIT,
    AFTER_VERSION,
    TIME_DIGITS,
    ResumeToken,
    as_version,
    first_key,
    version_of,
)
from shard_client.bson.values import DOCUMENT
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, ProtocolError
from shard_client.remote_cursor.cursor_reply import Watermark, event_key, token_of
from shard_client.wire.bson_slices import document_of, find, string_value
from shard_client.wire.documents import decode


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A client's first high water mark, and the start of the merged events that it receives.

    No watermark up to ``floor`` replaces the ``high_water_mark``. Events up to and including the
    sort key ``after`` are left out. ``resume`` is the token of an event that must follow; events up
    to and including that event are left out too. ``names_operations`` is whether the merged events
    have the operationType that the shards gave them.
    """

    high_water_mark: Watermark
    floor: bytes
    after: bytes
    resume: ResumeToken | None = None
    names_operations: bool = True

    def resume_point(self) -> "ResumePoint | None":
        """Return what drops the events up to ``resume``, if there is one."""
        if self.resume is None:
            return None
        return ResumePoint(self.resume, names_operations=self.names_operations)


def starting_point(
    request: StreamRequest, start_at: Timestamp, token_version: int
) -> StartingPoint:
    """Return the starting point of ``request``, which every shard reads from ``start_at`` on.

    ``token_version`` is the version of the shards' tokens.
    """
    version = 2 if request.splits_large_events else token_version
    if isinstance(request.start, AfterToken):
        token = request.start.token
        if token.is_high_water_mark and token.version == 1 and request.splits_large_events:
            # mongos re-creates the mark in the version of fragments' tokens, except version 0.
            token = ResumeToken.high_water_mark(token.cluster_time, version)
    else:
        token = ResumeToken.high_water_mark(start_at, version)
    floor = token.data
    if token.version != version and not token.is_high_water_mark:
        # Keys of different versions at one cluster time are not comparable.
        floor = token.data[:TIME_DIGITS] + AFTER_ANY_DIGIT
    resume = None if token.is_high_water_mark else token
    begins = Watermark(token.data, token.raw)
    named = all(leaves_alone(stage, _OPERATION) for stage in request.stages)
    return StartingPoint(begins, floor, first_key(start_at), resume, named)


_END: Final = b"04"
_OPERATION: Final = frozenset({"operationType"})
_EVENT: Final = b"2C0100"
"""The token type of events, in a sort key."""


class ResumePoint:
    """Drops a merged stream's events up to and including the token's event, which must occur.

    Every shard starts at the token's cluster time, so only events of that time are compared with
    the token. The event is ``found`` once it has arrived. The point is ``passed`` once an event
    beyond the token has arrived; no later events are compared.

    Versions of tokens order the events of several shards at one cluster time and txnOpIndex
    differently. If the stream's version is not the token's, these events wait for each other; then
    they get tokens of the token's version, and its order, as they do through mongos. Their sort
    keys are ``rewritten``, and the key ``beside`` lies between theirs and those of all later events
    of the stream. Without ``names_operations`` some of them have no known place.
    """

    def __init__(self, token: ResumeToken, *, names_operations: bool = True) -> None:
        self._token = token
        self._names_operations = names_operations
        self._index = encode_integer(token.txn_op_index).hex().upper().encode("ascii")
        self._waiting: list[bytes] = []
        self.beside = b""
        self.rewritten: frozenset[bytes] = frozenset()
        self._of_event = None if token.fragment_num is None else token.whole_key[: -len(_END)]
        """What the sort keys of the event and of all its fragments begin with."""
        self.found = False
        self.passed = False

    def skipped_invalidates(self, key: bytes) -> None:
        """Record a swallowed invalidate, which may be the token's own event."""
        self.found = self.found or self._order(key) == 0

    def concerned(self, events: list[bytes]) -> list[bytes]:
        """Return the events to compare: those up to the first key of a later time, inclusive."""
        later = self._token.data[:TIME_DIGITS] + AFTER_ANY_DIGIT
        end = bisect_left(events, later, key=event_key)
        if end < len(events):
            end = bisect_right(events, event_key(events[end]), lo=end, key=event_key)
        return events[:end]

    def waits(self, low_watermark: bytes | None) -> bool:
        """Return whether events wait although no more events of their cluster time will come."""
        same_time = self._token.data[:TIME_DIGITS]
        return bool(self._waiting) and (low_watermark or b"")[:TIME_DIGITS] > same_time

    def drop_seen(self, events: list[bytes], *, all_arrived: bool = False) -> list[bytes]:
        """Return the events beyond the token; ``events`` are merged and in order.

        ``all_arrived`` is whether no more events of the token's cluster time will follow.

        Raises CommandError 280 if an event beyond the token arrives before the token's own event,
        or if the token's event is split into so few fragments that the token's is not among them.
        """
        same_time = self._token.data[:TIME_DIGITS]
        end = bisect_left(events, same_time + AFTER_ANY_DIGIT, key=event_key)
        beyond: list[bytes] = []
        for event in events[:end]:
            key = event_key(event)
            if version_of(key) not in (None, self._token.version):
                place = key[AFTER_VERSION + len(_EVENT) :]
                if place.startswith(self._index):
                    self._waiting.append(event)
                    self.beside = key[: -len(place)] + self._index + AFTER_ANY_DIGIT
                elif place > self._index:
                    beyond.append(event)
                continue
            order = self._order(key)
            self.found = self.found or order == 0
            if order > 0:
                beyond.append(event)
            elif order < 0 and self._of_event is not None:
                self._check_split(event, self._of_event)
        beyond += events[end:]
        if self._waiting and (beyond or all_arrived):
            beyond = self._rewrite() + beyond
        if beyond:
            if not self.found:
                raise _fatal(
                    "cannot resume stream; the resume token was not found. "
                    + _text(token_of(beyond[0]))
                )
            self.passed = True
        return beyond

    def _check_split(self, event: bytes, of_event: bytes) -> None:
        """Check that an event before the token is not the last of the token's event."""
        key = event_key(event)
        if key == of_event + _END:
            raise _fatal(
                "Attempted to resume from a split event fragment, but the event in the resumed "
                "stream was not large enough to be split"
            )
        if key.startswith(of_event) and len(set(fragment_of(event))) == 1:
            raise _fatal(
                "Attempted to resume from a split event, but the resumed stream produced a "
                "different split. Ensure that the pipeline used to resume is the same as the "
                "original"
            )

    def _rewrite(self) -> list[bytes]:
        """Return the waiting events beyond the token, in the order of the token's version.

        They keep their own tokens and order if one of them has none in that version: a fragment,
        or the end of a collection.
        """
        waiting, self._waiting = self._waiting, []
        beyond: list[bytes] = []
        rewritten: list[bytes] = []
        for event in waiting:
            token = ResumeToken.parse(decode(token_of(event)))
            other = self._in_own_version(event, token)
            order = self._order(token.data if other is None else other.data)
            self.found = self.found or order == 0
            if order > 0:
                beyond.append(event)
                if other is not None:
                    rewritten.append(_with_token(event, other.raw))
        if len(rewritten) < len(beyond):
            return beyond
        rewritten.sort(key=event_key)
        self.rewritten = frozenset(map(event_key, rewritten))
        return rewritten

    def _in_own_version(self, event: bytes, token: ResumeToken) -> ResumeToken | None:
        own = self._token
        if self._names_operations or own.version <= token.version or own.uuid != token.uuid:
            kind = find(event, b"operationType")
            return token.in_version(own.version, string_value(event, kind) if kind else b"")
        if self._order(token.data) != 0:
            raise _fatal(
                "cannot resume stream; whether an event at the resume token's cluster time follows "
                "it is unknown, since a stage changes or removes operationType. Resume without "
                "that stage, or with $changeStreamSplitLargeEvent, as the token's own stream. "
                + _text(token_of(event))
            )
        return None

    def _order(self, key: bytes) -> int:
        """Compare a key with the token's: negative before it, 0 equal, positive beyond."""
        own = self._token.data
        version = version_of(key)
        if version is not None and version != self._token.version:
            oldest = min(version, self._token.version)
            key, own = as_version(key, oldest), as_version(own, oldest)
        return (key > own) - (key < own)


def fragment_of(event: bytes) -> tuple[int, int]:
    """Return the number of a fragment, from 1, and that of all of them; (1, 1) of a whole event."""
    split = find(event, b"splitEvent")
    if split is None or split.type != DOCUMENT:
        return 1, 1
    fields = decode(event[split.start : split.end])
    return int(fields.get("fragment", 1)), int(fields.get("of", 1))


def _with_token(event: bytes, token: bytes) -> bytes:
    """Return an event with another raw token; raises ProtocolError if it has none."""
    old = find(event, b"_id")
    if old is None:
        raise ProtocolError("an event has no _id")
    return document_of(event[4 : old.start] + token + event[old.end : -1])


def _text(token: bytes) -> str:
    try:
        return render(decode(token))
    except ProtocolError as error:
        return str(error)


def _fatal(message: str) -> CommandError:
    return CommandError(ErrorCode.ChangeStreamFatalError, message)


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

    Many log readers share one stream; each has its own high water mark. The log has dropped the
    next events of a ``lost`` log reader: attach it to another stream that covers its ``needs``.
    """

    __slots__ = (
        "_after", "_beside", "_error", "_mark", "_point", "_resume", "_rewritten", "_taken",
        "number", "view",
    )  # fmt: skip

    def __init__(self, view: View, point: StartingPoint) -> None:
        """Start at ``point``; ``view`` must cover its ``after``."""
        self._point = point
        self._mark = point.high_water_mark
        self._error: CommandError | None = None
        self._resume: ResumePoint | None = None
        self._rewritten: frozenset[bytes] = frozenset()
        self._beside = b""
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
        return self._after[:TIME_DIGITS] > (view.low_watermark or b"")[:TIME_DIGITS]

    @property
    def at_start(self) -> bool:
        """Whether the client has received no token beyond its starting point."""
        return self._resume is not None or self._mark is self._point.high_water_mark

    @property
    def needs(self) -> bytes:
        """The sort key beyond which the log reader needs all events of its next stream."""
        if self.at_start:
            return self._point.after
        return self._beside if self._mark.key in self._rewritten else self._mark.key

    @property
    def needs_spans(self) -> frozenset[ShardSpan]:
        """The spans, removed shards included, that the next stream must cover."""
        return self.view.stream.spans_beyond(self.needs)

    @property
    def reached(self) -> bytes:
        """The sort key beyond which it has read nothing, if it has read all that is ready."""
        return max(self.needs, self.view.low_watermark or b"")

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
        self._read_from(view, self.needs)

    def switch_to(self, stream: MergedStream, opened: Callable[[bytes], View]) -> bool:
        """Move to ``stream`` if it covers all events that are not returned yet.

        ``opened`` returns the view of it to read, given the sort key beyond which events are
        needed. Return whether the log reader moved.
        """
        own = self.view
        if self._resume is not None or self._fill() or self._over or self.lost:
            return False
        reached = self.reached
        if not stream.covers(reached, own.stream.spans_beyond(reached)):
            return False
        self._read_from(opened(reached), reached)
        return True

    def _read_from(self, view: View, after: bytes) -> None:
        self.view = view
        """What it reads."""
        self._after: bytes | None = after
        self.number = view.log.number_beyond(after)
        """The number of the next event that it reads from the view's log."""

    # Reading.

    def is_ready(self) -> bool:
        """Return whether ``take`` has a result at once: events, the end, or an error.

        Makes the stream release events if none is left to read.
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
            self._mark = Watermark.of(token_of(last))
            if more:
                self._hold_equals()
        elif not more and self._over:
            error = self._error or self.view.error
            if error is None:
                if max_events != 0:
                    self._raise_mark()
                    return Batch([], 0, self._mark.token, closed=True)
            elif max_events != 0 or self.view.stream.refused:
                raise error.with_change_stream_label()
        if not more and max_events != 0 and not self.lost:
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
            if self.number == log.end and (self.view.is_part or not self.view.stream.release()):
                # A part is filled by the fan-out.
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
        for key in self.view.stream.skipped_invalidates:
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
            self._rewritten, self._beside = resume.rewritten, resume.beside
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

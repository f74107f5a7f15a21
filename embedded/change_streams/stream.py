"""One change stream: a position in the oplog, and the events after it. It never waits."""

from collections import deque
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from embedded.change_streams.events import ChangeEvent, EventMaker, encode_event, invalidate_after
from embedded.change_streams.image_lookup import ImageLookup
from embedded.change_streams.logged_operations import operations
from embedded.change_streams.oplog_filter import OplogFilter
from embedded.change_streams.request import StreamRequest
from embedded.change_streams.splitting import MAX_INTERNAL_SIZE, Splitter
from embedded.change_streams.user_stages import UserStages
from embedded.errors import CommandError, ErrorCode
from embedded.logical_clock import as_ordinal, as_timestamp
from embedded.member import Member
from embedded.storage.shell_text import bson_text, document_text
from shard_client.bson.resume_token import ResumeToken

_INVALIDATING: Final = {
    "collection": frozenset({"drop", "rename", "dropDatabase"}),
    "database": frozenset({"dropDatabase"}),
    "cluster": frozenset[str](),
}


class ResumePoint:
    """A client's token among the events: the client has those up to it.

    The token's own event must be among them, unless it is a high water mark.
    """

    def __init__(self, start: ResumeToken) -> None:
        self._key = start.data
        self._whole_key = start.whole_key
        self._after_invalidate = start.from_invalidate
        self._found = start.is_high_water_mark
        self._passed = False

    def has_all_of(self, event: ChangeEvent) -> bool:
        """Return whether the client has all of an event, which then needs no stages."""
        return not self._passed and event.token.data < self._whole_key

    def is_of(self, event: ChangeEvent) -> bool:
        """Return whether the token is the event's."""
        is_of = event.token.data == self._key
        self._found = self._found or is_of
        return is_of

    def skips_invalidate(self) -> bool:
        """Return whether the client starts after an invalidate: for its first event alone."""
        skips, self._after_invalidate = self._after_invalidate, False
        return skips

    def has(self, event: ChangeEvent) -> bool:
        """Return whether the client has an event or a fragment, after the stages.

        Raises:
            CommandError: 280 if this is a later event and the token's own has not appeared.
        """
        if self._passed:
            return False
        if self.is_of(event) or event.token.data < self._key:
            return True
        if not self._found:
            raise CommandError(
                ErrorCode.ChangeStreamFatalError,
                "cannot resume stream; the resume token was not found. "
                + document_text(event.document.get("_id", {})),
            )
        self._passed = True
        return False


class ChangeStream:
    """The events of one request, in order (docs/protocol.md#cursor-replies,
    docs/protocol.md#opening and docs/protocol.md#events).

    Args:
        member: the member to read from.
        request: the parsed request.
        stages: the client's stages after ``$changeStream``.
        start: a high water mark, or the token of the last event that the client has.
        version: the version of new tokens.

    ``resume_token`` is the postBatchResumeToken of a batch that ends here.
    """

    def __init__(
        self,
        member: Member,
        request: StreamRequest,
        stages: UserStages,
        start: ResumeToken,
        version: int,
    ) -> None:
        self._member = member
        self._stages = stages
        self._version = version
        self._filter = OplogFilter(request)
        self._maker = EventMaker(request, start, version)
        self._images = ImageLookup(member, request)
        self._splitter = Splitter(start) if stages.splits else None
        self._invalidating = _INVALIDATING[_kind(request)]
        self._resume_point = ResumePoint(start)
        self._started = False
        self._start_ts = start.cluster_time
        self._scanned = as_timestamp(max(0, as_ordinal(start.cluster_time) - 1))
        self._logged: deque[ChangeEvent] = deque()
        self._ready: deque[ChangeEvent] = deque()
        self._end: dict[str, Any] | None = None
        self._promised = as_ordinal(start.cluster_time)
        self.resume_token: dict[str, Any] = start.document

    @property
    def invalidated(self) -> bool:
        """Whether an invalidate ended the stream and all events before it have been returned."""
        return self._end is not None and not self._ready

    @property
    def end_token(self) -> dict[str, Any]:
        """The token of the invalidate that ended the stream, even if a filter dropped it."""
        assert self._end is not None
        return self._end

    @property
    def scanned(self) -> Timestamp:
        """The ``ts`` up to which the oplog has been read."""
        return self._scanned

    def next_event(self, max_entries: int) -> RawBSONDocument | None:
        """Return the next event, or None if ``max_entries`` entries of the oplog hold no event.

        After None, ``at_end`` and ``invalidated`` give the reason.

        Raises:
            CommandError: the stream cannot continue.
        """
        event = self._next(max_entries)
        if event is None:
            if self._end is None and self.at_end:
                self._promise_scanned()
            return None
        self._check_id(event)
        raw = encode_event(event.document)
        if len(raw) > MAX_INTERNAL_SIZE:
            raise _too_large(len(raw), event)
        self.resume_token = event.token.document
        self._promised = max(self._promised, as_ordinal(event.operation.ts))
        return RawBSONDocument(raw)

    @property
    def at_end(self) -> bool:
        """Whether the whole oplog has been read and all its events returned."""
        last = self._member.oplog.last_ts
        return not self._logged and not self._ready and (last is None or last <= self._scanned)

    def _promise_scanned(self) -> None:
        if as_ordinal(self._scanned) > self._promised:
            self._promised = as_ordinal(self._scanned)
            mark = ResumeToken.high_water_mark(self._scanned, self._version)
            self.resume_token = mark.document

    def _next(self, max_entries: int) -> ChangeEvent | None:
        while not self._ready and self._end is None:
            if self._logged:
                self._pass_on(self._logged.popleft())
            elif max_entries > 0:
                max_entries = self._scan(max_entries)
            else:
                return None
        return self._ready.popleft() if self._ready else None

    def _scan(self, max_entries: int) -> int:
        """Read the oplog up to the next events; return how many more entries may be read.

        At the end of the oplog that is none.
        """
        self._check_history()
        remaining = max_entries
        for entry in self._member.oplog.since(self._scanned):
            self._scanned = entry["ts"]
            remaining -= 1
            for operation in operations(self._member.oplog, entry):
                if self._filter.accepts(operation.entry):
                    self._logged.append(self._maker.event(operation))
            if self._logged or not remaining:
                return remaining
        return 0

    def _check_history(self) -> None:
        """Raise CommandError if the oplog no longer reaches back to the stream's position."""
        oplog = self._member.oplog
        truncated = oplog.truncated_through
        if not self._started:
            self._started = True
            first = oplog.first_ts
            if truncated is not None and (first is None or self._start_ts < first):
                raise CommandError(
                    ErrorCode.ChangeStreamHistoryLost,
                    "Resume of change stream was not possible, as the resume point may no longer "
                    "be in the oplog.",
                )
        elif truncated is not None and truncated > self._scanned:
            raise CommandError(
                ErrorCode.CappedPositionLost,
                "CollectionScan died due to position in capped collection being deleted. Last "
                f"seen record id: RecordId({as_ordinal(self._scanned)})",
            )

    def _pass_on(self, event: ChangeEvent) -> None:
        """Apply filters, lookups and stages to one event; what passes is ready."""
        for following in self._with_invalidate(event):
            if not self._resume_point.has_all_of(following):
                self._finish(following)

    def _with_invalidate(self, event: ChangeEvent) -> list[ChangeEvent]:
        """Return the event, followed by an invalidate if the event ends the stream."""
        is_skipped = self._resume_point.skips_invalidate()
        if event.operation_type not in self._invalidating:
            return [event]
        invalidate = invalidate_after(event)
        if is_skipped:
            return [] if self._resume_point.is_of(invalidate) else [event]
        self._end = invalidate.token.document
        return [event, invalidate]

    def _finish(self, event: ChangeEvent) -> None:
        if not self._stages.wants(event.document):
            return
        if self._images.needed:
            self._images.fill(event)
        changed = self._stages.apply(event.document)
        if changed is None:
            return
        event.document = changed
        parts = [event] if self._splitter is None else self._splitter.split(event)
        self._ready.extend(part for part in parts if not self._resume_point.has(part))

    def _check_id(self, event: ChangeEvent) -> None:
        identifier = event.document.get("_id")
        expected = event.token.document
        if identifier == expected:
            return
        shown = {"_id": identifier} if "_id" in event.document else {}
        raise CommandError(
            ErrorCode.ChangeStreamFatalError,
            "Encountered an event whose _id field, which contains the resume token, was modified "
            "by the pipeline. Modifying the _id field of an event makes it impossible to resume "
            "the stream from that point. Only transformations that retain the unmodified _id "
            f"field are allowed. Expected: {bson_text({'_id': expected})} but found: "
            f"{bson_text(shown)}",
        )


def _kind(request: StreamRequest) -> str:
    if request.cluster:
        return "cluster"
    return "database" if request.collection is None else "collection"


def _too_large(size: int, event: ChangeEvent) -> CommandError:
    [(name, value)] = list(event.document.items())[:1]
    return CommandError(
        ErrorCode.BSONObjectTooLarge,
        f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and "
        f"{MAX_INTERNAL_SIZE}(16MB) First element: {name}: {bson_text(value)}",
    )

"""Where a client's events begin: its first high water mark, and what drops the events up to a token
(docs/design.md#opening-and-resuming)."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final

from bson.timestamp import Timestamp

from router.bson_text import render
from router.request.event_conditions import leaves_alone
from router.request.start_options import AfterToken
from router.request.stream_request import StreamRequest
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
from shard_client.errors import CommandError, ErrorCode, ProtocolError
from shard_client.remote_cursor.cursor_reply import KeyedToken, event_key, token_of
from shard_client.wire.bson_slices import document_of, find, string_value
from shard_client.wire.documents import decode

_END: Final = b"04"
_OPERATION: Final = frozenset({"operationType"})
_EVENT: Final = b"2C0100"
"""The token type of events, in a sort key."""


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A client's first high water mark, and the start of the merged events that it receives.

    No watermark up to ``floor`` replaces the ``high_water_mark``. Events up to and including the
    sort key ``after`` are left out. ``resume`` is the token of an event that must follow; events up
    to and including that event are left out too. ``names_operations`` is whether the merged events
    have the operationType that the shards gave them.
    """

    high_water_mark: KeyedToken
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
    begins = KeyedToken(token.data, token.raw)
    named = all(leaves_alone(stage, _OPERATION) for stage in request.stages)
    return StartingPoint(begins, floor, first_key(start_at), resume, named)


class ResumePoint:
    """Drops a merged stream's events up to and including the token's event, which must occur.

    Every shard starts at the token's cluster time, so only events of that time are compared with
    the token. The event is ``found`` once it has arrived. The point is ``passed`` once an event
    beyond the token has arrived; no later events are compared.

    Versions of tokens order the events of several shards at one cluster time and txnOpIndex
    differently. If the stream's version is not the token's, these events wait for each other; then
    they get tokens of the token's version, and its order, as they do through mongos. Their sort
    keys are ``rewritten``, and the key ``past_rewritten`` lies between theirs and those of all
    later events of the stream. Without ``names_operations`` some of them have no known place.
    """

    def __init__(self, token: ResumeToken, *, names_operations: bool = True) -> None:
        self._token = token
        self._names_operations = names_operations
        self._index = encode_integer(token.txn_op_index).hex().upper().encode("ascii")
        self._waiting: list[bytes] = []
        self.past_rewritten = b""
        self.rewritten: frozenset[bytes] = frozenset()
        self._of_event = None if token.fragment_num is None else token.whole_key[: -len(_END)]
        """What the sort keys of the event and of all its fragments begin with."""
        self.found = False
        self.passed = False

    def skipped_invalidates(self, key: bytes) -> None:
        """Record a skipped invalidate, which may be the token's own event."""
        self.found = self.found or self._order(key) == 0

    def concerned(self, events: list[bytes]) -> list[bytes]:
        """Return the events to compare: those up to the first key of a later time, inclusive."""
        later = self._token.data[:TIME_DIGITS] + AFTER_ANY_DIGIT
        end = bisect_left(events, later, key=event_key)
        if end < len(events):
            end = bisect_right(events, event_key(events[end]), lo=end, key=event_key)
        return events[:end]

    def waits(self, low_watermark: bytes) -> bool:
        """Return whether events wait although no more events of their cluster time will come."""
        same_time = self._token.data[:TIME_DIGITS]
        return bool(self._waiting) and low_watermark[:TIME_DIGITS] > same_time

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
                    self.past_rewritten = key[: -len(place)] + self._index + AFTER_ANY_DIGIT
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
        if key.startswith(of_event) and len(set(fragment_numbers(event))) == 1:
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
        sought = self._token
        if self._names_operations or sought.version <= token.version or sought.uuid != token.uuid:
            kind = find(event, b"operationType")
            return token.in_version(sought.version, string_value(event, kind) if kind else b"")
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
        sought = self._token.data
        version = version_of(key)
        if version is not None and version != self._token.version:
            oldest = min(version, self._token.version)
            key, sought = as_version(key, oldest), as_version(sought, oldest)
        return (key > sought) - (key < sought)


def fragment_numbers(event: bytes) -> tuple[int, int]:
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

"""Search for the event after which a stream resumes (docs/design.md#opening-and-resuming)."""

from bisect import bisect_left, bisect_right
from typing import Final

from router.bson_text import render
from shard_client.bson.resume_token import (
    AFTER_ANY_DIGIT,
    TIME_DIGITS,
    ResumeToken,
    as_version,
    version_of,
)
from shard_client.bson.values import DOCUMENT
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, ProtocolError
from shard_client.remote_cursor.cursor_reply import event_key, token_of
from shard_client.wire.bson_slices import find
from shard_client.wire.documents import decode

_END: Final = b"04"


class ResumePoint:
    """Drops a merged stream's events up to and including the token's event, which must occur.

    Every shard starts at the token's cluster time, so only events of that time are compared with
    the token. The event is ``found`` once it has arrived. The point is ``passed`` once an event
    beyond the token has arrived; no later events are compared.
    """

    def __init__(self, token: ResumeToken) -> None:
        self._token = token
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

    def drop_seen(self, events: list[bytes]) -> list[bytes]:
        """Return the events beyond the token; ``events`` are merged and in order.

        Raises CommandError 280 if an event beyond the token arrives before the token's own event,
        or if the token's event is split into so few fragments that the token's is not among them.
        """
        same_time = self._token.data[:TIME_DIGITS]
        end = bisect_left(events, same_time + AFTER_ANY_DIGIT, key=event_key)
        beyond: list[bytes] = []
        for event in events[:end]:
            order = self._order(event_key(event))
            self.found = self.found or order == 0
            if order > 0:
                beyond.append(event)
            elif order < 0 and self._of_event is not None:
                self._check_split(event, self._of_event)
        beyond += events[end:]
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

    def _order(self, key: bytes) -> int:
        """Compare an event's key with the token's: negative before it, 0 equal, positive beyond."""
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


def _text(token: bytes) -> str:
    try:
        return render(decode(token))
    except ProtocolError as error:
        return str(error)


def _fatal(message: str) -> CommandError:
    return CommandError(ErrorCode.ChangeStreamFatalError, message)

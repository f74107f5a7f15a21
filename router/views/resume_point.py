"""Search for the event after which a stream resumes (docs/design.md#opening-and-resuming)."""

from bisect import bisect_left, bisect_right

from router.bson_text import render
from router.tokens.resume_token import (
    AFTER_ANY_DIGIT,
    TIME_DIGITS,
    ResumeToken,
    as_version,
    event_key,
    token_of,
    version_of,
)
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, ProtocolError
from shard_client.wire.documents import decode


class ResumePoint:
    """Drops a merged stream's events up to and including the token's event, which must occur.

    Every shard starts at the token's cluster time, so only events of that time are compared with
    the token. The event is ``found`` once it has arrived. The point is ``passed`` once an event
    beyond the token has arrived; no later events are compared.
    """

    def __init__(self, token: ResumeToken) -> None:
        self._token = token
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

        Raises CommandError 280 if an event beyond the token arrives before the token's own event.
        """
        same_time = self._token.data[:TIME_DIGITS]
        end = bisect_left(events, same_time + AFTER_ANY_DIGIT, key=event_key)
        beyond: list[bytes] = []
        for event in events[:end]:
            order = self._order(event_key(event))
            self.found = self.found or order == 0
            if order > 0:
                beyond.append(event)
        beyond += events[end:]
        if beyond:
            if not self.found:
                raise CommandError(
                    ErrorCode.ChangeStreamFatalError,
                    "cannot resume stream; the resume token was not found. "
                    + _text(token_of(beyond[0])),
                )
            self.passed = True
        return beyond

    def _order(self, key: bytes) -> int:
        """Compare an event's key with the token's: negative before it, 0 equal, positive beyond."""
        own = self._token.data
        version = version_of(key)
        if version is not None and version != self._token.version:
            oldest = min(version, self._token.version)
            key, own = as_version(key, oldest), as_version(own, oldest)
        return (key > own) - (key < own)


def _text(token: bytes) -> str:
    try:
        return render(decode(token))
    except ProtocolError as error:
        return str(error)

"""Where a stream starts: the options of ``$changeStream`` for it (docs/protocol.md#opening)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.timestamp import Timestamp

from router.request.accepted import refusal
from shard_client.bson.resume_token import ResumeToken
from shard_client.bson.values import MalformedValueError
from shard_client.errors import CommandError, ErrorCode


@dataclass(frozen=True, slots=True)
class AfterToken:
    """Start after ``token``; ``start_after`` allows an invalidate's token."""

    token: ResumeToken
    start_after: bool


Start = Timestamp | AfterToken | None
"""A cluster time, inclusive, which may lie in the future; None is one tick after the cluster's
largest known cluster time."""

STARTS: Final = ("resumeAfter", "startAfter", "startAtOperationTime")


def parse_start(spec: Mapping[str, Any], collection: str | None, *, splits: bool) -> Start:
    """Return the start that the options of ``$changeStream`` name; raises CommandError.

    ``collection`` is the one that is watched; None for a database or the cluster. ``splits`` is
    whether the stream splits large events.
    """
    starts = [name for name in STARTS if spec.get(name) is not None]
    tokens = {name: _token(spec[name]) for name in starts if name != "startAtOperationTime"}
    if len(starts) > 1:
        raise refusal(f"more than one start: {', '.join(starts)}")
    if not starts:
        return None
    if not tokens:
        time: Timestamp = spec["startAtOperationTime"]
        return time
    [(name, token)] = tokens.items()
    if name == "resumeAfter" and token.from_invalidate:
        raise CommandError(
            ErrorCode.InvalidResumeToken,
            "Attempting to resume a change stream using 'resumeAfter' is not allowed from an "
            "invalidate notification",
        )
    if collection is not None and token.uuid is None and not token.is_high_water_mark:
        raise refusal("a token without the UUID of the one collection that is watched")
    if token.fragment_num is not None and not splits:
        raise CommandError(
            ErrorCode.ChangeStreamFatalError,
            "To resume from a split event, the $changeStream pipeline must include a "
            "$changeStreamSplitLargeEvent stage",
        ).with_change_stream_label()
    return AfterToken(token, name == "startAfter")


def _token(document: Mapping[str, Any]) -> ResumeToken:
    """Return a client's resume token; raises a server's CommandError if it is malformed."""
    try:
        return ResumeToken.parse(document)
    except MalformedValueError as error:
        raise CommandError(error.code, str(error)) from None

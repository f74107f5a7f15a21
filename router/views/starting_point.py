"""The starting point of a client's stream (docs/design.md#opening-and-resuming)."""

from dataclasses import dataclass

from bson.timestamp import Timestamp

from router.request.stream_request import AfterToken, StreamRequest
from shard_client.bson.resume_token import AFTER_ANY_DIGIT, TIME_DIGITS, ResumeToken, first_key
from shard_client.remote_cursor.cursor_reply import Watermark


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A client's first high water mark, and the start of the merged events that it receives.

    No watermark up to ``floor`` replaces the ``high_water_mark``. Events up to and including the
    sort key ``after`` are left out. ``resume`` is the token of an event that must follow; events up
    to and including that event are left out too.
    """

    high_water_mark: Watermark
    floor: bytes
    after: bytes
    resume: ResumeToken | None = None


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
    return StartingPoint(begins, floor, first_key(start_at), resume)

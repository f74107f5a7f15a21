"""Where one client's stream is read from, and the settings and comments that influence it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from router.change_stream.log_reader import LogReader
from router.change_stream.request import StreamRequest
from router.change_stream.resume_token import TIME_DIGITS, is_high_water_mark
from router.change_stream.views import View
from router.filters.stream_filter import StreamFilter
from router.streams.admission import NOBODY, Payer
from router.streams.sources import Source

AUTO, ALWAYS, NEVER = "auto", "always", "never"
MODES: Final = (AUTO, ALWAYS, NEVER)

_IN_COMMENT: Final = re.compile(r"\b(shareFilters|shareScopes)=(auto|always|never)\b")


@dataclass(slots=True)
class Placement:
    """The streams that can serve one client, and why others cannot.

    ``own`` is the client's own stream, ``source`` the one that it reads. ``whole`` is the stream of
    the same scope without a filter, from which the router can filter, or None for the ``reason``
    given; ``filter`` the client's filter, if the router can evaluate it. ``wider`` are streams of
    wider scopes, widest first; without any, ``scope_reason`` says why. Before ``beyond``, the sort
    key at which the last one ended, the client enters none. ``payer`` is the client. ``entered`` is
    the time, on the loop's clock, at which the client began to read ``source``.
    """

    own: Source
    source: Source
    payer: Payer = NOBODY
    entered: float = 0.0
    mode: str = NEVER
    reason: str = ""
    filter: StreamFilter | None = None
    whole: Source | None = None
    scope_mode: str = NEVER
    scope_reason: str = ""
    wider: Sequence[Source] = ()
    beyond: bytes = b""

    def may_narrow(self, log_reader: LogReader, after: bytes) -> bool:
        """Return whether a reader may continue on a part of a wider stream beyond a sort key.

        It may from the beginning of a cluster time on, or beyond a high water mark. Beyond an event
        it may not: that event, or one that a filter has left out, may be the cause of an invalidate
        that is still to come. Nor may it before the end of the wider stream that it has left.
        """
        stream = log_reader.stream
        if isinstance(stream, View) and stream.ending:
            return False
        if after < self.beyond:
            return False
        return len(after) == TIME_DIGITS or is_high_water_mark(after)


def mode_of(request: StreamRequest, name: str, default: str) -> str:
    """Return the mode that the stream's comment names for the parameter ``name``, or the default.

    A comment is a string like "reporting; shareFilters=never" or a document with such a field. None
    overrides ``never`` as the default, which the operator has set.
    """
    if default == NEVER:
        return NEVER
    comment = request.extras.get("comment")
    if isinstance(comment, str):
        found: dict[str, str] = dict(_IN_COMMENT.findall(comment))
        return found.get(name, default)
    if isinstance(comment, Mapping):
        named = comment.get(name)
        return named if named in MODES else default
    return default

"""Positions in a change stream, and how they are written into Spark's checkpoint.

A position is what a stream can be opened after: a resume token, a cluster time, or "now". Spark
calls a position an offset and keeps it as JSON. Tokens are written exactly as MongoDB shows them
(`{"_data": "82…"}`), so that one can be copied from a checkpoint into `watch(resume_after=…)`.

Token strings compare as the events are ordered: docs/protocol.md, section 3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bson import json_util
from bson.timestamp import Timestamp

# clusterTime, the version (a small positive int), the token type, txnOpIndex (an int of any
# length), fromInvalidate.
_TOKEN = re.compile(
    r"82([0-9A-F]{8})([0-9A-F]{8})2B[0-9A-F]{2}(29|2C0100)"
    r"(?:29|2B.{2}|2C.{4}|2D.{6}|2E.{8}|2F.{10})(6E|6F)"
)
_HIGH_WATER_MARK = "29"
_FROM_INVALIDATE = "6F"


class PositionError(ValueError):
    """A text or a document is not a position."""


@dataclass(frozen=True)
class Token:
    """A resume token: of an event, or a high water mark.

    `document` is the token as the server gave it, with `_typeBits` where it has them.
    Raises PositionError if it cannot be one (docs/protocol.md, section 3).
    """

    document: Mapping[str, Any]

    def __post_init__(self) -> None:
        data = self.document.get("_data")
        if not isinstance(data, str) or not _TOKEN.match(data.upper()):
            raise PositionError(f"not a resume token: {json_util.dumps(self.document)}")

    @cached_property
    def data(self) -> str:
        """The sort key: tokens of a stream compare by it."""
        return str(self.document["_data"]).upper()

    @cached_property
    def cluster_time(self) -> Timestamp:
        """The cluster time that the token begins with."""
        return Timestamp(int(self.data[2:10], 16), int(self.data[10:18], 16))

    @cached_property
    def is_high_water_mark(self) -> bool:
        """Whether it stands for a point in time and for no event."""
        match = _TOKEN.match(self.data)
        return match is not None and match[3] == _HIGH_WATER_MARK


@dataclass(frozen=True)
class AtTime:
    """The position just before the first event at `time` (a cluster time)."""

    time: Timestamp


@dataclass(frozen=True)
class FromNow:
    """The position of a stream opened without a start point.

    As an offset it names no fixed point, so nothing may be read from it: the batch that starts
    here is empty by definition and only pins the first token down.
    """


Position = Token | AtTime | FromNow


def is_invalidate(data: str) -> bool:
    """Whether a token's hex string is that of an invalidate (docs/protocol.md, section 3)."""
    match = _TOKEN.match(data)
    return match is not None and match[4] == _FROM_INVALIDATE


def to_offset(position: Position) -> dict[str, Any]:
    """The position as an offset of Spark: a dict that json.dumps accepts."""
    match position:
        case Token(document):
            plain: dict[str, Any] = json.loads(json_util.dumps(document))
            return plain
        case AtTime(time):
            return {"startAtOperationTime": {"$timestamp": {"t": time.time, "i": time.inc}}}
        case FromNow():
            return {"start": "now"}


def from_offset(offset: Mapping[str, Any]) -> Position:
    """The position that `to_offset` wrote. Raises PositionError for anything else."""
    if offset == {"start": "now"}:
        return FromNow()
    if "startAtOperationTime" in offset:
        time = _revive(offset).get("startAtOperationTime")
        if not isinstance(time, Timestamp):
            raise PositionError(f"not a cluster time: {json_util.dumps(offset)}")
        return AtTime(time)
    return Token(_revive(offset))


def time_of(position: Position) -> Timestamp | None:
    """The cluster time of a position, None for "now"."""
    match position:
        case Token():
            return position.cluster_time
        case AtTime(time):
            return time
        case FromNow():
            return None


def is_after(token: Token, position: Position) -> bool:
    """Whether the token lies beyond the position; nothing lies beyond "now"."""
    match position:
        case Token():
            return token.data > position.data
        case AtTime(time):
            return token.cluster_time >= time
        case FromNow():
            return False


def _revive(offset: Mapping[str, Any]) -> dict[str, Any]:
    """Extended JSON, already parsed as plain JSON, to BSON values."""
    revived: dict[str, Any] = json_util.loads(json.dumps(dict(offset)))
    return revived

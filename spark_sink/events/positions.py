"""Positions in a change stream, and how they are written into Spark's checkpoint.

A position is what a stream can be opened after: a resume token, a cluster time, or "now". Spark
calls a position an offset and keeps it as JSON. Tokens are written exactly as MongoDB shows them
(`{"_data": "82…"}`), so that one can be copied from a checkpoint into `watch(resume_after=…)`.

Token strings compare as the events are ordered: docs/protocol.md#resume-tokens.
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
# The last three of these in most tokens: of an event outside of transactions that is not an
# invalidate. They begin at AFTER_VERSION.
AFTER_VERSION = 22
_VERSION_1 = "2B02"
PLAIN_EVENT = "2C0100296E"
_HIGH_WATER_MARK = "29"
_FROM_INVALIDATE = "6F"
_OPERATION_DESCRIPTION = b"operationDescription\0".hex().upper()


class PositionError(ValueError):
    """A text or a document is not a position."""


@dataclass(frozen=True)
class Token:
    """A resume token: of an event, or a high water mark.

    `document` is the token as the server gave it, with `_typeBits` where it has them.
    Raises PositionError if it cannot be one (docs/protocol.md#resume-tokens).
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
        return time_in(self.data)

    @cached_property
    def is_high_water_mark(self) -> bool:
        """Whether it is the token of a cluster time and not of an event."""
        match = _TOKEN.match(self.data)
        return match is not None and match[3] == _HIGH_WATER_MARK

    @property
    def is_of_event_1(self) -> bool:
        """Whether it is the token of an event, in version 1 (docs/protocol.md#resume-tokens)."""
        return self.data.startswith(_VERSION_1, AFTER_VERSION - 4) and not self.is_high_water_mark


@dataclass(frozen=True)
class AtTime:
    """The position just before the first event at `time` (a cluster time)."""

    time: Timestamp


@dataclass(frozen=True)
class FromNow:
    """The position of a stream without a start option.

    As an offset it is not a fixed position, so nothing may be read from it: the batch that starts
    here is empty, and only fixes the first token.
    """


Position = Token | AtTime | FromNow


def is_invalidate(data: str) -> bool:
    """Whether a token's hex string is that of an invalidate (docs/protocol.md#resume-tokens)."""
    if data.startswith(PLAIN_EVENT, AFTER_VERSION):
        return False
    match = _TOKEN.match(data)
    return match is not None and match[4] == _FROM_INVALIDATE


def is_of_document(data: str) -> bool:
    """Whether a token's hex string is that of a document's change.

    All others are those of collections and databases, which several shards may report under one
    token (docs/protocol.md#resume-tokens).
    """
    if data.startswith(PLAIN_EVENT, AFTER_VERSION):
        identifier = data[AFTER_VERSION + len(PLAIN_EVENT) :]
    else:
        match = _TOKEN.match(data)
        identifier = data[match.end() :] if match else ""
    if identifier.startswith("5A10"):  # the collection's UUID: a length, a subtype, 16 bytes
        identifier = identifier[len("5A1004") + 32 :]
    return identifier.startswith("46") and _OPERATION_DESCRIPTION not in identifier


def time_in(data: str) -> Timestamp:
    """Return the cluster time in a token's hex string."""
    return Timestamp(int(data[2:10], 16), int(data[10:18], 16))


def high_water_mark(time: Timestamp) -> str:
    """Return the high water mark's hex string: below the time's events, above earlier ones."""
    return f"82{time.time:08X}{time.inc:08X}2B0229296E04"


def to_offset(position: Position) -> dict[str, Any]:
    """Return the position as an offset of Spark: a dict that json.dumps accepts."""
    match position:
        case Token(document):
            plain: dict[str, Any] = json.loads(json_util.dumps(document))
            return plain
        case AtTime(time):
            return {"startAtOperationTime": {"$timestamp": time_document(time)}}
        case FromNow():
            return {"start": "now"}


def from_offset(offset: Mapping[str, Any]) -> Position:
    """Return the position that `to_offset` wrote. Raises PositionError for anything else."""
    if offset == {"start": "now"}:
        return FromNow()
    if "startAtOperationTime" in offset:
        time = _revive(offset).get("startAtOperationTime")
        if not isinstance(time, Timestamp):
            raise PositionError(f"not a cluster time: {json_util.dumps(offset)}")
        return AtTime(time)
    return Token(_revive(offset))


def time_document(time: Timestamp) -> dict[str, int]:
    """Return a cluster time as part of an offset."""
    return {"t": time.time, "i": time.inc}


def time_from(document: Mapping[str, int]) -> Timestamp:
    """Return the cluster time that `time_document` wrote."""
    return Timestamp(document["t"], document["i"])


def time_of(position: Position) -> Timestamp | None:
    """Return the cluster time of a position, None for "now"."""
    match position:
        case Token():
            return position.cluster_time
        case AtTime(time):
            return time
        case FromNow():
            return None


def key_of(position: Position) -> str:
    """Return the position's sort key: events whose tokens sort above it come after it.

    A cluster time's key is the beginning of all tokens of that time and sorts below them. "Now" has
    the empty key.
    """
    match position:
        case Token():
            return position.data
        case AtTime(time):
            return f"82{time.time:08X}{time.inc:08X}"
        case FromNow():
            return ""


def after(time: Timestamp) -> AtTime:
    """Return the position after all events of a cluster time."""
    return AtTime(Timestamp(time.time, time.inc + 1))


def is_after(later: Position, position: Position) -> bool:
    """Return whether events may lie between the two; none follow "now"."""
    return not isinstance(position, FromNow) and key_of(later) > key_of(position)


def _revive(offset: Mapping[str, Any]) -> dict[str, Any]:
    """Extended JSON, already parsed as plain JSON, to BSON values."""
    revived: dict[str, Any] = json_util.loads(json.dumps(dict(offset)))
    return revived

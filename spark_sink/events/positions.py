"""Positions in a change stream, and how they are written into Spark's checkpoint.

A position is what a stream can be opened after: a resume token, a cluster time, or "now". Spark
keeps it as JSON, as a part of an offset. Tokens are written exactly as MongoDB shows them
(`{"_data": "82…"}`), so that one can be copied from a checkpoint into `watch(resume_after=…)`.

Token strings compare as the events are ordered: docs/protocol.md#resume-tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bson import json_util
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import (
    cluster_time_of,
    first_key,
    is_high_water_mark,
    is_token,
    next_tick,
    version_of,
)

# Up to so many events, the merged stream costs less than a task and a stream for each shard.
_SMALL_EVENTS = 5000


@dataclass(frozen=True)
class Token:
    """A resume token: of an event, or a high water mark.

    `document` is the token as the server gave it, with `_typeBits` where it has them.
    Raises ValueError if it cannot be one (docs/protocol.md#resume-tokens).
    """

    document: Mapping[str, Any]

    def __post_init__(self) -> None:
        data = self.document.get("_data")
        if not isinstance(data, str) or not is_token(data.upper()):
            raise ValueError(f"not a resume token: {json_util.dumps(self.document)}")

    @classmethod
    def of(cls, event: bytes) -> Token:
        """Return the token of an event."""
        return cls(dict(RawBSONDocument(event)["_id"]))

    @cached_property
    def data(self) -> str:
        """The sort key: tokens of a stream compare by it."""
        return str(self.document["_data"]).upper()

    @cached_property
    def cluster_time(self) -> Timestamp:
        """The cluster time that the token begins with."""
        return cluster_time_of(self.data)

    @property
    def is_high_water_mark(self) -> bool:
        """Whether it is the token of a cluster time and not of an event."""
        return is_high_water_mark(self.data)

    @property
    def is_of_version_1(self) -> bool:
        """Whether it is the token of an event, in version 1 (docs/protocol.md#resume-tokens)."""
        return version_of(self.data) == 1 and not self.is_high_water_mark


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
ABOVE_ALL_TOKENS = "~"
"""A string above all tokens."""


def position_document(position: Position) -> dict[str, Any]:
    """Return the position as a part of an offset: a dict that json.dumps accepts."""
    match position:
        case Token(document):
            plain: dict[str, Any] = json.loads(json_util.dumps(document))
            return plain
        case AtTime(time):
            return {"startAtOperationTime": {"$timestamp": time_document(time)}}
        case FromNow():
            return {"start": "now"}


def position_from(offset: Mapping[str, Any]) -> Position:
    """Return the position that `position_document` wrote. Raises ValueError for anything else."""
    if offset == {"start": "now"}:
        return FromNow()
    fields: dict[str, Any] = json_util.loads(json.dumps(dict(offset)))
    if "startAtOperationTime" not in fields:
        return Token(fields)
    time = fields["startAtOperationTime"]
    if not isinstance(time, Timestamp):
        raise ValueError(f"not a cluster time: {json_util.dumps(offset)}")
    return AtTime(time)


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
            return first_key(time).decode("ascii")
        case FromNow():
            return ""


def after(time: Timestamp) -> AtTime:
    """Return the position after all events of a cluster time."""
    return AtTime(next_tick(time))


def is_after(later: Position, position: Position) -> bool:
    """Return whether events may lie between the two; none follow "now"."""
    return not isinstance(position, FromNow) and key_of(later) > key_of(position)


@dataclass(frozen=True)
class EventRange:
    """The events of a batch, after a position up to another one.

    Args:
        events: about how many they are, if known.
        quiet_until: a cluster time before which there are none.
    """

    start: Position
    end: Position
    events: int | None = None
    quiet_until: Timestamp | None = None

    @property
    def read_from(self) -> Position:
        """Where reading begins: the start, or a later position before which there is no event."""
        idle = None if self.quiet_until is None else AtTime(self.quiet_until)
        return self.start if idle is None or not is_after(idle, self.start) else idle

    @property
    def is_small(self) -> bool:
        """Whether they are read from the merged stream at once."""
        return self.events is not None and self.events <= _SMALL_EVENTS

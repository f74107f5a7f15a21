"""What a client asks for with ``aggregate`` and ``$changeStream``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from bson.timestamp import Timestamp

from router.change_stream.resume_token import ResumeToken


class Scope(Enum):
    """What a change stream watches."""

    COLLECTION = "collection"
    DATABASE = "database"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class FromNow:
    """Start one tick after the largest cluster time that the cluster is known to have reached."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """Start at ``time``, inclusive; it may lie in the future."""

    time: Timestamp


@dataclass(frozen=True, slots=True)
class AfterToken:
    """Start after ``token``; ``start_after`` allows an invalidate's token."""

    token: ResumeToken
    start_after: bool


Start = FromNow | AtTime | AfterToken


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """One change stream, validated as mongos validates it (docs/protocol.md, section 4).

    ``namespace`` is the cursor's ``ns``; ``change_stream_options`` are the stage's options without
    the starting point; ``stages`` are the user's stages after it; ``extras`` are the aggregate's
    fields that shards get too (collation, comment, let, hint, ...). ``batch_size`` is the client's
    (None: as many as fit). ``passthrough_to_shard`` names the one shard to ask, unmerged.
    """

    scope: Scope
    database: str
    collection: str | None
    namespace: str
    change_stream_options: Mapping[str, Any] = field(default_factory=dict)
    stages: Sequence[Mapping[str, Any]] = ()
    start: Start = FromNow()
    batch_size: int | None = None
    max_time_ms: int | None = None
    read_preference: Mapping[str, Any] | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    explain: bool | str | None = None
    passthrough_to_shard: str | None = None

    @property
    def splits_large_events(self) -> bool:
        """Whether the stream ends in ``$changeStreamSplitLargeEvent``, which needs v2 tokens."""
        raise NotImplementedError


def is_change_stream(command: Mapping[str, Any]) -> bool:
    """Tell whether an ``aggregate`` is about a change stream, rightly or wrongly formed."""
    raise NotImplementedError


def parse_request(database: str, command: Mapping[str, Any]) -> StreamRequest:
    """Turn a client's ``aggregate`` into a StreamRequest, or raise mongos's CommandError."""
    raise NotImplementedError

"""A client's ``aggregate`` with ``$changeStream``, parsed (docs/protocol.md#opening)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from bson.timestamp import Timestamp

from router.change_stream.aggregate_fields import check_aggregate, check_for_change_stream
from router.change_stream.options import (
    STARTS,
    AfterToken,
    AtTime,
    FromNow,
    Start,
    check_fields,
    check_namespace,
    parse_start,
)
from router.change_stream.stages import (
    CHANGE_STREAM,
    SPLIT,
    check_arguments,
    check_names,
    check_positions,
    stage_name,
)
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

__all__ = [
    "AfterToken",
    "AtTime",
    "FromNow",
    "Scope",
    "Start",
    "StreamRequest",
    "parse_request",
]

# Fields of the client's aggregate that are sent to every shard.
_PASSED_ON: Final = ("collation", "comment", "let", "hint", "allowDiskUse")


class Scope(Enum):
    """The scope of a change stream: a collection, a database or the cluster."""

    COLLECTION = "collection"
    DATABASE = "database"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """One change stream, validated as mongos validates it (docs/protocol.md#opening).

    ``namespace`` is the cursor's ``ns``; ``change_stream_options`` are the stage's options without
    the starting point; ``stages`` are the user's stages after it; ``extras`` are the aggregate's
    fields that are also sent to the shards (collation, comment, let, hint, ...). ``batch_size`` is
    the client's (None: as many as fit). ``passthrough_to_shard`` names the only shard to read,
    without a merge.
    """

    scope: Scope
    database: str
    collection: str | None
    namespace: str
    change_stream_options: Mapping[str, Any] = field(default_factory=dict)
    stages: Sequence[Mapping[str, Any]] = ()
    start: Start = field(default_factory=FromNow)
    batch_size: int | None = None
    max_time_ms: int | None = None
    read_preference: Mapping[str, Any] | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    explain: bool = False
    passthrough_to_shard: str | None = None

    @property
    def start_time(self) -> Timestamp | None:
        """The cluster time at which every shard starts; None for a stream that starts now."""
        match self.start:
            case AtTime(time):
                return time
            case AfterToken(token):
                return token.cluster_time
        return None

    @property
    def starts_after_invalidate(self) -> bool:
        """Whether the stream continues after an invalidate.

        One that is a shard's first event, with its cause, is swallowed.
        """
        start = self.start
        return isinstance(start, AfterToken) and start.start_after and start.token.from_invalidate

    @property
    def splits_large_events(self) -> bool:
        """Whether the stream ends in ``$changeStreamSplitLargeEvent``, which needs v2 tokens."""
        return bool(self.stages) and stage_name(self.stages[-1]) == SPLIT


def parse_request(database: str, command: Mapping[str, Any]) -> StreamRequest:
    """Parse a client's ``aggregate`` into a StreamRequest.

    Raises mongos's CommandError, except for errors that only shards can detect: views (166), and
    errors inside $match, $project and the other stages. Source: docs/protocol.md#opening.
    """
    fields = check_aggregate(database, command)
    check_names(fields.pipeline, api_strict=bool(command.get("apiStrict")))
    opens_stream = bool(fields.pipeline) and stage_name(fields.pipeline[0]) == CHANGE_STREAM
    if opens_stream:
        check_for_change_stream(command)
    if command.get("needsMerge") or command.get("fromMongos") or command.get("fromRouter"):
        raise CommandError(
            51089,
            "Internal parameter(s) [needsMerge, fromMongos] cannot be set to 'true' when sent to "
            "mongos",
        )
    spec: Mapping[str, Any] = fields.pipeline[0][CHANGE_STREAM] if opens_stream else {}
    start: Start = FromNow()
    if opens_stream:
        check_fields(spec)
        check_namespace(spec, database, fields.collection)
        start = parse_start(spec, fields.collection)
    check_arguments(fields.pipeline)
    check_positions(fields.pipeline)
    if not opens_stream:
        raise CommandError(ErrorCode.CommandNotFound, "no such command: 'aggregate'")
    passthrough = command.get("$_passthroughToShard")
    return StreamRequest(
        scope=_scope(database, fields.collection),
        database=database,
        collection=fields.collection,
        namespace=f"{database}.{fields.collection or '$cmd.aggregate'}",
        change_stream_options={k: v for k, v in spec.items() if k not in STARTS},
        stages=tuple(fields.pipeline[1:]),
        start=start,
        batch_size=fields.batch_size,
        max_time_ms=fields.max_time_ms,
        read_preference=command.get("$readPreference"),
        extras={name: command[name] for name in _PASSED_ON if name in command},
        explain=fields.explain,
        passthrough_to_shard=None if passthrough is None else passthrough["shard"],
    )


def _scope(database: str, collection: str | None) -> Scope:
    if collection is not None:
        return Scope.COLLECTION
    return Scope.CLUSTER if database == "admin" else Scope.DATABASE

"""A client's ``aggregate`` with ``$changeStream``, parsed (docs/protocol.md#opening)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import bson
from bson.timestamp import Timestamp

from router.request.accepted import (
    CHANGE_STREAM,
    FIELDS,
    SPLIT,
    brief,
    refusal,
    stage_name,
    unknown_in,
)
from router.request.field_checks import as_int64
from router.request.start_options import STARTS, AfterToken, Start, parse_start
from shard_client.errors import CommandError, ErrorCode


def aggregate_namespace(database: str, collection: str | None) -> str:
    """Return the namespace of an ``aggregate`` on a collection, or on a database without one."""
    return f"{database}.{collection or '$cmd.aggregate'}"


def check_database(database: str) -> None:
    """Check that a mongos serves a database, as it does before the user's rights.

    Raises CommandError.
    """
    if database == "local":
        raise CommandError(ErrorCode.IllegalOperation, "Can't use 'local' database through mongos")


def check_namespace(spec: Mapping[str, Any], database: str, collection: str | None) -> None:
    """Check that a stream with these options may watch its namespace; raises CommandError.

    A client's allowToRunOnConfigDB is not honoured: a real mongos crashes on it.
    """
    whole_cluster = bool(spec.get("allChangesForCluster"))
    check_database(database)
    if database == "config" or (database == "admin" and not whole_cluster):
        raise CommandError(
            ErrorCode.InvalidNamespace,
            f"$changeStream may not be opened on the internal {database} database",
        )
    namespace = aggregate_namespace(database, collection)
    if whole_cluster and not (database == "admin" and collection is None):
        raise refusal(f"allChangesForCluster on {namespace}: it needs aggregate: 1 on admin")
    if collection is not None and collection.startswith("system."):
        raise refusal(f"the internal collection {namespace}")


# Fields of the client's aggregate that are sent to every shard.
_PASSED_ON: Final = ("collation", "comment", "let", "hint", "allowDiskUse")


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """One change stream, validated as mongos validates it (docs/protocol.md#opening).

    ``collection`` is None for a stream of a database, or of the cluster if that is ``admin``.
    ``change_stream_options`` are the stage's options without the starting point; ``stages`` are the
    user's stages after it; ``extras`` are the aggregate's fields that are also sent to the shards
    (collation, comment, let, hint, ...). ``passthrough_to_shard`` names the only shard to read,
    without a merge.
    """

    database: str
    collection: str | None
    change_stream_options: Mapping[str, Any] = field(default_factory=dict)
    stages: Sequence[Mapping[str, Any]] = ()
    start: Start = None
    max_time_ms: int | None = None
    read_preference: Mapping[str, Any] | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    explain: bool = False
    passthrough_to_shard: str | None = None

    @property
    def of_cluster(self) -> bool:
        """Whether the stream watches the whole cluster."""
        return self.collection is None and self.database == "admin"

    @property
    def namespace(self) -> str:
        """The cursor's ``ns``."""
        return aggregate_namespace(self.database, self.collection)

    @property
    def start_time(self) -> Timestamp | None:
        """The cluster time at which every shard starts; None for a stream that starts now."""
        start = self.start
        return start.token.cluster_time if isinstance(start, AfterToken) else start

    @property
    def starts_after_invalidate(self) -> bool:
        """Whether the stream continues after an invalidate.

        One that is a shard's first event, with its cause, is skipped.
        """
        start = self.start
        return isinstance(start, AfterToken) and start.start_after and start.token.from_invalidate

    @property
    def splits_large_events(self) -> bool:
        """Whether the stream ends in ``$changeStreamSplitLargeEvent``, which needs v2 tokens."""
        return bool(self.stages) and stage_name(self.stages[-1]) == SPLIT

    @property
    def sharing_key(self) -> bytes:
        """A digest that is equal for requests that may share remotes.

        It covers everything but the start, the batch options and the comment. A request that starts
        after an invalidate shares only with those that start after the same one, because their
        shards also skip invalidates.
        """
        after = None
        if self.starts_after_invalidate and isinstance(self.start, AfterToken):
            after = self.start.token.data
        extras = {name: value for name, value in self.extras.items() if name != "comment"}
        identity = {
            "namespace": self.namespace,
            "options": self.change_stream_options,
            "stages": list(self.stages),
            "readPreference": self.read_preference,
            "extras": extras,
            "shard": self.passthrough_to_shard,
            "after": after,
        }
        return blake2b(bson.encode(identity), digest_size=32).digest()


def target_of(command: Mapping[str, Any]) -> str | None:
    """Return the collection that a command names, None for a database; raises CommandError."""
    target = command.get("aggregate")
    if not FIELDS["aggregate"](target):
        raise refusal(f"aggregate: {brief(target)}")
    return target if isinstance(target, str) else None


def parse_request(database: str, command: Mapping[str, Any]) -> StreamRequest:
    """Parse a client's ``aggregate`` into a StreamRequest.

    Raises CommandError: the router does not know something in it, which is mongos's to judge
    (``unknown_in``); or no client may watch that database. Errors that only shards can detect come
    from them: views (166), and errors inside $match, $project and the others.
    """
    collection = target_of(command)
    if database in ("config", "local"):
        check_namespace({}, database, collection)
    unknown = unknown_in(command)
    if unknown is not None:
        raise refusal(unknown)
    first, *stages = command["pipeline"]
    spec: Mapping[str, Any] = first[CHANGE_STREAM]
    check_namespace(spec, database, collection)
    splits = bool(stages) and stage_name(stages[-1]) == SPLIT
    passthrough, max_time = command.get("$_passthroughToShard"), command.get("maxTimeMS")
    return StreamRequest(
        database=database,
        collection=collection,
        change_stream_options={k: v for k, v in spec.items() if k not in STARTS},
        stages=tuple(stages),
        start=parse_start(spec, collection, splits=splits),
        max_time_ms=None if max_time is None else as_int64(max_time),
        read_preference=command.get("$readPreference"),
        extras={name: command[name] for name in _PASSED_ON if name in command},
        explain=bool(command.get("explain")),
        passthrough_to_shard=None if passthrough is None else passthrough["shard"],
    )

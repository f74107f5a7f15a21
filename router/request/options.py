"""A stream's namespace and start, as ``$changeStream`` sets them (docs/protocol.md#opening)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.timestamp import Timestamp

from router.request.accepted import client_token, refusal
from shard_client.bson.resume_token import ResumeToken
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError


@dataclass(frozen=True, slots=True)
class AtTime:
    """Start at ``time``, inclusive; it may lie in the future."""

    time: Timestamp


@dataclass(frozen=True, slots=True)
class AfterToken:
    """Start after ``token``; ``start_after`` allows an invalidate's token."""

    token: ResumeToken
    start_after: bool


Start = AtTime | AfterToken | None
"""None: one tick after the cluster's largest known cluster time."""

STARTS: Final = ("resumeAfter", "startAfter", "startAtOperationTime")


def namespace_of(database: str, collection: str | None) -> str:
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
    namespace = namespace_of(database, collection)
    if whole_cluster and not (database == "admin" and collection is None):
        raise refusal(f"allChangesForCluster on {namespace}: it needs aggregate: 1 on admin")
    if collection is not None and collection.startswith("system."):
        raise refusal(f"the internal collection {namespace}")


def parse_start(spec: Mapping[str, Any], collection: str | None, *, splits: bool) -> Start:
    """Return the stream's start; raises CommandError.

    Args:
        spec: the options of ``$changeStream``.
        collection: the collection that is watched; None for a database or the cluster.
        splits: whether the stream splits large events.
    """
    given = [name for name in STARTS if spec.get(name) is not None]
    tokens = {name: client_token(spec[name]) for name in given if name != "startAtOperationTime"}
    if len(given) > 1:
        raise refusal(f"more than one start: {', '.join(given)}")
    if not given:
        return None
    if not tokens:
        return AtTime(spec["startAtOperationTime"])
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

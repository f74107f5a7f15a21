"""The options of ``$changeStream`` and a stream's start (docs/protocol.md#opening)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bson.timestamp import Timestamp

from router.bson_text import render
from router.request.field_errors import not_boolean, unknown_field, wrong_type
from shard_client.bson.resume_token import ResumeToken, checked_fields
from shard_client.bson.values import MalformedValueError
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

_IMAGES: Final = ("off", "whenAvailable", "required")
_LOOKUPS: Final = ("default", "updateLookup", "whenAvailable", "required")


def _one_of(allowed: tuple[str, ...]) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, str):
            raise wrong_type(f"$changeStream.{name}", value, "string")
        if value not in allowed:
            raise CommandError(
                ErrorCode.BadValue,
                f"Enumeration value '{value}' for field '$changeStream.{name}' is not a valid "
                "value.",
            )

    return check


def _boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise not_boolean(name, value)


def _token(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise wrong_type(f"$changeStream.{name}", value, "object")
    with _refused(value):
        checked_fields(value)


@contextmanager
def _refused(token: Mapping[str, Any]) -> Iterator[None]:
    """Raise mongos's CommandError if the client's token is malformed."""
    try:
        yield
    except MalformedValueError as error:
        shown = {40647: f". Expected string, got {render(token)}", 40648: f" {render(token)}"}
        raise CommandError(error.code, f"{error}{shown.get(error.code, '')}") from None


def _time(name: str, value: Any) -> None:
    if not isinstance(value, Timestamp):
        raise wrong_type(f"$changeStream.{name}", value, "timestamp")


_CHECKS: Final[Mapping[str, Callable[[str, Any], None]]] = {
    "resumeAfter": _token,
    "startAfter": _token,
    "startAtOperationTime": _time,
    "fullDocument": _one_of(_LOOKUPS),
    "fullDocumentBeforeChange": _one_of(_IMAGES),
    "allChangesForCluster": _boolean,
    "showMigrationEvents": _boolean,
    "showSystemEvents": _boolean,
    "showExpandedEvents": _boolean,
    "showRawUpdateDescription": _boolean,
    "allowToRunOnConfigDB": _boolean,
    "allowToRunOnSystemNS": _boolean,
    "matchCollectionUUIDForUpdateLookup": _boolean,
}


def namespace_of(database: str, collection: str | None) -> str:
    """Return the namespace of an ``aggregate`` on a collection, or on a database without one."""
    return f"{database}.{collection or '$cmd.aggregate'}"


def check_fields(spec: Mapping[str, Any]) -> None:
    """Check each option separately, in the order given; raises mongos's CommandError."""
    for name, value in spec.items():
        check = _CHECKS.get(name)
        if check is None:
            raise unknown_field(f"$changeStream.{name}")
        # A null counts as an absent value, except for flags.
        if value is not None or check is _boolean:
            check(name, value)


def check_namespace(spec: Mapping[str, Any], database: str, collection: str | None) -> None:
    """Check that a stream with these options may watch its namespace.

    Raises mongos's CommandError.
    """
    namespace = namespace_of(database, collection)
    if spec.get("allChangesForCluster") and not (database == "admin" and collection is None):
        raise CommandError(
            ErrorCode.InvalidOptions,
            "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' "
            f"database, and with no collection name; found {namespace}",
        )
    # A client's allowToRunOnConfigDB is not honoured: a real mongos crashes on it.
    if database in ("local", "config") or (
        database == "admin" and not spec.get("allChangesForCluster")
    ):
        raise CommandError(
            ErrorCode.InvalidNamespace,
            f"$changeStream may not be opened on the internal {database} database",
        )
    if collection is not None and collection.startswith("system."):
        through = " through mongos" if spec.get("allowToRunOnSystemNS") else ""
        raise CommandError(
            ErrorCode.InvalidNamespace,
            f"$changeStream may not be opened on the internal {namespace} collection{through}",
        )
    if spec.get("showMigrationEvents"):
        raise CommandError(31123, "Change streams from mongos may not show migration events")


def parse_start(spec: Mapping[str, Any], collection: str | None) -> Start:
    """Return the stream's start; raises mongos's CommandError."""
    resume_after, start_after = spec.get("resumeAfter"), spec.get("startAfter")
    if resume_after is not None and start_after is not None:
        raise CommandError(
            50865, "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage"
        )
    time = spec.get("startAtOperationTime")
    document = start_after if resume_after is None else resume_after
    if document is None:
        return None if time is None else AtTime(time)
    with _refused(document):
        token = ResumeToken.parse(document)
    if time is not None:
        raise CommandError(
            40674, "Only one type of resume option is allowed, but multiple were found"
        )
    if resume_after is not None and token.from_invalidate:
        raise CommandError(
            ErrorCode.InvalidResumeToken,
            "Attempting to resume a change stream using 'resumeAfter' is not allowed from an "
            "invalidate notification",
        )
    if collection is not None and token.uuid is None and not token.is_high_water_mark:
        raise CommandError(
            ErrorCode.InvalidResumeToken,
            "Attempted to resume a single-collection stream, but the resume token does not "
            "include a UUID",
        )
    return AfterToken(token, start_after is not None)

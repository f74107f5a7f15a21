"""What the router accepts in a request; all else is mongos's to judge (docs/protocol.md#opening).

A request with anything else goes to the upstream as it was written. The upstream answers it with
the messages of its own version, or serves it. Without an upstream the client gets our refusal.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from bson.binary import UUID_SUBTYPE, Binary
from bson.timestamp import Timestamp

from router.bson_text import render, shortened
from router.request.field_checks import INT64_END
from shard_client.errors import CommandError, ErrorCode

CHANGE_STREAM: Final = "$changeStream"
SPLIT: Final = "$changeStreamSplitLargeEvent"
_IDENTITY: Final = ("$_internalInhibitOptimization", "$_internalShredDocuments")
"""Internal stages that are open to clients and leave events as they are."""

OPAQUE: Final = frozenset(
    {
        "$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith",
        "$redact",
    }
)  # fmt: skip
"""Stages whose contents the shards check: they may stay raw (``RawBSONDocument``)."""

_LONGEST_SHOWN: Final = 80


def stage_name(stage: Mapping[str, Any]) -> str:
    """Return the name of a stage, a document with at least one field."""
    return next(iter(stage))


def brief(value: Any) -> str:
    """Return the beginning of a value as text, for our messages."""
    return shortened(render(value), _LONGEST_SHOWN)


def stages_problem(stages: Sequence[Mapping[str, Any]], *, strict: bool) -> str | None:
    """Return what the router does not know of the stages after ``$changeStream``; None if nothing.

    ``strict`` is whether the client declares API version 1 as strict.
    """
    for position, stage in enumerate(stages, start=1):
        name, *more = [*stage] or [""]
        if name in OPAQUE:
            known = name != "$match" or isinstance(stage[name], Mapping)
        else:
            known = name in (SPLIT, *_IDENTITY) and not strict and _is_empty(stage[name])
        if more or not known or (name == SPLIT and position != len(stages)):
            return f"the stage {brief(stage)} at position {position}"
    names = {stage_name(stage) for stage in stages}
    if SPLIT in names and not names.isdisjoint(_IDENTITY):
        return f"{SPLIT} after an internal stage"
    return None


def _is_empty(argument: Any) -> bool:
    return isinstance(argument, Mapping) and not argument


Accepts = Callable[[Any], bool]

LONGEST_TIME: Final = 2**31 - 1
"""Most milliseconds of a command's ``maxTimeMS``."""

_MODES: Final = ("primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest")
_LEAST_STALENESS: Final = 90
_UUID_BYTES: Final = 16
_NOT_STRICT: Final = (
    "explain", "$_passthroughToShard", "showExpandedEvents", "showRawUpdateDescription",
    "showSystemEvents",
)  # fmt: skip
"""Fields and options that ``apiStrict`` excludes."""


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_false(value: Any) -> bool:
    return value is False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= LONGEST_TIME and value == int(value)


def _is_document(value: Any) -> bool:
    return isinstance(value, Mapping)


def _or_none(accepts: Accepts) -> Accepts:
    return lambda value: value is None or accepts(value)


def _one_of(*values: str) -> Accepts:
    return lambda value: value is None or (isinstance(value, str) and value in values)


def _is_target(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value) and not value.startswith(".") and "\0" not in value
    return _is_number(value) and value == 1


def _is_cursor(value: Any) -> bool:
    known = _is_document(value) and value.keys() <= {"batchSize"}
    return known and all(_is_number(number) and number >= 0 for number in value.values())


def _is_read_concern(value: Any) -> bool:
    if not _is_document(value) or not value.keys() <= {"level", "afterClusterTime"}:
        return False
    after = value.get("afterClusterTime", Timestamp(1, 1))
    known = isinstance(after, Timestamp) and after != Timestamp(0, 0)
    return known and value.get("level", "majority") in ("majority", "local")


def _is_majority(value: Any) -> bool:
    """Whether a read concern is that of a change stream, the default of a read after a time."""
    default = "majority" if _is_document(value) and "afterClusterTime" in value else "local"
    return _is_read_concern(value) and value.get("level", default) == "majority"


def is_read_preference(value: Any) -> bool:
    """Return whether a ``$readPreference`` is valid; mongos too ignores fields it does not know."""
    if not _is_document(value):
        return False
    mode, tags, hedge = value.get("mode"), value.get("tags", []), value.get("hedge", {})
    staleness = value.get("maxStalenessSeconds", 0)
    if mode not in _MODES or not isinstance(tags, list) or not all(map(_is_document, tags)):
        return False
    if mode == "primary":
        known = "hedge" not in value and _is_number(staleness)
        return known and tags in ([], [{}]) and staleness == 0
    texts = chain.from_iterable(tag.values() for tag in tags)
    known = _is_number(staleness) and (staleness == 0 or staleness >= _LEAST_STALENESS)
    known = known and _is_document(hedge) and hedge.keys() <= {"enabled"}
    return known and _is_bool(hedge.get("enabled", True)) and all(isinstance(t, str) for t in texts)


def is_session(value: Any) -> bool:
    """Return whether an ``lsid`` is what a driver sends: a UUID alone."""
    if not _is_document(value) or [*value] != ["id"]:
        return False
    named = value["id"]
    is_uuid = isinstance(named, Binary) and named.subtype == UUID_SUBTYPE
    return is_uuid and len(named) == _UUID_BYTES


def is_cluster_time(value: Any) -> bool:
    """Return whether a ``$clusterTime`` has a time, and a signature of 20 bytes by some key."""
    if not _is_document(value) or not isinstance(value.get("clusterTime"), Timestamp):
        return False
    signature = value.get("signature")
    if not isinstance(signature, Mapping):
        return False
    digest, key_id = signature.get("hash"), signature.get("keyId", 0.5)
    known = isinstance(digest, bytes) and getattr(digest, "subtype", 0) == 0 and len(digest) == 20
    return known and _is_number(key_id) and float(key_id).is_integer() and abs(key_id) < INT64_END


def _is_passthrough(value: Any) -> bool:
    return _is_document(value) and [*value] == ["shard"] and isinstance(value["shard"], str)


OF_ANY_COMMAND: Final[Mapping[str, Accepts]] = {
    "maxTimeMS": _is_whole,
    "readConcern": _is_read_concern,
    "$clusterTime": is_cluster_time,
}
"""Fields of any command that mongos checks, whatever they mean to it."""

FIELDS: Final[Mapping[str, Accepts]] = {
    "aggregate": _is_target,
    "pipeline": lambda value: isinstance(value, list | tuple) and all(map(_is_document, value)),
    "cursor": _is_cursor,
    "explain": _or_none(_is_bool),
    "maxTimeMS": _is_whole,
    "bypassDocumentValidation": _or_none(lambda value: isinstance(value, bool | int | float)),
    "hint": _or_none(lambda value: isinstance(value, str | Mapping)),
    "collectionUUID": lambda value: value is None,
    "collation": _or_none(_is_document),
    "let": _or_none(_is_document),
    "readConcern": _is_majority,
    "writeConcern": _or_none(_is_document),
    "$_passthroughToShard": _or_none(_is_passthrough),
    "allowDiskUse": _is_bool,
    "needsMerge": _is_false,
    "fromMongos": _is_false,
    "fromRouter": _is_false,
    "lsid": is_session,
    "$readPreference": is_read_preference,
    "$clusterTime": is_cluster_time,
    **dict.fromkeys(
        ("comment", "apiVersion", "apiStrict", "apiDeprecationErrors", "$db"),
        lambda _value: True,
    ),
}  # fmt: skip
"""The fields of an ``aggregate`` that opens a change stream."""

OPTIONS: Final[Mapping[str, Accepts]] = {
    # ``ResumeToken.parse`` has a server's errors.
    **dict.fromkeys(("resumeAfter", "startAfter"), _or_none(_is_document)),
    "startAtOperationTime": lambda value: value is None or isinstance(value, Timestamp),
    "fullDocument": _one_of("default", "updateLookup", "whenAvailable", "required"),
    "fullDocumentBeforeChange": _one_of("off", "whenAvailable", "required"),
    "showMigrationEvents": _is_false,
    **dict.fromkeys(
        ("allChangesForCluster", "showSystemEvents", "showExpandedEvents",
         "showRawUpdateDescription", "allowToRunOnConfigDB", "allowToRunOnSystemNS",
         "matchCollectionUUIDForUpdateLookup"),
        _is_bool,
    ),
}  # fmt: skip
"""The options of ``$changeStream``."""


def unknown_in(command: Mapping[str, Any]) -> str | None:
    """Return the first thing of an ``aggregate`` that the router does not know; None if none is.

    The contents of stages are not looked at: the shards parse them when their cursors are opened,
    and their error is the same as mongos's.
    """
    for name, value in command.items():
        if name not in FIELDS or not FIELDS[name](value):
            return f"{name}: {brief(value)}"
    if "pipeline" not in command or ("cursor" not in command and not command.get("explain")):
        return "no pipeline or no cursor"
    first, *stages = command["pipeline"] or [{}]
    if [*first] != [CHANGE_STREAM] or not _is_document(first[CHANGE_STREAM]):
        return f"a pipeline that begins with {brief(first)}"
    for name, value in first[CHANGE_STREAM].items():
        if name not in OPTIONS or not OPTIONS[name](value):
            return f"{CHANGE_STREAM}.{name}: {brief(value)}"
    if command.get("apiStrict"):
        for name in _NOT_STRICT:
            if name in command or name in first[CHANGE_STREAM]:
                return f"apiStrict and {name}"
    return stages_problem(stages, strict=bool(command.get("apiStrict")))


def refusal(reason: str) -> CommandError:
    """Return the error for a change stream with ``reason``, for routers without an upstream."""
    return CommandError(
        ErrorCode.BadValue,
        f"mergerouter does not serve a change stream with {reason}; with --upstream, a mongos "
        "answers drivers that request one",
    )

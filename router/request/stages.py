"""The stages allowed in a change stream's pipeline, by position (docs/protocol.md#opening).

The shards check the contents of the allowed stages (expressions, match operators): they parse them
when their cursors are opened, and their error is the same as mongos's.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.bson_text import render
from router.request.field_errors import wrong_type
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

CHANGE_STREAM: Final = "$changeStream"
SPLIT: Final = "$changeStreamSplitLargeEvent"
_INHIBIT: Final = "$_internalInhibitOptimization"
_SHRED: Final = "$_internalShredDocuments"
_IDENTITY: Final = (_INHIBIT, _SHRED)
"""Internal stages that are open to clients and leave events as they are."""

OPAQUE: Final = frozenset(
    {
        "$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith",
        "$redact",
    }
)  # fmt: skip
"""Stages whose contents the shards check: they may stay raw (``RawBSONDocument``)."""

_ALLOWED: Final = frozenset({*OPAQUE, SPLIT, *_IDENTITY})

_OTHERS: Final = frozenset(
    {
        "$bucket", "$bucketAuto", "$collStats", "$count", "$currentOp", "$densify", "$documents",
        "$facet", "$fill", "$geoNear", "$graphLookup", "$group", "$indexStats", "$limit",
        "$listCatalog", "$listLocalSessions", "$listSampledQueries", "$listSearchIndexes",
        "$listSessions", "$lookup", "$merge", "$operationMetrics", "$out", "$planCacheStats",
        "$queryStats", "$querySettings", "$rankFusion", "$sample", "$score", "$search",
        "$searchMeta", "$setWindowFields", "$shardedDataDistribution", "$skip", "$sort",
        "$sortByCount", "$unionWith", "$unwind", "$vectorSearch",
    }
)  # fmt: skip

_INTERNAL_PREFIX: Final = "$_internal"


def stage_name(stage: Mapping[str, Any]) -> str:
    """Return the name of a stage, a document with at least one field."""
    return next(iter(stage))


def concerns_change_streams(name: str) -> bool:
    """Return whether the stage named ``name`` concerns change streams."""
    return name in (CHANGE_STREAM, SPLIT) or name.startswith(_INTERNAL_PREFIX + "ChangeStream")


def check_shape(pipeline: Any) -> Sequence[Mapping[str, Any]]:
    """Check that the pipeline is an array of documents, and return it."""
    if not isinstance(pipeline, (list, tuple)):
        raise CommandError(
            ErrorCode.TypeMismatch, "'pipeline' option must be specified as an array"
        )
    for stage in pipeline:
        if not isinstance(stage, Mapping):
            raise CommandError(
                ErrorCode.TypeMismatch, "Each element of the 'pipeline' array must be an object"
            )
    return pipeline


def check_names(pipeline: Sequence[Mapping[str, Any]], *, api_strict: bool) -> None:
    """Check that clients may use every stage; raises mongos's CommandError."""
    for stage in pipeline:
        if len(stage) != 1:
            raise CommandError(
                40323, "A pipeline stage specification object must contain exactly one field."
            )
        name = stage_name(stage)
        if name.startswith(_INTERNAL_PREFIX) and name not in _ALLOWED:
            raise CommandError(5491300, f"{name}' is not allowed in user requests")
        if name not in _ALLOWED and name not in _OTHERS and name != CHANGE_STREAM:
            raise CommandError(40324, f"Unrecognized pipeline stage name: '{name}'")
        if name == CHANGE_STREAM and not isinstance(stage[name], Mapping):
            raise CommandError(
                6188500,
                "$changeStream must take a nested object but found: $changeStream: "
                f"{render(stage[name])}",
            )
    if api_strict:
        for stage in pipeline:
            _check_api_strict(stage)


def _check_api_strict(stage: Mapping[str, Any]) -> None:
    name = stage_name(stage)
    if name in (SPLIT, *_IDENTITY):
        raise CommandError(
            ErrorCode.APIStrictError,
            f"{name} is not allowed with 'apiStrict: true' in API Version 1",
        )
    if name == CHANGE_STREAM:
        for option in ("showExpandedEvents", "showRawUpdateDescription", "showSystemEvents"):
            if stage[name].get(option) is not None:
                raise CommandError(
                    ErrorCode.APIStrictError,
                    f"The '{option}' parameter to $changeStream is not supported in API Version 1",
                )


def check_arguments(pipeline: Sequence[Mapping[str, Any]]) -> None:
    """Check the stages' own arguments, as far as the router can."""
    for stage in pipeline:
        name = stage_name(stage)
        argument = stage[name]
        if name == "$match" and not isinstance(argument, Mapping):
            raise CommandError(15959, "the match filter must be an expression in an object")
        if name == _INHIBIT and not isinstance(argument, Mapping):
            raise CommandError(
                ErrorCode.TypeMismatch,
                f"{name} must take a nested object but found: {name}: {render(argument)}",
            )
        if name == _INHIBIT and argument:
            raise CommandError(
                ErrorCode.FailedToParse,
                f"{name} must take an empty object but found: {render(argument)}",
            )
        if name == _SHRED and not isinstance(argument, Mapping):
            raise CommandError(7997500, f"{name} specification must be an object")
        if name == _SHRED and argument:
            raise CommandError(7997501, f"{name} specification must be empty")
        if name == SPLIT and not (isinstance(argument, Mapping) and not argument):
            raise CommandError(7182800, f"{SPLIT} spec should be an empty object")


def check_positions(pipeline: Sequence[Mapping[str, Any]], *, in_event: bool) -> None:
    """Check the positions of the stages; raises mongos's CommandError.

    A stream that starts ``in_event``, after a fragment of it, must split events.
    """
    names = [stage_name(stage) for stage in pipeline]
    if CHANGE_STREAM in names[1:]:
        raise CommandError(
            40602,
            "$_internalChangeStreamOplogMatch is only valid as the first stage in a pipeline",
        )
    if names[:1] != [CHANGE_STREAM]:
        if SPLIT in names:
            raise CommandError(
                ErrorCode.IllegalOperation,
                f"{SPLIT} can only be used in a $changeStream pipeline",
            )
        return
    for position, name in enumerate(names[1:], start=1):
        if name not in _ALLOWED:
            raise CommandError(
                ErrorCode.IllegalOperation, f"{name} is not permitted in a $changeStream pipeline"
            )
        if name == SPLIT and position != len(names) - 1:
            raise CommandError(7182802, f"{SPLIT} must be the last stage in the pipeline")
    if SPLIT in names and not set(names).isdisjoint(_IDENTITY):
        raise CommandError(
            7182803, f"{SPLIT} is at the wrong position in the pipeline after optimization"
        )
    if in_event and SPLIT not in names:
        raise CommandError(
            ErrorCode.ChangeStreamFatalError,
            "To resume from a split event, the $changeStream pipeline must include a "
            f"{SPLIT} stage",
        ).with_change_stream_label()


def check_document(name: str, value: Any) -> None:
    """Check that an aggregate's field is a document."""
    if not isinstance(value, Mapping):
        raise wrong_type(f"aggregate.{name}", value, "object")

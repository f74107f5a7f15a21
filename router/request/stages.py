"""The stages of a change stream: which are allowed (docs/protocol.md#opening), and the recognition
of change stream commands by them, from raw BSON."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from router.bson_text import render, shortened
from shard_client.bson.values import ARRAY, DOCUMENT
from shard_client.wire.bson_slices import Element, iter_elements

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

_MOST_FIELDS: Final = 1000
"""Maximum of inspected fields of a command; a pipeline beyond them is not recognized."""

MOST_STAGES: Final = 1000
"""Maximum of stages: servers refuse longer pipelines (internalPipelineLengthLimit's default)."""

_MOST_NAMES: Final = 2
"""Maximum of inspected fields of a stage, which may have only one."""

_INTERNAL_PREFIX: Final = "$_internal"
_LONGEST_SHOWN: Final = 80


def stage_name(stage: Mapping[str, Any]) -> str:
    """Return the name of a stage, a document with at least one field."""
    return next(iter(stage))


def concerns_change_streams(name: str) -> bool:
    """Return whether the stage named ``name`` concerns change streams."""
    return name in (CHANGE_STREAM, SPLIT) or name.startswith(_INTERNAL_PREFIX + "ChangeStream")


def brief(value: Any) -> str:
    """Return the beginning of a value as text, for our messages."""
    return shortened(render(value), _LONGEST_SHOWN)


def stages_problem(stages: Sequence[Mapping[str, Any]], *, strict: bool) -> str | None:
    """Return what the router does not know of the stages after ``$changeStream``; None if nothing.

    Args:
        stages: the stages, documents.
        strict: whether the client declares API version 1 as strict.
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


def is_change_stream(command: bytes) -> bool:
    """Return whether an ``aggregate`` concerns a change stream, valid or not.

    True for any pipeline with a change stream's stages, even at positions that are not allowed:
    ``parse_request`` raises the error for these. Raises ProtocolError if the inspected part of the
    command is malformed.
    """
    return _is_change_stream(command, 0, len(command))


def explains_change_stream(command: bytes) -> bool:
    """Return whether an ``explain`` concerns a change stream; raises ProtocolError as above."""
    inner = next(iter_elements(command), None)
    if inner is None or inner.type != DOCUMENT:
        return False
    first = next(iter_elements(command, inner.start, inner.end), None)
    if first is None or first.name != b"aggregate":
        return False
    return _is_change_stream(command, inner.start, inner.end)


def _is_change_stream(command: bytes, start: int, limit: int) -> bool:
    return any(
        element.type == ARRAY and _names_stage(command, element)
        for element in islice(iter_elements(command, start, limit), _MOST_FIELDS)
        if element.name == b"pipeline"
    )


def _names_stage(command: bytes, pipeline: Element) -> bool:
    return any(
        concerns_change_streams(name.name.decode(errors="replace"))
        for stage in islice(iter_elements(command, pipeline.start, pipeline.end), MOST_STAGES)
        if stage.type == DOCUMENT
        for name in islice(iter_elements(command, stage.start, stage.end), _MOST_NAMES)
    )

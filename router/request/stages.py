"""The stages allowed in a change stream's pipeline, by position (docs/protocol.md#opening)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.bson_text import render, shortened

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

"""Events that servers cannot send whole: Debezium's `cursor.oversize.handling.mode`.

With `errors.tolerance=all` no event fails the stream: one that is too large comes in fragments, and
one whose image is not stored comes without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_sink.errors import OptionError
from spark_sink.options import values
from spark_sink.options.names import GetOption

SPLIT_STAGE = "$changeStreamSplitLargeEvent"

_MODE = "cursor.oversize.handling.mode"
_THRESHOLD = "cursor.oversize.skip.threshold"
_TOLERANCE = "errors.tolerance"
OVERSIZE_OPTIONS = (_MODE, _THRESHOLD, _TOLERANCE)
"""The names of the options."""

Stages = tuple[Mapping[str, Any], ...]


def oversize_stages(get: GetOption, pipeline: Stages) -> tuple[Stages, Stages]:
    """Return the stages that skip large events, and the pipeline with the stage that splits them.

    Raises OptionError.
    """
    mode = get(_MODE, values.one_of("fail", "skip", "split"), "split" if tolerant(get) else "fail")
    threshold = get(_THRESHOLD, values.whole_number, 0)
    if (mode == "skip") != bool(threshold):
        raise OptionError(
            f"{_MODE}=skip requires option {_THRESHOLD!r}, a number of bytes, and vice versa"
        )
    if mode == "split" and not (pipeline and SPLIT_STAGE in pipeline[-1]):
        return (), (*pipeline, {SPLIT_STAGE: {}})
    if mode == "skip":
        return (_only_up_to(threshold),), pipeline
    return (), pipeline


def tolerant(get: GetOption) -> bool:
    """Return whether no event may fail the stream. Raises OptionError."""
    return bool(get(_TOLERANCE, values.one_of("none", "all"), "none") == "all")


def image_mode(get: GetOption, name: str) -> str | None:
    """Return a mode of images; an image that is required may be missing if it must not fail.

    Raises OptionError.
    """
    mode: str | None = get(name, values.some_text, None)
    return "whenAvailable" if mode == "required" and tolerant(get) else mode


def _only_up_to(size: int) -> Mapping[str, Any]:
    """Return a stage that drops events with a document of more than `size` bytes."""
    small = [
        {"$lte": [{"$bsonSize": f"${name}"}, size]}  # null where there is no document
        for name in ("fullDocument", "fullDocumentBeforeChange")
    ]
    return {"$match": {"$expr": {"$and": small}}}

"""Events that are too large for a reply: Debezium's `cursor.oversize.handling.mode`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_sink import option_values as values
from spark_sink.errors import OptionError
from spark_sink.option_names import GetOption

SPLIT_STAGE = "$changeStreamSplitLargeEvent"

_MODE = "cursor.oversize.handling.mode"
_THRESHOLD = "cursor.oversize.skip.threshold"
OVERSIZE_OPTIONS = (_MODE, _THRESHOLD)
"""The names of the options."""

Stages = tuple[Mapping[str, Any], ...]


def oversize_stages(get: GetOption, pipeline: Stages) -> tuple[Stages, Stages]:
    """The stages that skip events with large documents, and the pipeline, which may split events.

    There are the former in the mode `skip`; the mode `split` appends a stage to the pipeline.

    Raises OptionError.
    """
    mode = get(_MODE, _mode, "fail")
    threshold = get(_THRESHOLD, values.whole_number, 0)
    if (mode == "skip") != bool(threshold):
        raise OptionError(
            f"{_MODE}=skip and option {_THRESHOLD!r}, a positive number of bytes, need each other"
        )
    if mode == "split" and not (pipeline and SPLIT_STAGE in pipeline[-1]):
        return (), (*pipeline, {SPLIT_STAGE: {}})
    if mode == "skip":
        return (_only_up_to(threshold),), pipeline
    return (), pipeline


def _only_up_to(size: int) -> Mapping[str, Any]:
    """A stage that drops events with a document of more than `size` bytes."""
    small = [
        {"$lte": [{"$bsonSize": f"${name}"}, size]}  # null where there is no document
        for name in ("fullDocument", "fullDocumentBeforeChange")
    ]
    return {"$match": {"$expr": {"$and": small}}}


def _mode(text: str) -> str:
    if text.lower() not in ("fail", "skip", "split"):
        raise ValueError(f"must be fail, skip or split, not {text!r}")
    return text.lower()

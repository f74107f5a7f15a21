"""Events that servers cannot send whole: Debezium's `cursor.oversize.handling.mode`.

With `errors.tolerance=all` no event fails the stream: one that is too large comes in fragments, and
one whose image is not stored comes without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_sink.errors import OptionError
from spark_sink.options import values
from spark_sink.options.names import option

SPLIT_STAGE = "$changeStreamSplitLargeEvent"

_MODE = "cursor.oversize.handling.mode"
_THRESHOLD = "cursor.oversize.skip.threshold"
Stages = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class OversizeOptions:
    """What happens to large events, and whether no event may fail the stream.

    `mode` is fail, skip or split, and by default split if the stream is tolerant; `threshold` are
    the bytes of a document from which on an event is skipped.
    """

    mode: str | None = option(_MODE, values.one_of("fail", "skip", "split"), None)
    threshold: int = option(_THRESHOLD, values.whole_number, 0)
    tolerant: bool = option("errors.tolerance", values.switch("none", "all"), False)

    def stages(self, pipeline: Stages) -> tuple[Stages, Stages]:
        """Return the stages that skip large events, and the pipeline with that which splits them.

        Raises OptionError.
        """
        mode = self.mode or ("split" if self.tolerant else "fail")
        if (mode == "skip") != bool(self.threshold):
            raise OptionError(
                f"{_MODE}=skip requires option {_THRESHOLD!r}, a number of bytes, and vice versa"
            )
        if mode == "split" and not (pipeline and SPLIT_STAGE in pipeline[-1]):
            return (), (*pipeline, {SPLIT_STAGE: {}})
        return ((_only_up_to(self.threshold),) if mode == "skip" else ()), pipeline

    def image_mode(self, mode: str | None) -> str | None:
        """Return a mode of images; a required image may be missing if it must not fail."""
        return "whenAvailable" if mode == "required" and self.tolerant else mode


def _only_up_to(size: int) -> Mapping[str, Any]:
    """Return a stage that drops events with a document of more than `size` bytes."""
    small = [
        {"$lte": [{"$bsonSize": f"${name}"}, size]}  # null where there is no document
        for name in ("fullDocument", "fullDocumentBeforeChange")
    ]
    return {"$match": {"$expr": {"$and": small}}}

"""Recognition of change stream commands from raw BSON, without decoding."""

from itertools import islice
from typing import Final

from router.request.stages import concerns_change_streams
from shard_client.bson.values import ARRAY, DOCUMENT
from shard_client.wire.bson_slices import Element, iter_elements

_MOST_FIELDS: Final = 1000
"""Maximum of inspected fields of a command; a pipeline beyond them is not recognized."""

_MOST_STAGES: Final = 1000
"""Maximum of inspected stages; servers reject longer pipelines (internalPipelineLengthLimit)."""

_MOST_NAMES: Final = 2
"""Maximum of inspected fields of a stage, which may have only one."""


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
        for stage in islice(iter_elements(command, pipeline.start, pipeline.end), _MOST_STAGES)
        if stage.type == DOCUMENT
        for name in islice(iter_elements(command, stage.start, stage.end), _MOST_NAMES)
    )

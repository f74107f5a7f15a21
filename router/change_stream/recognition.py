"""Which commands are about change streams, told from the raw command: nothing is decoded."""

from itertools import islice
from typing import Final

from router.change_stream.stages import concerns_change_streams
from shard_client.wire.bson_slices import ARRAY, DOCUMENT, Element, iter_elements

_MOST_FIELDS: Final = 1000
"""Fields of a command that are looked at; what has more is not the router's."""

_MOST_STAGES: Final = 1000
"""Servers refuse longer pipelines (internalPipelineLengthLimit)."""

_MOST_NAMES: Final = 2
"""Fields of a stage that are looked at: it may have one only."""


def is_change_stream(command: bytes) -> bool:
    """Tell whether an ``aggregate`` is about a change stream, rightly or wrongly formed.

    True for any pipeline that names a change stream's stages, also where they may not stand:
    ``parse_request`` has the error for these. Raises ProtocolError if the command is malformed as
    far as it is looked at.
    """
    return _is_change_stream(command, 0, len(command))


def explains_change_stream(command: bytes) -> bool:
    """Tell whether an ``explain`` is about a change stream; raises ProtocolError as above."""
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

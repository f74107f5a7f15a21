"""Which commands concern change streams: they are recognised by their stages, from raw BSON."""

from itertools import islice
from typing import Final

from router.request.accepted import CHANGE_STREAM, SPLIT
from shard_client.bson.values import ARRAY, DOCUMENT
from shard_client.wire.bson_slices import Element, iter_elements

_NAMES: Final = (CHANGE_STREAM.encode(), SPLIT.encode())
_INTERNAL: Final = b"$_internalChangeStream"
"""The stages of change streams: their names, and what those of internal ones begin with."""

_MOST_FIELDS: Final = 1000
"""Maximum of inspected fields of a command; a pipeline beyond them is not recognized."""

MOST_STAGES: Final = 1000
"""Maximum of stages: servers refuse longer pipelines (internalPipelineLengthLimit's default)."""

_MOST_NAMES: Final = 2
"""Maximum of inspected fields of a stage, which may have only one."""


def explained(command: bytes) -> tuple[int, int]:
    """Return the bounds of the command that an ``explain`` nests, else of the command itself.

    Raises ProtocolError if its first field is malformed.
    """
    first = next(iter_elements(command), None)
    if first is not None and first.name == b"explain" and first.type == DOCUMENT:
        return first.start, first.end
    return 0, len(command)


def is_change_stream(command: bytes) -> bool:
    """Return whether an ``aggregate``, or its ``explain``, concerns a change stream, valid or not.

    True for any pipeline with a change stream's stages, even at positions that are not allowed:
    ``parse_request`` raises the error for these. Raises ProtocolError if the inspected part of the
    command is malformed.
    """
    fields = [*islice(iter_elements(command, *explained(command)), _MOST_FIELDS)]
    return bool(fields and fields[0].name == b"aggregate") and any(
        element.type == ARRAY and _names_stage(command, element)
        for element in fields
        if element.name == b"pipeline"
    )


def _names_stage(command: bytes, pipeline: Element) -> bool:
    return any(
        name.name in _NAMES or name.name.startswith(_INTERNAL)
        for stage in islice(iter_elements(command, pipeline.start, pipeline.end), MOST_STAGES)
        if stage.type == DOCUMENT
        for name in islice(iter_elements(command, stage.start, stage.end), _MOST_NAMES)
    )

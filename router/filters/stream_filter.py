"""A stream's filter: the stages of a pipeline that the router evaluates itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import bson
from bson.errors import InvalidBSON, InvalidDocument

from router.filters.conditions import Condition, all_of
from router.filters.field_walk import Allowance
from router.filters.match_compiler import Declined, MatchCompiler
from router.filters.projection import Projection, compile_project, compile_unset
from shard_client.bson.values import DOCUMENT
from shard_client.errors import ProtocolError
from shard_client.wire.bson_slices import find

_MOST_BYTES: Final = 64 * 1024
_MOST_STAGES: Final = 100


@dataclass(frozen=True, slots=True, eq=False)
class StreamFilter:
    """The stages of a stream as a condition on events and the projections that follow it.

    ``identity`` is equal for filters of equal stages that are evaluated alike.
    """

    identity: bytes
    condition: Condition
    projections: Sequence[Projection]

    def project(self, event: bytes, allowance: Allowance | None = None) -> bytes:
        """Return an event that meets the condition as the stream shows it.

        ``allowance`` is what all projections of the event share, by default one of its own. Raises
        ValueError, IndexError or struct.error if the event is malformed, and TooLargeError, a
        ValueError, if the allowance is not enough.
        """
        allowance = allowance or Allowance()
        for projection in self.projections:
            event = projection.apply(event, allowance)
        return event


EVERYTHING: Final = StreamFilter(b"", all_of(()), ())
"""The filter of a stream without stages."""


def compile_filter(
    stages: Sequence[Mapping[str, Any]], *, undefined_is_null: bool = True
) -> StreamFilter:
    """Return the filter of a change stream's stages, which have been checked for their names.

    ``undefined_is_null`` is whether null equals undefined on the servers, as it does before MongoDB
    8.0. Raises Declined, with the reason, if the shards must evaluate the stages.
    """
    if not stages:
        raise Declined("it has no filter")
    if len(stages) > _MOST_STAGES:
        raise Declined("it has many stages")
    try:
        raw = [bson.encode(dict(stage)) for stage in stages]
    except (InvalidDocument, OverflowError, ValueError) as error:
        raise Declined("its stages cannot be encoded") from error
    identity = b"".join(raw) + (b"" if undefined_is_null else b"8")
    if len(identity) > _MOST_BYTES:
        raise Declined("its stages are very large")
    compiler = MatchCompiler(undefined_is_null=undefined_is_null)
    conditions: list[Condition] = []
    projections: list[Projection] = []
    try:
        for stage, encoded in zip(stages, raw, strict=True):
            name = next(iter(stage))
            operand = find(encoded, name.encode())
            if operand is None:
                raise Declined("a stage is empty")
            if name == "$match" and operand.type == DOCUMENT:
                if projections:
                    raise Declined("a $match follows a projection")
                conditions.append(compiler.compile(encoded[operand.start : operand.end]))
            elif name == "$project" and operand.type == DOCUMENT:
                projections.append(compile_project(encoded[operand.start : operand.end]))
            elif name == "$unset":
                projections.append(compile_unset(encoded, operand))
            else:
                raise Declined(f"it has {name}")
    except (ProtocolError, InvalidBSON, ValueError) as error:
        raise Declined("its stages are malformed") from error
    return StreamFilter(identity, all_of(conditions), tuple(projections))

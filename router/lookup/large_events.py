"""Stages on events that are larger than a document.

A server evaluates stages on whole events of any size in memory, but no command can carry one that
is larger than a document. So each condition is evaluated on the fields that it reads, and, if these
are too large together, its operands are evaluated one by one. The router itself removes fields.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.filters.bounds import MOST_WORK, UNIT_BYTES, Allowance
from router.filters.match_compiler import Declined
from router.filters.stream_filter import compile_filter
from router.lookup.events import too_large
from router.request.event_conditions import reads_of
from shard_client.wire.bson_slices import document_of, iter_elements

Condition = Mapping[str, Any]

_KEPT: Final = frozenset({b"_id"})

_LOGICAL: Final[Mapping[str, tuple[bool, bool]]] = {
    "$and": (False, False),
    "$or": (True, True),
    "$nor": (True, False),
}
"""The result of an operand that decides, and the condition's result then."""

_COPIES: Final = 4
"""How often a projection may copy an event: once for each level of nesting that it enters."""


def part_for(condition: Condition, event: bytes) -> bytes:
    """Return the event with its ``_id`` and the fields that a condition may read alone."""
    reads = reads_of(condition)
    if reads is None:
        return event
    wanted = {name.encode() for name in reads.fields} | _KEPT
    fields = [
        event[start - len(name) - 2 : end]
        for _, name, start, end in iter_elements(event)
        if name in wanted
    ]
    return document_of(b"".join(fields))


def operands_of(condition: Condition) -> tuple[Sequence[Condition], bool, bool] | None:
    """Return the conditions that a condition consists of, None if it is a single one.

    If one of them has the second value as its result, the condition's result is the third value,
    otherwise the opposite of that.
    """
    if len(condition) > 1:
        return [{name: value} for name, value in condition.items()], *_LOGICAL["$and"]
    for name, value in condition.items():
        if name in _LOGICAL:
            return value, *_LOGICAL[name]
    return None


def projected(stage: Mapping[str, Any], event: bytes) -> bytes:
    """Return the event after a stage that keeps or removes fields.

    Raises CommandError 10334 if the router does not evaluate the stage.
    """
    allowance = Allowance(MOST_WORK + _COPIES * len(event) // UNIT_BYTES)
    try:
        return compile_filter([stage]).project(event, allowance)
    except (Declined, ValueError, IndexError, struct.error):
        raise too_large(event, len(event)) from None

"""Stages on events that are larger than a document.

A server evaluates stages on whole events of any size in memory, but no command can carry one that
is larger than a document. So each stage is evaluated on the fields that it uses. If those of a
condition are too large together, its operands are evaluated one by one. The router itself removes
fields.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from router.filters.bounds import MOST_WORK, UNIT_BYTES, Allowance
from router.filters.match_compiler import Declined
from router.filters.stream_filter import compile_filter
from router.request.event_conditions import fields_used
from shard_client.wire.bson_slices import document_of, iter_elements

Condition = Mapping[str, Any]

_KEPT: Final = frozenset({b"_id"})

_MARK_NAME: Final = b"the fields left out"
_MARK: Final = b"\x0a" + _MARK_NAME + b"\0"

_LOGICAL: Final[Mapping[str, tuple[bool, bool]]] = {
    "$and": (False, False),
    "$or": (True, True),
    "$nor": (True, False),
}
"""The result of an operand that decides, and the condition's result then."""

_COPIES: Final = 4
"""How often a projection may copy an event: once for each level of nesting that it enters."""


def part_for(stage: Mapping[str, Any], event: bytes) -> bytes:
    """Return the event with its ``_id`` and the fields alone that a stage may read or write.

    It is the whole event if any field may be used.
    """
    used = fields_used(stage)
    if used is None:
        return event
    wanted = {name.encode() for name in used} | _KEPT
    return document_of(b"".join(field for name, field in _fields(event) if name in wanted))


def marked(part: bytes) -> bytes:
    """Return a part of an event with a field that stands for the fields left out."""
    return document_of(part[4:-1] + _MARK)


def rejoined(event: bytes, part: bytes, result: bytes) -> bytes:
    """Return the event after a stage: ``result`` is the stage's result for ``part``, marked.

    If the mark is still there, the stage keeps the fields that it does not name. New fields come
    last, as on servers.
    """
    changed = dict(_fields(result))
    if changed.pop(_MARK_NAME, None) is None:
        return result
    used = {name for name, _ in _fields(part)}
    kept = [changed.pop(name, b"") if name in used else field for name, field in _fields(event)]
    return document_of(b"".join((*kept, *changed.values())))


def _fields(document: bytes) -> Iterator[tuple[bytes, bytes]]:
    for _, name, start, end in iter_elements(document):
        yield name, document[start - len(name) - 2 : end]


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


def projected(stage: Mapping[str, Any], event: bytes) -> bytes | None:
    """Return the event after a stage that keeps or removes fields; None if it does more."""
    allowance = Allowance(MOST_WORK + _COPIES * len(event) // UNIT_BYTES)
    try:
        return compile_filter([stage]).project(event, allowance)
    except (Declined, ValueError, IndexError, struct.error):
        return None

"""Conditions on events that are larger than a document: evaluated on a part of the event.

A server evaluates a ``$match`` on whole events of any size in memory, but no command can carry one
that is larger than a document. So each condition is evaluated on the fields that it reads; if these
are too large together, by the router itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.filters.bounds import TooLargeError
from router.filters.index import FilterIndex
from router.filters.match_compiler import Declined
from router.filters.stream_filter import compile_filter
from router.request.event_conditions import conjuncts, reads_of
from router.request.stages import stage_name
from shard_client.wire.bson_slices import document_of, iter_elements

_KEPT: Final = frozenset({b"_id"})


def conditions_of(stages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """Return the conditions that an event must meet; None if a stage does more than select."""
    conditions: list[Mapping[str, Any]] = []
    for stage in stages:
        if stage_name(stage) != "$match":
            return None
        conditions += conjuncts(stage["$match"], lambda condition: reads_of(condition) is not None)
    return conditions


def part_for(condition: Mapping[str, Any], event: bytes) -> bytes:
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


def meets(condition: Mapping[str, Any], event: bytes) -> bool | None:
    """Return whether an event meets a condition, None if the router does not evaluate it.

    Nor does it if versions of MongoDB differ in it, by their null.
    """
    results = set()
    for undefined_is_null in (True, False):
        index: FilterIndex[None] = FilterIndex()
        try:
            stages = [{"$match": condition}]
            index.add(None, compile_filter(stages, undefined_is_null=undefined_is_null))
            results.add(bool(index.route([event])))
        except (Declined, TooLargeError):
            return None
    return results.pop() if len(results) == 1 else None

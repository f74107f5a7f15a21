"""The ranges of shard keys that a query filter can match, the basis of targeting."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from bson import MaxKey, MinKey, Regex

from embedded.mongos.shard_key import KeyValues, ShardKey

_MOST_RANGES = 1_000
"""A query with more ranges is sent to every shard."""

_LOWEST, _HIGHEST = MinKey(), MaxKey()

Values = tuple[Any, ...]


@dataclass(frozen=True)
class KeyRange:
    """The keys from ``low`` to ``high``, both included."""

    low: KeyValues
    high: KeyValues


@dataclass(frozen=True)
class _Bounds:
    """A filter's condition on one field: one of some values, or a value between two ends."""

    points: Values | None = None
    low: Any = _LOWEST
    high: Any = _HIGHEST


def key_ranges(key: ShardKey, filter_: Mapping[str, Any]) -> list[KeyRange] | None:
    """Return ranges that contain every shard key that ``filter_`` matches; ``None`` means all keys.

    The ranges may contain keys that the filter does not match (ends are always included).
    """
    alternatives = _alternatives(filter_)
    ranges: list[KeyRange] = []
    for clauses in alternatives:
        found = _ranges_of(key, clauses)
        if found is None:
            return None
        ranges += found
        if len(ranges) > _MOST_RANGES:
            return None
    return ranges


def exact_key(key: ShardKey, filter_: Mapping[str, Any]) -> KeyValues | None:
    """Return the shard key that ``filter_`` determines by equality, else ``None``."""
    bounds = _field_bounds(_conjunction(filter_))
    values = []
    for field in key.fields:
        known = bounds.get(field)
        if known is None or known.points is None or len(known.points) != 1:
            return None
        values.append(known.points[0])
    return key.placed(tuple(values))


def _ranges_of(key: ShardKey, clauses: list[tuple[str, Any]]) -> list[KeyRange] | None:
    bounds = _field_bounds(clauses)
    prefixes: list[Values] = []
    tail: _Bounds | None = None
    for field, kind in key.pattern.items():
        known = bounds.get(field)
        if known is None:
            break
        if known.points is None:
            tail = None if kind == "hashed" else known
            break
        prefixes.append(known.points)
    if not prefixes and tail is None:
        return None
    size = 1
    for points in prefixes:
        size *= len(points)
    if size > _MOST_RANGES:
        return None
    return [_range(key, values, tail) for values in product(*prefixes)]


def _range(key: ShardKey, prefix: Values, tail: _Bounds | None) -> KeyRange:
    width = len(key.fields)
    head = key.placed(prefix)
    if len(head) == width:
        return KeyRange(head, head)
    low, high = (tail.low, tail.high) if tail else (_LOWEST, _HIGHEST)
    rest = width - len(head) - 1
    return KeyRange((*head, low, *(_LOWEST,) * rest), (*head, high, *(_HIGHEST,) * rest))


def _alternatives(filter_: Mapping[str, Any]) -> list[list[tuple[str, Any]]]:
    """Return the filter as a disjunction, with a top-level ``$or`` distributed over the rest."""
    clauses = _conjunction(filter_)
    choices = [branches for name, branches in clauses if name == "$or"]
    plain = [clause for clause in clauses if clause[0] != "$or"]
    if len(choices) != 1 or not isinstance(choices[0], list):
        return [plain]
    return [plain + _conjunction(branch) for branch in choices[0]]


def _conjunction(filter_: Mapping[str, Any]) -> list[tuple[str, Any]]:
    clauses: list[tuple[str, Any]] = []
    for name, condition in filter_.items():
        if name == "$and" and isinstance(condition, list):
            for inner in condition:
                clauses += _conjunction(inner)
        else:
            clauses.append((name, condition))
    return clauses


def _field_bounds(clauses: Iterable[tuple[str, Any]]) -> dict[str, _Bounds]:
    bounds: dict[str, _Bounds] = {}
    for field, condition in clauses:
        if field.startswith("$"):
            continue
        for found in _bounds_of(condition):
            before = bounds.get(field)
            bounds[field] = found if before is None else _narrower(before, found)
    return bounds


def _bounds_of(condition: Any) -> list[_Bounds]:
    if isinstance(condition, Regex):
        return []
    if not isinstance(condition, Mapping) or not _is_operators(condition):
        return [] if isinstance(condition, list) else [_Bounds(points=(condition,))]
    found = []
    for operator, operand in condition.items():
        match operator:
            case "$eq" if not isinstance(operand, list | Regex):
                found.append(_Bounds(points=(operand,)))
            case "$in" if isinstance(operand, list) and _all_plain(operand):
                found.append(_Bounds(points=tuple(operand)))
            case "$gt" | "$gte":
                found.append(_Bounds(low=operand))
            case "$lt" | "$lte":
                found.append(_Bounds(high=operand))
    return found


def _narrower(one: _Bounds, other: _Bounds) -> _Bounds:
    """Return the narrower bound: values before ends, given ends before open ends.

    The result is never narrower than the conjunction of both.
    """
    if one.points is not None and other.points is not None:
        return min(one, other, key=lambda bounds: len(bounds.points or ()))
    if one.points is not None:
        return one
    if other.points is not None:
        return other
    low = one.low if isinstance(other.low, MinKey) else other.low
    high = one.high if isinstance(other.high, MaxKey) else other.high
    return _Bounds(low=low, high=high)


def _is_operators(condition: Mapping[str, Any]) -> bool:
    first = next(iter(condition), "")
    return first.startswith("$") and first not in ("$ref", "$id", "$db")


def _all_plain(values: Sequence[Any]) -> bool:
    return not any(isinstance(value, list | Regex) for value in values)

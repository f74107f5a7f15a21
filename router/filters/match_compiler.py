"""Compiling a ``$match`` into a condition, for the class of filters that the router evaluates.

The class: comparisons, ``$in``, ``$exists``, ``$type``, prefixes by ``$regex``, and the logical
operators, on certain fields of an event. What is outside, or might be invalid, is declined: then
the shards evaluate it, and report its errors.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from router.filters.conditions import (
    Condition,
    Test,
    all_of,
    any_of,
    comparable,
    equals_any,
    exists,
    none_of,
    of_types,
    ordered,
    price_of,
    some,
    starts_with,
)
from router.filters.field_walk import Path
from router.filters.values import NAN_KEY, NULL_KEY, NUMBERS, UNDEFINED_KEY, is_nested, key, number
from shard_client.bson.values import (
    ARRAY,
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    NULL,
    OBJECT_ID,
    REGEX,
    STRING,
    TIMESTAMP,
    TYPE_NAMES,
)
from shard_client.wire.bson_slices import Element, iter_elements

_MOST_CONDITIONS: Final = 100
"""What an event may cost for one filter: about 50 µs."""

_MOST_VALUES: Final = 10_000
_MOST_DEPTH: Final = 20
_LONGEST_NUMBER: Final = 16
"""Bytes of the longest number: operands that are shorter may equal it."""

_WHOLE: Final = frozenset({b"operationType"})
_ROOTS: Final = (
    (b"ns",),
    (b"to",),
    (b"documentKey",),
    (b"fullDocument",),
    (b"fullDocumentBeforeChange",),
    (b"updateDescription", b"updatedFields"),
)
"""Fields of an event that conditions may name, with all that is inside them."""

_EQUAL: Final = frozenset(
    {
        DOUBLE, STRING, DOCUMENT, ARRAY, BINARY, OBJECT_ID, BOOLEAN, DATE, NULL, INT32, TIMESTAMP,
        INT64, DECIMAL,
    }
)  # fmt: skip
"""Types of operands of equality."""

_ORDERED: Final = frozenset(
    {DOUBLE, STRING, OBJECT_ID, BOOLEAN, DATE, INT32, TIMESTAMP, INT64, DECIMAL}
)
"""Types of operands of ``$gt`` and similar operators."""

_ORDERINGS: Final[Mapping[bytes, Callable[[Any, Any], bool]]] = {
    b"$gt": operator.gt,
    b"$gte": operator.ge,
    b"$lt": operator.lt,
    b"$lte": operator.le,
}

_TYPES_BY_NAME: Final[Mapping[bytes, frozenset[int]]] = {
    **{name.encode(): frozenset({kind}) for kind, name in TYPE_NAMES.items()},
    b"number": NUMBERS,
}

_PLAIN: Final = frozenset(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-/:;,=@#%&!<>~'\"`"
)
"""Characters that stand for themselves in a regular expression, outside brackets."""


class Declined(Exception):  # noqa: N818
    """The filter is outside the class that the router evaluates; the message says why."""


class MatchCompiler:
    """Compiles ``$match`` stages; one instance bounds the conditions of one pipeline.

    ``undefined_is_null`` is whether null equals undefined (docs/protocol.md#filters).
    """

    def __init__(self, *, undefined_is_null: bool) -> None:
        self._undefined_is_null = undefined_is_null
        self._conditions = 0
        self._values = 0

    def compile(self, match: bytes) -> Condition:
        """Return the condition of a ``$match``, given as BSON. Raises Declined."""
        return self._document(match, 0, len(match), 0)

    def _document(self, raw: bytes, start: int, end: int, depth: int) -> Condition:
        if depth > _MOST_DEPTH:
            raise Declined("its conditions nest deeply")
        parts: list[Condition] = []
        for child in iter_elements(raw, start, end):
            if child.name in (b"$and", b"$or", b"$nor"):
                parts.append(self._logical(raw, child, depth))
            elif child.name == b"$comment" and child.type == STRING:
                continue
            elif child.name.startswith(b"$"):
                raise Declined(f"it has {child.name.decode(errors='replace')}")
            else:
                parts.append(self._field(_path(child.name), raw, child, depth))
        return all_of(parts)

    def _logical(self, raw: bytes, element: Element, depth: int) -> Condition:
        if element.type != ARRAY:
            raise Declined("a logical operator has no array")
        parts: list[Condition] = []
        for child in iter_elements(raw, element.start, element.end):
            if child.type != DOCUMENT:
                raise Declined("a logical operator's array has something else than conditions")
            parts.append(self._document(raw, child.start, child.end, depth + 1))
        if not parts:
            raise Declined("a logical operator's array is empty")
        if element.name == b"$and":
            return all_of(parts)
        either = any_of(parts)
        return either if element.name == b"$or" else none_of(either)

    def _field(self, path: Path, raw: bytes, element: Element, depth: int) -> Condition:
        """Compile ``path: value`` or ``path: {$operator: value, …}``."""
        if element.type == REGEX:
            return self._regex(path, raw, element)
        if element.type == DOCUMENT:
            first = next(iter_elements(raw, element.start, element.end), None)
            if first is not None and first.name.startswith(b"$"):
                return self._operators(path, raw, element, depth)
        return self._equal(path, raw, [element])

    def _operators(self, path: Path, raw: bytes, element: Element, depth: int) -> Condition:
        if depth > _MOST_DEPTH:
            raise Declined("its conditions nest deeply")
        elements = list(iter_elements(raw, element.start, element.end))
        names = [condition.name for condition in elements]
        parts: list[Condition] = []
        for condition in elements:
            if condition.name == b"$options":
                length = condition.end - condition.start
                if b"$regex" not in names or (condition.type, length) != (STRING, 5):
                    raise Declined("a regular expression has options")
                continue
            parts.append(self._operator(path, raw, condition, depth))
        if not parts or len(set(names)) != len(names):
            raise Declined("an operator is repeated or missing")
        return all_of(parts)

    def _operator(self, path: Path, raw: bytes, element: Element, depth: int) -> Condition:
        name = element.name
        if name in (b"$eq", b"$ne"):
            equal = self._equal(path, raw, [element])
            return equal if name == b"$eq" else none_of(equal)
        if name in (b"$in", b"$nin"):
            if element.type != ARRAY:
                raise Declined("$in has no array")
            equal = self._equal(path, raw, list(iter_elements(raw, element.start, element.end)))
            return equal if name == b"$in" else none_of(equal)
        if name in _ORDERINGS:
            return self._ordering(path, raw, element)
        if name == b"$exists":
            return self._exists(path, raw, element)
        if name == b"$type":
            return self._some(path, of_types(_kinds(raw, element)), 0)
        if name == b"$regex":
            return self._regex(path, raw, element)
        if name == b"$not" and element.type == DOCUMENT:
            return none_of(self._operators(path, raw, element, depth + 1))
        raise Declined(f"it has {name.decode(errors='replace')}")

    def _equal(self, path: Path, raw: bytes, operands: list[Element]) -> Condition:
        self._count(len(operands))
        for operand in operands:
            _check_operand(raw, operand)
        keys = {key(raw, e.type, e.start, e.end) for e in operands}
        if NULL_KEY in keys and self._undefined_is_null:
            keys.add(UNDEFINED_KEY)
        longest = max([_LONGEST_NUMBER, *(e.end - e.start for e in operands)])
        nested = any(map(is_nested, keys))
        price = price_of(longest)
        return equals_any(path, frozenset(keys), longest, nested=nested, price=price)

    def _ordering(self, path: Path, raw: bytes, element: Element) -> Condition:
        kind = element.type
        if kind not in _ORDERED:
            raise Declined("an operand of a comparison is of a type without simple order")
        operand = comparable(raw, kind, element.start, element.end)
        if operand is NAN_KEY:
            raise Declined("an operand of a comparison is NaN")
        test = ordered(_ORDERINGS[element.name], kind, operand)
        return self._some(path, test, element.end - element.start)

    def _exists(self, path: Path, raw: bytes, element: Element) -> Condition:
        if element.type == BOOLEAN:
            wanted = bool(raw[element.start])
        elif element.type in (INT32, INT64):
            wanted = number(raw, element.type, element.start) != 0
        else:
            raise Declined("$exists is neither a boolean nor an integer")
        there = self._some(path, exists, 0)
        return there if wanted else none_of(there)

    def _regex(self, path: Path, raw: bytes, element: Element) -> Condition:
        if element.type == REGEX:
            stop = raw.index(0, element.start)
            pattern, options = raw[element.start : stop], raw[stop + 1 : element.end - 1]
        elif element.type == STRING:
            pattern, options = raw[element.start + 4 : element.end - 1], b""
        else:
            raise Declined("$regex is no expression")
        if options or not pattern.startswith(b"^") or not _PLAIN.issuperset(pattern[1:]):
            raise Declined("a regular expression is not a fixed prefix")
        self._count(1)
        return starts_with(path, pattern[1:], pattern + b"\0\0", price_of(len(pattern)))

    def _some(self, path: Path, test: Test, longest: int) -> Condition:
        """Return a condition; ``longest`` is the most bytes of a value that the test looks at."""
        self._count(1)
        return some(path, test, price_of(longest))

    def _count(self, values: int) -> None:
        self._conditions += 1
        self._values += values
        if self._conditions > _MOST_CONDITIONS or self._values > _MOST_VALUES:
            raise Declined(
                f"it has more than {_MOST_CONDITIONS} conditions or {_MOST_VALUES} values"
            )


def _path(name: bytes) -> Path:
    """Return the path ``name``; raises Declined unless conditions on it are exact."""
    path = tuple(name.split(b"."))
    if name in _WHOLE:
        return path
    if not any(path[: len(root)] == root for root in _ROOTS):
        raise Declined(f"the field {name.decode(errors='replace')} is left to the shards")
    for part in path:
        # A number in a path is an array's index or a field's name.
        if not part or part.isdigit() or part.startswith(b"$"):
            raise Declined(f"the path {name.decode(errors='replace')} is left to the shards")
    return path


def _check_operand(raw: bytes, element: Element) -> None:
    if element.type not in _EQUAL:
        raise Declined(f"a value has the type 0x{element.type:02x}")
    if element.type in (DOCUMENT, ARRAY):
        for inner in _all_inside(raw, element, 0):
            if inner.type not in _EQUAL or inner.name.startswith(b"$"):
                raise Declined("a document or array has values that are left to the shards")


def _all_inside(raw: bytes, element: Element, depth: int) -> Iterator[Element]:
    if depth > _MOST_DEPTH:
        raise Declined("a value nests deeply")
    for inner in iter_elements(raw, element.start, element.end):
        yield inner
        if inner.type in (DOCUMENT, ARRAY):
            yield from _all_inside(raw, inner, depth + 1)


def _kinds(raw: bytes, element: Element) -> frozenset[int]:
    """Return the BSON types that a ``$type`` names."""
    if element.type != ARRAY:
        return _kind(raw, element)
    each = [_kind(raw, one) for one in iter_elements(raw, element.start, element.end)]
    if not each:
        raise Declined("$type has an empty array")
    return frozenset().union(*each)


def _kind(raw: bytes, element: Element) -> frozenset[int]:
    if element.type == STRING:
        kinds = _TYPES_BY_NAME.get(raw[element.start + 4 : element.end - 1])
        if kinds is not None:
            return kinds
    elif element.type in (INT32, INT64, DOUBLE):
        code = number(raw, element.type, element.start)
        codes = {*range(1, 0x14), 0x7F, -1}
        if isinstance(code, (int, float)) and code in codes:
            return frozenset({int(code) & 0xFF})
    raise Declined("$type names an unknown type")

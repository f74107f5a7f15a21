"""Conditions on an event: what a ``$match`` of the supported class becomes.

Source: the query operators' documentation; docs/protocol.md#filters. The semantics are held
against a real mongod by tests/filters.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from router.filters.field_walk import DECIMAL_UNITS, NESTED_UNIT_BYTES, UNIT_BYTES, Path
from router.filters.layouts import EventFields
from router.filters.values import MISSING, NAN_KEY, NULL_KEY, NUMBERS, STRINGS, key, number
from shard_client.bson.values import CONTAINERS, DATE, DECIMAL, DOUBLE, INT64, REGEX, TIMESTAMP

Required = frozenset[tuple[Path, Hashable]]
"""Pairs of path and key: an event that meets a condition has one of the keys at its path."""

Test = Callable[[bytes, int, int, int], bool]
"""Whether an element passes, given the event's bytes, and its type, start and end."""

_MOST_PAIRS: Final = 1000
"""Most values by which an index finds a filter; one that names more is tried on every event."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on events.

    ``meets`` returns whether an event meets it, and raises TooLargeError. ``paths`` are those that
    it reads, once for each of its conditions on fields. ``required`` are pairs of which an event
    must have one to meet it; None if they are unknown, or too many for an index. ``certain`` is
    whether an event that has one of them meets it.
    """

    meets: Callable[[EventFields], bool]
    paths: Sequence[Path]
    required: Required | None = None
    certain: bool = False

    @property
    def tried(self) -> int:
        """How many conditions on fields an index tries on every event.

        0 if a value that it requires finds it (``FilterIndex``), unless most events have that
        value.
        """
        required = self.required
        selective = required is not None and (self.certain or _width(required)[0] < _MOST_EVENTS)
        return 0 if selective else len(self.paths)


def equals_any(
    path: Path, keys: frozenset[Hashable], longest: int, *, nested: bool, price: int
) -> Condition:
    """Return ``$eq`` and ``$in``: an element at ``path`` has one of the ``keys``.

    ``longest`` is the most bytes that a value may take to be one of them; ``nested`` is whether
    documents or arrays are among them. ``price`` is the work for one of the other values.
    """

    def meets(event: EventFields) -> bool:
        data = event.data
        for kind, start, end in event.at(path, price):
            if kind in CONTAINERS:
                if not nested:
                    continue
                event.spend((end - start) // NESTED_UNIT_BYTES)
            elif kind == DECIMAL:
                event.spend(DECIMAL_UNITS)
            elif end - start > longest:
                continue
            if key(data, kind, start, end) in keys:
                return True
        return False

    required = None
    if len(keys) <= _MOST_PAIRS:
        required = frozenset((path, key) for key in keys)
    return Condition(meets, (path,), required, certain=required is not None)


def some(path: Path, test: Test, price: int) -> Condition:
    """Return a test that some element at ``path`` passes: ``$gt``, ``$exists``, ``$type``, …

    ``price`` is the work for one element.
    """

    def meets(event: EventFields) -> bool:
        data = event.data
        for kind, start, end in event.at(path, price):  # noqa: SIM110 - a generator takes longer
            if test(data, kind, start, end):
                return True
        return False

    return Condition(meets, (path,))


def starts_with(path: Path, prefix: bytes, pattern: bytes, price: int) -> Condition:
    """Return whether a string at ``path`` starts with ``prefix``, or is the expression ``pattern``.

    ``pattern`` is the BSON value of the expression itself. A string that is not valid UTF-8 matches
    no expression. ``price`` is the work for one element, but for this check.
    """

    def meets(event: EventFields) -> bool:
        data = event.data
        for kind, start, end in event.at(path, price):
            if kind in STRINGS:
                if data.startswith(prefix, start + 4, end - 1):
                    event.spend((end - start) // UNIT_BYTES)
                    if _is_utf8(data, start + 4, end - 1):
                        return True
            elif kind == REGEX and data.startswith(pattern, start, end):
                return True
        return False

    return Condition(meets, (path,))


def price_of(longest: int) -> int:
    """Return the work of comparing a value with one of ``longest`` bytes, in units."""
    return 1 + longest // UNIT_BYTES


def all_of(parts: Sequence[Condition]) -> Condition:
    """Return ``$and``: all ``parts`` hold; without parts, every event meets it."""
    if len(parts) == 1:
        return parts[0]
    tests = [part.meets for part in parts]
    # Those of the part that is likely to let the fewest events through.
    required_by_parts = (part.required for part in parts if part.required is not None)
    return Condition(
        lambda event: all(meets(event) for meets in tests),
        _paths_of(parts),
        min(required_by_parts, key=_width, default=None),
    )


def any_of(parts: Sequence[Condition]) -> Condition:
    """Return ``$or``: at least one of the ``parts`` holds."""
    tests = [part.meets for part in parts]
    pairs_of_parts = [part.required for part in parts if part.required is not None]
    pairs = frozenset[tuple[Path, Hashable]]().union(*pairs_of_parts)
    required = pairs if len(pairs_of_parts) == len(parts) and len(pairs) <= _MOST_PAIRS else None
    return Condition(lambda event: any(meets(event) for meets in tests), _paths_of(parts), required)


def none_of(part: Condition) -> Condition:
    """Return ``$not``, ``$nor``, ``$ne`` and ``$nin``: ``part`` does not hold."""
    meets = part.meets
    return Condition(lambda event: not meets(event), part.paths)


def _paths_of(parts: Sequence[Condition]) -> Sequence[Path]:
    return tuple(path for part in parts for path in part.paths)


_MOST_EVENTS: Final = 2


def _width(pairs: Required) -> tuple[int, int]:
    """Order pairs by how much they let through.

    Many events have one namespace, most have one operation, or no field that is required as null.
    """
    return max((_coarseness(*pair) for pair in pairs), default=0), len(pairs)


def _coarseness(path: Path, value: Hashable) -> int:
    if path[0] == b"operationType" or value == NULL_KEY:
        return _MOST_EVENTS
    return path[0] == b"ns"


def exists(data: bytes, kind: int, start: int, end: int) -> bool:
    """Return whether the element is there."""
    return kind != MISSING


def of_types(kinds: frozenset[int]) -> Test:
    """Return the test for elements of the BSON types ``kinds``."""

    def test(data: bytes, kind: int, start: int, end: int) -> bool:
        return kind in kinds

    return test


def _is_utf8(data: bytes, start: int, end: int) -> bool:
    try:
        data[start:end].decode()
    except UnicodeDecodeError:
        return False
    return True


def ordered(compare: Callable[[Any, Any], bool], operand_kind: int, operand: Any) -> Test:
    """Return the test for elements of the operand's type that compare with ``operand``.

    ``operand`` is what ``comparable`` returns for the operand's value.
    """
    kinds = NUMBERS if operand_kind in NUMBERS else frozenset({operand_kind})
    if operand_kind in STRINGS:
        most = len(operand) + 1  # the first bytes decide

        def test_string(data: bytes, kind: int, start: int, end: int) -> bool:
            if kind not in STRINGS:
                return False
            return compare(data[start + 4 : min(end - 1, start + 4 + most)], operand)

        return test_string

    # To compare a decimal with a double takes up to ten times as long.
    exact = Decimal(operand) if operand_kind == DOUBLE else operand

    def test(data: bytes, kind: int, start: int, end: int) -> bool:
        if kind not in kinds:
            return False
        if kind == DECIMAL:
            value = number(data, kind, start)
            return value is not NAN_KEY and compare(value, exact)
        value = comparable(data, kind, start, end)
        return value is not NAN_KEY and compare(value, operand)

    return test


def comparable(data: bytes, kind: int, start: int, end: int) -> Any:
    """Return a value that orders among the values of its type as MongoDB orders them.

    For numbers, strings, symbols, ObjectIds, booleans, dates and timestamps. NaN gives NAN_KEY.
    """
    if kind in NUMBERS:
        return number(data, kind, start)
    if kind in STRINGS:
        return data[start + 4 : end - 1]
    if kind == DATE:
        return number(data, INT64, start)
    if kind == TIMESTAMP:
        return int.from_bytes(data[start:end], "little")
    return data[start:end]

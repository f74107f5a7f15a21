"""Conditions on an event: what a ``$match`` of the supported class becomes.

Source: the query operators' documentation; docs/protocol.md#filters. The semantics are held
against a real mongod by tests/filters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from router.filters.fields import DECIMAL_UNITS, NESTED_UNIT_BYTES, UNIT_BYTES, Path
from router.filters.paths import EventFields
from router.filters.values import (
    MISSING,
    NAN_KEY,
    NULL_KEY,
    NUMBERS,
    STRINGS,
    key,
    number,
    signed,
    unsigned,
)
from shard_client.bson.values import CONTAINERS, DATE, DECIMAL, DOUBLE, REGEX, TIMESTAMP

MOST_PAIRS: Final = 1000
"""Maximum of values by which an index finds a filter; one that names more is tried on every event.
"""

Required = frozenset[tuple[Path, Hashable]]
"""Pairs of path and key: an event that meets a condition has one of the keys at its path."""


class Condition(ABC):
    """A condition on events."""

    __slots__ = ()

    @abstractmethod
    def meets(self, event: EventFields) -> bool:
        """Return whether the event meets the condition. Raises TooLargeError."""

    @abstractmethod
    def paths(self) -> Iterator[Path]:
        """Yield the paths that ``meets`` reads."""

    def required(self) -> Required | None:
        """Return pairs of which an event must have one to meet the condition; None if unknown."""
        return None


@dataclass(frozen=True, slots=True)
class _OnPath(Condition):
    """A condition on the elements at ``path``."""

    path: Path

    def paths(self) -> Iterator[Path]:
        """Yield the paths that ``meets`` reads."""
        yield self.path


@dataclass(frozen=True, slots=True)
class OneOf(_OnPath):
    """``$eq`` and ``$in``: an element at ``path`` has one of the ``keys``.

    ``longest`` is the most bytes that a value may take to be one of them; ``nested`` is whether
    documents or arrays are among them. ``price`` is the work for one of the other values.
    """

    keys: frozenset[Hashable]
    longest: int
    nested: bool
    price: int

    def meets(self, event: EventFields) -> bool:
        """Return whether the event meets the condition."""
        data, keys, longest = event.data, self.keys, self.longest
        for kind, start, end in event.at(self.path, self.price):
            if kind in CONTAINERS:
                if not self.nested:
                    continue
                event.spend((end - start) // NESTED_UNIT_BYTES)
            elif kind == DECIMAL:
                event.spend(DECIMAL_UNITS)
            elif end - start > longest:
                continue
            if key(data, kind, start, end) in keys:
                return True
        return False

    def required(self) -> Required | None:
        """Return pairs of which an event must have one to meet the condition."""
        return frozenset((self.path, each) for each in self.keys)


@dataclass(frozen=True, slots=True)
class Some(_OnPath):
    """A test that some element at ``path`` passes: ``$gt``, ``$exists``, ``$type`` and others.

    ``price`` is the work for one element.
    """

    test: Callable[[bytes, int, int, int], bool]
    price: int

    def meets(self, event: EventFields) -> bool:
        """Return whether the event meets the condition."""
        data, test = event.data, self.test
        for kind, start, end in event.at(self.path, self.price):
            if test(data, kind, start, end):
                return True
        return False


@dataclass(frozen=True, slots=True)
class StartsWith(_OnPath):
    """A string at ``path`` starts with ``prefix``, or is the regular expression ``pattern``.

    ``pattern`` is the BSON value of the expression itself. A string that is not valid UTF-8 matches
    no expression. ``price`` is the work for one element, but for this check.
    """

    prefix: bytes
    pattern: bytes
    price: int

    def meets(self, event: EventFields) -> bool:
        """Return whether the event meets the condition."""
        data, prefix = event.data, self.prefix
        for kind, start, end in event.at(self.path, self.price):
            if kind in STRINGS:
                if data.startswith(prefix, start + 4, end - 1):
                    event.spend((end - start) // UNIT_BYTES)
                    if _is_utf8(data, start + 4, end - 1):
                        return True
            elif kind == REGEX and data.startswith(self.pattern, start, end):
                return True
        return False


def price_of(longest: int) -> int:
    """Return the work of comparing a value with one of ``longest`` bytes, in units."""
    return 1 + longest // UNIT_BYTES


@dataclass(frozen=True, slots=True)
class _OfParts(Condition):
    """A condition of several ``parts``."""

    parts: Sequence[Condition]

    def paths(self) -> Iterator[Path]:
        """Yield the paths that ``meets`` reads."""
        for part in self.parts:
            yield from part.paths()


@dataclass(frozen=True, slots=True)
class All(_OfParts):
    """``$and``: all ``parts`` hold; without parts, every event meets it."""

    def meets(self, event: EventFields) -> bool:
        """Return whether the event meets the condition."""
        return all(part.meets(event) for part in self.parts)

    def required(self) -> Required | None:
        """Return the pairs of the part that is likely to let the fewest events through."""
        known = [pairs for part in self.parts if (pairs := part.required()) is not None]
        return min(known, key=_width, default=None)


@dataclass(frozen=True, slots=True)
class AnyOf(_OfParts):
    """``$or``: at least one of the ``parts`` holds."""

    def meets(self, event: EventFields) -> bool:
        """Return whether the event meets the condition."""
        return any(part.meets(event) for part in self.parts)

    def required(self) -> Required | None:
        """Return the pairs of all parts, if each part has some."""
        pairs: set[tuple[Path, Hashable]] = set()
        for part in self.parts:
            of_part = part.required()
            if of_part is None:
                return None
            pairs |= of_part
        return frozenset(pairs)


@dataclass(frozen=True, slots=True)
class Not(Condition):
    """``$not``, ``$nor``, ``$ne``, ``$nin``: ``part`` does not hold."""

    part: Condition

    def meets(self, event: EventFields) -> bool:
        """Return whether the event meets the condition."""
        return not self.part.meets(event)

    def paths(self) -> Iterator[Path]:
        """Yield the paths that ``meets`` reads."""
        return self.part.paths()


def tried(condition: Condition) -> int:
    """Return how many conditions on fields an index tries on every event, for this condition.

    0 if a value that it requires finds it (``FilterIndex``), unless most events have that value.
    """
    required = condition.required()
    hashed = required is not None and len(required) <= MOST_PAIRS
    selective = isinstance(condition, OneOf) or _width(required or frozenset())[0] < _MOST_EVENTS
    return 0 if hashed and selective else sum(1 for _ in condition.paths())


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


def of_types(kinds: frozenset[int]) -> Callable[[bytes, int, int, int], bool]:
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


def ordered(
    compare: Callable[[Any, Any], bool], operand_kind: int, operand: Any
) -> Callable[[bytes, int, int, int], bool]:
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
        return signed(data, start)
    if kind == TIMESTAMP:
        return unsigned(data, start)
    return data[start:end]

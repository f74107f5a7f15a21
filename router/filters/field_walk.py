"""The fields that paths lead through, and the walk over a document that finds them.

An array along a path stands for its documents; an array at the end of a path stands for its
elements and for itself. A path that ends in nothing yields MISSING, but an array along the path
yields nothing for elements that are no documents. Source: docs/protocol.md#filters.

The work for the filters and projections of one event is counted, in units of about half a
microsecond: a field or an array element that is walked over or is missing, a value that a
condition looks at, a number of bytes. Beyond ``MOST_WORK``, some 15 ms, the event would delay all
clients: the shards decide then.
"""

from collections.abc import Hashable, Iterable
from typing import Final

from router.filters.values import MISSING
from shard_client.bson.values import ARRAY, DOCUMENT, value_end

MOST_WORK: Final = 30_000
"""Units for all filters that meet one event together, and again for all projections of it."""

UNIT_BYTES: Final = 512
"""Bytes of strings and binary data that are compared, decoded or copied for one unit."""

NESTED_UNIT_BYTES: Final = 4
"""Bytes of documents and arrays that are compared as a whole for one unit: they are walked over."""

DECIMAL_UNITS: Final = 4
"""Units for an equality with a decimal, besides that for any value."""


class TooLargeError(ValueError):
    """An event needs more work than the router does for its filters.

    ``owners`` are those of the filters that need most of it; a projection or a reading names none.
    """

    def __init__(self, owners: frozenset[Hashable] = frozenset()) -> None:
        super().__init__("an event is too large for the router's filters")
        self.owners = owners


class Allowance:
    """The units of work that are ``left`` for one event."""

    __slots__ = ("left",)

    def __init__(self, left: int = MOST_WORK) -> None:
        self.left = left

    def spend(self, units: int) -> None:
        """Do that much work. Raises TooLargeError if less is left."""
        self.left -= units
        if self.left < 0:
            raise TooLargeError


Path = tuple[bytes, ...]
"""The names of a dotted path."""

ValueSlice = tuple[int, int, int]
"""A value of an event: its type, and its start and end in the event's bytes."""

Value = tuple[int, bytes]
"""A value by itself: its type, and its bytes."""

NOTHING: Final[ValueSlice] = (MISSING, 0, 0)
"""Stands for the value of a path that ends in nothing."""


class Field:
    """A field to read: ``slot`` if a path ends here, ``inner`` if paths lead further.

    ``slots`` are those of all paths through the field, ``bit`` stands for it in a set of fields of
    one document.
    """

    __slots__ = ("bit", "inner", "slot", "slots")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.slot = -1
        self.inner: WantedFields | None = None
        self.slots: list[int] = []


class WantedFields:
    """The fields to read from a document; ``all`` is the set of their bits."""

    __slots__ = ("all", "fields")

    def __init__(self) -> None:
        self.fields: dict[bytes, Field] = {}
        self.all = 0

    def field(self, name: bytes) -> Field:
        """Return the field of that name, adding it if necessary."""
        field = self.fields.get(name)
        if field is None:
            bit = 1 << len(self.fields)
            field = self.fields[name] = Field(bit)
            self.all |= bit
        return field

    def missing(self, seen: int) -> list[int]:
        """Return the slots of the paths through all fields but those ``seen``."""
        absent = [field for field in self.fields.values() if not seen & field.bit]
        return [slot for field in absent for slot in field.slots]


def tree_of(paths: Iterable[Path]) -> WantedFields:
    """Return the fields that lead to ``paths``; the slot of a path is its index."""
    root = WantedFields()
    for slot, path in enumerate(paths):
        document = root
        for name in path[:-1]:
            field = document.field(name)
            field.slots.append(slot)
            if field.inner is None:
                field.inner = WantedFields()
            document = field.inner
        last = document.field(path[-1])
        last.slots.append(slot)
        last.slot = slot
    return root


def read_fields(
    data: bytes, start: int, wanted: WantedFields, by_slot: list[list[ValueSlice]], left: int
) -> int:
    """Append the values of the ``wanted`` fields of the document at ``start`` to their slots.

    Of fields with the same name in one document the first one counts. ``left`` is the work that is
    left for the event, in units; return what is left then. Raises TooLargeError if it is not
    enough, and as ``PathReader.read`` does.
    """
    everything = wanted.all
    position = start + 4
    seen = 0
    while (kind := data[position]) != 0:
        left -= 1
        if left < 0:
            raise TooLargeError
        stop = data.index(0, position + 1) + 1
        end = value_end(data, kind, stop)
        field = wanted.fields.get(data[position + 1 : stop - 1])
        if field is not None and not seen & field.bit:
            seen |= field.bit
            left = take(data, (kind, stop, end), field, by_slot, left)
            if seen == everything:
                return left
        position = end
    return _nothing(wanted.missing(seen), by_slot, left)


def take(
    data: bytes, value: ValueSlice, field: Field, by_slot: list[list[ValueSlice]], left: int
) -> int:
    """Append the value of a field to its slot, and read the fields inside it.

    ``left``, the result and the errors are those of ``read_fields``.
    """
    kind, start, _ = value
    elements: list[ValueSlice] = []
    if kind == ARRAY:
        elements = _elements(data, start, left)
        left -= len(elements)
    if field.slot >= 0:
        by_slot[field.slot] += elements
        by_slot[field.slot].append(value)
    inner = field.inner
    if inner is None:
        return left
    if kind == DOCUMENT:
        return read_fields(data, start, inner, by_slot, left)
    for element_kind, element_start, _ in elements:
        if element_kind == DOCUMENT:
            left = read_fields(data, element_start, inner, by_slot, left)
    if kind != ARRAY:
        left = _nothing([slot for slot in field.slots if slot != field.slot], by_slot, left)
    return left


def _nothing(slots: list[int], by_slot: list[list[ValueSlice]], left: int) -> int:
    """Append NOTHING to the ``slots``; ``left`` and the result are those of ``read_fields``.

    Many documents in an array may lack many paths.
    """
    left -= len(slots)
    if left < 0:
        raise TooLargeError
    for slot in slots:
        by_slot[slot].append(NOTHING)
    return left


def _elements(data: bytes, start: int, most: int) -> list[ValueSlice]:
    """Return the elements of the array at ``start``, ``most`` at most, or raise TooLargeError."""
    elements: list[ValueSlice] = []
    position = start + 4
    for _ in range(most + 1):
        if (kind := data[position]) == 0:
            return elements
        stop = data.index(0, position + 1) + 1
        position = value_end(data, kind, stop)
        elements.append((kind, stop, position))
    raise TooLargeError

"""Reading fields from an event's bytes along dotted paths, as MongoDB's queries traverse them.

An array along a path stands for its documents; an array at the end of a path stands for its
elements and for itself. A path that ends in nothing yields MISSING, but an array along the path
yields nothing for elements that are no documents. Source: docs/protocol.md#filters.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from router.filters.values import (
    ARRAY,
    DOCUMENT,
    HEADS,
    MISSING,
    REGEX,
    SIZES,
    unpack_length,
    value_end,
)

Path = tuple[bytes, ...]
"""The names of a dotted path."""

Element = tuple[int, int, int]
"""A value: its type, and its start and end in the event's bytes."""

NOTHING: Final[Element] = (MISSING, 0, 0)
"""The element of a path that ends in nothing."""


class _Field:
    """A field to read: ``slot`` if a path ends here, ``inner`` if paths lead further."""

    __slots__ = ("bit", "inner", "slot", "slots")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.slot = -1
        self.inner: _Document | None = None
        # The slots of all paths through this field.
        self.slots: list[int] = []


_Header = tuple[bytes, int, int, _Field | None]
"""A field's type and name as they stand in BSON, its SIZES and HEADS, and the field if wanted."""


class _Document:
    """The fields to read from a document.

    ``layout`` has the headers of the fields of a document read before, up to the last one wanted.
    """

    __slots__ = ("all", "fields", "layout")

    def __init__(self) -> None:
        self.fields: dict[bytes, _Field] = {}
        self.all = 0
        self.layout: list[_Header] = []

    def field(self, name: bytes) -> _Field:
        field = self.fields.get(name)
        if field is None:
            bit = 1 << len(self.fields)
            field = self.fields[name] = _Field(bit)
            self.all |= bit
        return field


class PathReader:
    """Reads the values at several paths in one pass over a document.

    Of fields with the same name in one document the first one counts.
    """

    __slots__ = ("_count", "_root", "paths")

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths: Sequence[Path] = tuple(dict.fromkeys(paths))
        self._count = range(len(self.paths))
        self._root = _Document()
        for slot, path in enumerate(self.paths):
            document = self._root
            for name in path[:-1]:
                field = document.field(name)
                field.slots.append(slot)
                if field.inner is None:
                    field.inner = _Document()
                document = field.inner
            last = document.field(path[-1])
            last.slots.append(slot)
            last.slot = slot

    def read(self, data: bytes) -> list[list[Element]]:
        """Return the elements at each path of the document ``data``, in the order of ``paths``.

        Raises ValueError, IndexError or struct.error if the part that is read is malformed.
        """
        found: list[list[Element]] = [[] for _ in self._count]
        if self._root.all:
            _read(data, 0, self._root, found)
        return found


def _read(data: bytes, start: int, wanted: _Document, found: list[list[Element]]) -> None:
    """Read the ``wanted`` fields of the document at ``start``.

    Most documents of a stream begin with the same fields in the same order: as long as the types
    and names are those of the layout, names need not be looked up.
    """
    position = start + 4
    seen = 0
    everything = wanted.all
    for header, size, head, field in wanted.layout:
        if not data.startswith(header, position):
            break
        stop = position + len(header)
        end = stop + size if size >= 0 else stop + head + unpack_length(data, stop)[0]
        if field is not None:
            seen |= field.bit
            _take(data, (header[0], stop, end), field, found)
            if seen == everything:
                return
        position = end
    _read_on(data, start, position, seen, wanted, found)


def _read_on(
    data: bytes,
    start: int,
    position: int,
    seen: int,
    wanted: _Document,
    found: list[list[Element]],
) -> None:
    """Read the fields from ``position`` on, without those ``seen``; learn the layout."""
    everything = wanted.all
    while (kind := data[position]) != 0:
        stop = data.index(0, position + 1) + 1
        end = value_end(data, kind, stop)
        field = wanted.fields.get(data[position + 1 : stop - 1])
        if field is not None and not seen & field.bit:
            seen |= field.bit
            _take(data, (kind, stop, end), field, found)
            if seen == everything:
                wanted.layout = _layout(data, start, end, wanted)
                return
        position = end
    _miss(wanted, seen, found)


def _layout(data: bytes, start: int, limit: int, wanted: _Document) -> list[_Header]:
    """Return the headers of a document's fields up to the offset ``limit``."""
    layout: list[_Header] = []
    position = start + 4
    seen = 0
    while position < limit:
        kind = data[position]
        stop = data.index(0, position + 1) + 1
        field = wanted.fields.get(data[position + 1 : stop - 1])
        if kind == REGEX or (field is not None and seen & field.bit):
            return []
        seen |= 0 if field is None else field.bit
        layout.append((data[position:stop], SIZES[kind], HEADS[kind], field))
        position = value_end(data, kind, stop)
    return layout


def _take(data: bytes, element: Element, field: _Field, found: list[list[Element]]) -> None:
    """Record the value of a field, and read the fields inside it."""
    if field.slot >= 0:
        if element[0] == ARRAY:
            found[field.slot] += _elements(data, element[1])
        found[field.slot].append(element)
    if field.inner is not None:
        if element[0] == DOCUMENT:
            _read(data, element[1], field.inner, found)
        else:
            _enter(data, element, field.inner, field, found)


def _miss(wanted: _Document, seen: int, found: list[list[Element]]) -> None:
    """Record that the document has none of the fields beside those ``seen``."""
    for field in wanted.fields.values():
        if not seen & field.bit:
            for slot in field.slots:
                found[slot].append(NOTHING)


def _enter(
    data: bytes, element: Element, inner: _Document, field: _Field, found: list[list[Element]]
) -> None:
    """Read the fields ``inner`` of a value that is no document."""
    kind, start, _ = element
    if kind == ARRAY:
        for each in _elements(data, start):
            if each[0] == DOCUMENT:
                _read(data, each[1], inner, found)
    else:
        for slot in field.slots:
            if slot != field.slot:
                found[slot].append(NOTHING)


def _elements(data: bytes, start: int) -> list[Element]:
    """Return the elements of the array at ``start``."""
    found: list[Element] = []
    position = start + 4
    while (kind := data[position]) != 0:
        stop = data.index(0, position + 1) + 1
        position = value_end(data, kind, stop)
        found.append((kind, stop, position))
    return found

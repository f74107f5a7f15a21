"""Reading several fields from an event's bytes along dotted paths, by the layouts of documents.

Most events of a stream have the same fields of the same types in the same order. A layout is a
regular expression that matches the headers (types and names) of such a document up to the last
field to read, so that one call of the expression engine replaces a walk in Python. What matches is
proven to have the layout; anything else is walked (router/filters/field_walk.py).
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from struct import error as StructError  # noqa: N812 - a class by its nature
from typing import Final, NamedTuple

from router.filters.field_walk import (
    NOTHING,
    Allowance,
    Field,
    Path,
    TooLargeError,
    Value,
    ValueSlice,
    WantedFields,
    read_fields,
    take,
    tree_of,
)
from router.filters.values import pack_length, unpack_length
from shard_client.bson.values import (
    CONTAINERS,
    DOCUMENT,
    FIXED,
    REGEX,
    STRING,
    UNCOUNTED,
    value_end,
)

_MOST_STEPS: Final = 100
"""Maximum of fields that a layout describes."""

_MOST_LENGTHS: Final = 4
"""Maximum of lengths of one field that a layout matches; with more, any length is accepted."""

_MOST_LAYOUTS: Final = 4

_LONGEST_VALUE: Final = 1024
"""Bytes of the longest string that is returned by itself."""

_QUICK_LESSONS: Final = 32
"""The number of documents that are learned as soon as they occur."""

_UNLEARNED: Final = 1000
"""After these lessons, one in this number of documents without a layout is learned."""

_TWO_STRINGS: Final = rb"[^\0]*\0[^\0]*\0"
"""The value of a regular expression."""

_END: Final = b"\0"


class _Step(NamedTuple):
    """A field's type and name as they stand in BSON, or a document's end.

    ``field`` is the field if it is to be read; ``enters`` is whether the fields of its document
    are the next steps.
    """

    header: bytes
    field: Field | None = None
    enters: bool = False


class _Outline:
    """The steps of one document, up to the last field to read or to the document's end.

    ``lengths`` has the length that each step's value begins with, 0 if its type has none.
    ``missing`` are the slots of paths that the document does not have. Raises ValueError,
    IndexError or struct.error if the document is malformed, and ValueError if it has too many
    fields.
    """

    def __init__(self, data: bytes, root: WantedFields) -> None:
        self.steps: list[_Step] = []
        self.lengths: list[int] = []
        self.missing: list[int] = []
        self._walk(data, 0, root, to_end=False)

    def _walk(self, data: bytes, start: int, wanted: WantedFields, *, to_end: bool) -> None:
        position = start + 4
        seen = 0
        while (kind := data[position]) != 0:
            stop = data.index(0, position + 1) + 1
            field = wanted.fields.get(data[position + 1 : stop - 1])
            if field is not None and seen & field.bit:
                field = None
            if field is not None:
                seen |= field.bit
                if kind not in CONTAINERS:
                    # Paths that lead further end in nothing here.
                    self.missing += [slot for slot in field.slots if slot != field.slot]
                    field = field if field.slot >= 0 else None
            done = seen == wanted.all and not to_end
            inner = None
            if field is not None and field.slot < 0 and kind == DOCUMENT:
                inner = field.inner
            end = value_end(data, kind, stop)
            has_length = kind in UNCOUNTED
            length = int(unpack_length(data, stop)[0]) if has_length else 0
            self._add(_Step(data[position:stop], field, inner is not None), length)
            if inner is not None:
                self._walk(data, stop, inner, to_end=not done)
            if done:
                return
            position = end
        self._add(_Step(_END), 0)
        self.missing += wanted.missing(seen)

    def _add(self, step: _Step, length: int) -> None:
        if len(self.steps) == _MOST_STEPS:
            raise ValueError("the document has too many fields")
        self.steps.append(step)
        self.lengths.append(length)


class _Segment(NamedTuple):
    """A part of a layout that one expression matches.

    ``slots`` has the type and the slot of the value in each of the expression's groups. Just after
    the match begins a value of type ``kind`` and of any length, which ``field`` reads; with
    ``field`` None it is skipped. ``kind`` is 0 if the match ends the layout.
    """

    match: Callable[[bytes, int], re.Match[bytes] | None]
    slots: Sequence[tuple[int, int]]
    kind: int
    field: Field | None


class _Layout:
    """The documents with certain steps, and with lengths of values that have occurred.

    ``uses`` counts the documents read.
    """

    def __init__(self, outline: _Outline) -> None:
        self.steps = outline.steps
        self.uses = 0
        self._lengths = [{length} for length in outline.lengths]
        self._missing = outline.missing
        self.has_one_value = False
        """Whether the documents have one value to read, of a fixed size or a string."""
        self._build()

    def learn(self, outline: _Outline) -> None:
        """Accept the lengths of a document with the same steps."""
        for lengths, length in zip(self._lengths, outline.lengths, strict=True):
            if len(lengths) <= _MOST_LENGTHS:
                lengths.add(length)
        self._build()

    def read(
        self, data: bytes, slots: range, allowance: Allowance
    ) -> list[list[ValueSlice]] | None:
        """Return the values of each slot, or None if the document has another layout.

        Raises TooLargeError.
        """
        by_slot: list[list[ValueSlice]] = []
        if self._groups is not None:
            matched = self._segments[0].match(data, 4)
            if matched is None:
                return None
            for kind, group in self._groups:
                start, end = matched.span(group)
                by_slot.append([(kind, start, end)])
            self.uses += 1
            return by_slot
        by_slot += ([] for _ in slots)
        position, left = 4, allowance.left
        for match, values, kind, field in self._segments:
            matched = match(data, position)
            if matched is None:
                return None
            for group, (value_kind, slot) in enumerate(values, 1):
                start, end = matched.span(group)
                by_slot[slot].append((value_kind, start, end))
            if kind:
                start = matched.end()
                position = start + UNCOUNTED[kind] + unpack_length(data, start)[0]
                if field is None:
                    continue
                if kind in CONTAINERS:
                    left = take(data, (kind, start, position), field, by_slot, left)
                else:
                    by_slot[field.slot].append((kind, start, position))
        for slot in self._missing:
            by_slot[slot].append(NOTHING)
        self.uses += 1
        allowance.left = left
        return by_slot

    def value(self, data: bytes) -> Value | None:
        """Return the only value to read, or None if it is long or the layout is another one."""
        match, slots, kind, _ = self._segments[0]
        matched = match(data, 4)
        if matched is None:
            return None
        self.uses += 1
        if not kind:
            return slots[0][0], matched[1]
        start = matched.end()
        length = unpack_length(data, start)[0]
        if length > _LONGEST_VALUE:
            return None
        return kind, data[start : start + UNCOUNTED[kind] + length]

    def _build(self) -> None:
        self._segments = list(self._compile())
        first = self._segments[0]
        is_whole = len(self._segments) == 1 and not self._missing
        has_one = (first.kind, len(first.slots)) in ((0, 1), (STRING, 0))
        self.has_one_value = is_whole and has_one and (first.kind == 0 or first.field is not None)
        # Most layouts have one segment with one value for each slot: these are read faster.
        self._groups: list[tuple[int, int]] | None = None
        if is_whole and not first.kind:
            slots = enumerate(first.slots, 1)
            by_slot = sorted((slot, kind, group) for group, (kind, slot) in slots)
            self._groups = [(kind, group) for _, kind, group in by_slot]

    def _compile(self) -> Iterator[_Segment]:
        pattern: list[bytes] = []
        slots: list[tuple[int, int]] = []
        for step, lengths in zip(self.steps, self._lengths, strict=True):
            pattern.append(re.escape(step.header))
            if step.header == _END:
                continue
            if step.enters:
                pattern.append(b".{4}")
                continue
            kind, field = step.header[0], step.field
            value = _value(kind, () if field is not None else lengths)
            if value is None:
                yield _Segment(_matching(pattern), slots, kind, field)
                pattern, slots = [], []
            elif field is None or field.slot < 0:
                pattern.append(value)
            else:
                pattern.append(b"(" + value + b")")
                slots.append((kind, field.slot))
        if pattern:
            yield _Segment(_matching(pattern), slots, 0, None)


def _value(kind: int, lengths: Collection[int]) -> bytes | None:
    """Return an expression for values of type ``kind``; None if it may have any length.

    ``lengths`` are those that such values begin with.
    """
    if kind == REGEX:
        return _TWO_STRINGS
    if kind in FIXED:
        return b".{%d}" % FIXED[kind]
    if not 0 < len(lengths) <= _MOST_LENGTHS:
        return None
    values = [
        re.escape(pack_length(length)) + b".{%d}" % max(0, length + UNCOUNTED[kind] - 4)
        for length in sorted(lengths)
    ]
    return b"(?:" + b"|".join(values) + b")"


def _matching(pattern: Sequence[bytes]) -> Callable[[bytes, int], re.Match[bytes] | None]:
    return re.compile(b"".join(pattern), re.DOTALL).match


class PathReader:
    """Reads the values at several paths as MongoDB's queries traverse them.

    It learns the layouts of the documents that it reads, so that it reads the next ones faster. How
    many it learns is bounded: documents that are all different cost little more than their walk.
    """

    __slots__ = ("_layouts", "_lessons", "_root", "_slots", "_unlearned", "paths")

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths: Sequence[Path] = tuple(dict.fromkeys(paths))
        self._root = tree_of(self.paths)
        self._slots = range(len(self.paths))
        self._layouts: list[_Layout] = []
        self._lessons = 0
        self._unlearned = 0

    def read(self, data: bytes, allowance: Allowance | None = None) -> list[list[ValueSlice]]:
        """Return the values at each path of the document ``data``, in the order of ``paths``.

        Raises ValueError, IndexError or struct.error if the part that is read is malformed, and
        TooLargeError, a ValueError, if the ``allowance``, by default one of its own, is not enough.
        """
        if not self.paths:
            return []
        allowance = allowance or Allowance()
        for layout in self._layouts:
            by_slot = layout.read(data, self._slots, allowance)
            if by_slot is not None:
                return by_slot
        by_slot = [[] for _ in self.paths]
        allowance.left = read_fields(data, 0, self._root, by_slot, allowance.left)
        self._learn(data)
        return by_slot

    def value(self, data: bytes) -> Value | None:
        """Return the value at the only path, or None: then use ``read``.

        For readers of one path. It answers for documents that have one value there, a short one,
        and a known layout, and takes half of the time of ``read``.
        """
        for layout in self._layouts:
            if layout.has_one_value:
                value = layout.value(data)
                if value is not None:
                    return value
        return None

    def _learn(self, data: bytes) -> None:
        """Learn the layout of a document that has had none."""
        self._unlearned += 1
        if self._lessons >= _QUICK_LESSONS and self._unlearned < _UNLEARNED:
            return
        self._unlearned = 0
        self._lessons += 1
        try:
            outline = _Outline(data, self._root)
        except (ValueError, IndexError, StructError):
            return
        similar = next((layout for layout in self._layouts if layout.steps == outline.steps), None)
        if similar is not None:
            similar.learn(outline)
            return
        if len(self._layouts) == _MOST_LAYOUTS:
            self._layouts.remove(min(self._layouts, key=attrgetter("uses")))
            for layout in self._layouts:
                layout.uses = 0
        self._layouts.append(_Layout(outline))


class EventFields(Allowance):
    """The fields of one event that filters look at, and the allowance for the work on them."""

    __slots__ = ("_by_path", "_reader", "data")

    def __init__(self, reader: PathReader) -> None:
        super().__init__()
        self.data = b""
        self._reader = reader
        self._by_path: dict[Path, list[ValueSlice]] = {}

    def read(self, data: bytes) -> None:
        """Read the event ``data``; ``left`` is for the caller to set. Raises TooLargeError."""
        self._by_path = dict(zip(self._reader.paths, self._reader.read(data, self), strict=True))
        self.data = data

    def forget(self) -> None:
        """Free the memory of the event."""
        self.data = b""
        self._by_path = {}

    def at(self, path: Path, price: int) -> Sequence[ValueSlice]:
        """Return the values at one of the reader's paths.

        ``price`` is what a look at each of them takes, in units. Raises TooLargeError.
        """
        values = self._by_path[path]
        self.left = left = self.left - price * (len(values) or 1)
        if left < 0:
            raise TooLargeError
        return values

"""JSON of many documents together: the same as is made of each, at less cost.

Documents of a collection have few layouts, so that numpy finds a field's values in all documents of
a layout, and Arrow writes them as one column. What has no layout in common with enough others is
written one by one. Needs numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shard_client.bson.values import (
    ARRAY,
    BOOLEAN,
    DATE,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    NULL,
    OBJECT_ID,
    STRING,
)
from spark_sink.events.slices import UNREADABLE, Slice, string_of
from spark_sink.rows.extended_json import (
    canonical_json,
    relaxed_documents,
    relaxed_part,
    relaxed_parts,
)
from spark_sink.rows.layouts import (
    Field,
    JoinedEvents,
    Layout,
    Places,
    layouts_of,
    stops_of,
)

Pieces = list["str | pa.Array"]
"""The parts of a column of texts, which follow each other: texts that are the same in all rows, and
columns of texts."""

# Longer arrays are written one by one.
_LONGEST_ARRAY = 100
# The milliseconds since 1970 before which dates have four digits of a year.
_LAST_ISO_DATE = 253_402_300_800_000
# Documents deeper than this are written one by one.
_DEEPEST = 20


def joined_text(pieces: Pieces, rows: int) -> pa.Array:
    """Return pieces as one column of texts."""
    if all(isinstance(piece, str) for piece in pieces):
        return pa.repeat(pa.scalar("".join(map(str, pieces))), rows)
    return pc.binary_join_element_wise(*_merged(pieces), "")


def combined(rows: int, parts: Sequence[tuple[Places, pa.Array]]) -> pa.Array:
    """Return one column of `rows` rows from parts: indexes of rows, and the values of these rows.

    Each row is in exactly one part.
    """
    if len(parts) == 1:
        return parts[0][1]
    order = np.argsort(np.concatenate([indexes for indexes, _ in parts]))
    return pa.concat_arrays([values for _, values in parts]).take(pa.array(order))


def special_bytes(*, ascii_only: bool) -> NDArray[np.bool_]:
    """Return which bytes are written otherwise in a string of JSON."""
    found = np.zeros(256, np.bool_)
    found[:0x20] = found[[ord('"'), ord("\\")]] = True
    found[0x7F:] = ascii_only
    return found


class TextColumns:
    """Writes columns of values as JSON. A subclass says how values of each type are written."""

    quote: str = '"'
    separator: str
    colon: str
    special: NDArray[np.bool_]
    """The bytes with which a string is written one by one."""

    def name(self, name: bytes) -> str:
        """Return the text of a field's name, with what separates it from the value."""
        raise NotImplementedError

    def text(self, kind: int, value: bytes) -> str:
        """Return the text of one value. Raises InvalidBSON."""
        raise NotImplementedError

    def written(self, texts: Iterable[str]) -> pa.Array:
        """Return texts of single values as a column."""
        return pa.array(texts, pa.string())

    def wrapped(self, name: str, values: pa.Array) -> Pieces:
        """Return objects with one field, which is a string."""
        quote = self.quote
        return [f"{{{quote}{name}{quote}{self.colon}{quote}", values, f"{quote}}}"]

    def values(self, joined: JoinedEvents, field: Field) -> Pieces:
        """Return the texts of values of one BSON type. Raises InvalidBSON."""
        write = self._WRITERS.get(field.kind)
        return self._singly(joined, field) if write is None else write(self, joined, field)

    def _singly(self, joined: JoinedEvents, field: Field) -> Pieces:
        return [self.written(self.text(field.kind, each) for each in values_of(joined, field))]

    def documents(self, joined: JoinedEvents) -> Pieces:
        """Return the texts of documents. Raises InvalidBSON."""
        layouts, left = layouts_of(joined)
        if len(layouts) == 1 and not len(left):
            return self._of_layout(joined, layouts[0])
        parts = [
            (each.rows, joined_text(self._of_layout(joined, each), len(each.rows)))
            for each in layouts
        ]
        if len(left) or not parts:
            parts.append((left, self._one_by_one(joined, left, DOCUMENT)))
        return [combined(len(joined.ends), parts)]

    def _of_layout(self, joined: JoinedEvents, layout: Layout) -> Pieces:
        pieces: Pieces = ["{"]
        for name, field in layout.fields.items():
            if len(pieces) > 1:
                pieces.append(self.separator)
            pieces.append(self.name(name))
            pieces += self.values(joined, field)
        return [*pieces, "}"]

    def _one_by_one(self, joined: JoinedEvents, rows: Places, kind: int) -> pa.Array:
        found = Field(kind, joined.starts[rows], joined.ends[rows])
        [texts] = self._singly(joined, found)
        return texts

    def _strings(self, joined: JoinedEvents, field: Field) -> Pieces:
        starts = field.starts + 4
        texts = joined.pieces(starts, np.maximum(field.stops - 1, starts)).view(pa.string())
        offsets = np.frombuffer(texts.buffers()[1], np.int32)[: len(starts) + 1]
        content = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[: offsets[-1]]
        places = np.flatnonzero(self.special[content])
        if len(places):
            special = np.unique(np.searchsorted(offsets, places, side="right") - 1)
            mask = np.zeros(len(starts), np.bool_)
            mask[special] = True
            size = len(self.quote)
            values = values_of(joined, chosen(field, mask))
            written = self.written(self.text(STRING, each) for each in values)
            inner = pc.utf8_slice_codeunits(written, size, -size)
            texts = pc.replace_with_mask(texts, pa.array(mask), inner)
        return [self.quote, texts, self.quote]

    def _numbers(self, joined: JoinedEvents, field: Field) -> Pieces:
        kind = "<i4" if field.kind == INT32 else "<i8"
        return [pa.array(joined.integers(field.starts, kind)).cast(pa.string())]

    def _dates(self, joined: JoinedEvents, field: Field) -> Pieces:
        return self._singly(joined, field)

    def _doubles(self, joined: JoinedEvents, field: Field) -> Pieces:
        return self._singly(joined, field)

    def _identifiers(self, joined: JoinedEvents, field: Field) -> Pieces:
        return self.wrapped("$oid", joined.hexadecimal(field.starts, 12))

    def _bools(self, joined: JoinedEvents, field: Field) -> Pieces:
        values = joined.integers(field.starts, "u1").astype(np.bool_)
        return [pc.if_else(pa.array(values), "true", "false")]

    def _nulls(self, _: JoinedEvents, __: Field) -> Pieces:
        return ["null"]

    def _documents(self, joined: JoinedEvents, field: Field) -> Pieces:
        return self.documents(joined.within(field.starts, field.stops))

    def _arrays(self, joined: JoinedEvents, field: Field) -> Pieces:
        """Return the texts of arrays: the elements of all arrays are written as one column.

        Arrays of several types, and long ones, are written one by one.
        """
        arrays = joined.within(field.starts, field.stops)
        kind, elements, owners, left = _elements_of(arrays)
        whole = np.ones(len(field.starts), np.bool_)
        whole[left] = False
        rows = np.flatnonzero(whole)
        written = joined_text(self.values(joined, Field(kind, *elements)), len(owners))
        offsets = np.searchsorted(owners, np.append(rows, len(whole))).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), written)
        inner = pc.binary_join(lists, self.separator)
        parts = [(rows, joined_text(["[", inner, "]"], len(rows)))]
        if len(left):
            parts.append((left, self._one_by_one(arrays, left, ARRAY)))
        return [combined(len(whole), parts)]

    # Names, because subclasses have methods of their own.
    _WRITERS: ClassVar[dict[int, Callable[[TextColumns, JoinedEvents, Field], Pieces]]] = {
        STRING: lambda self, *field: self._strings(*field),
        INT32: lambda self, *field: self._numbers(*field),
        INT64: lambda self, *field: self._numbers(*field),
        DATE: lambda self, *field: self._dates(*field),
        DOUBLE: lambda self, *field: self._doubles(*field),
        OBJECT_ID: _identifiers,
        BOOLEAN: lambda self, *field: self._bools(*field),
        NULL: _nulls,
        DOCUMENT: _documents,
        ARRAY: lambda self, *field: self._arrays(*field),
    }


class _UncommonError(Exception):
    """A document has a value that is not written by column."""


class JsonColumns(TextColumns):
    """Writes documents in relaxed or canonical extended JSON, as `extended_json` does."""

    def __init__(self, *, canonical: bool = False) -> None:
        self._canonical = canonical
        self.separator, self.colon = (", ", ": ") if canonical else (",", ":")
        self.special = special_bytes(ascii_only=canonical)
        self._depth = 0

    def texts(self, documents: JoinedEvents) -> pa.Array:
        """Return the texts of documents. Raises UNREADABLE."""
        layouts, left = layouts_of(documents)
        parts: list[tuple[Places, pa.Array]] = []
        for layout in layouts:
            found = self.of_layout(documents, layout)
            if found is None:
                left = np.sort(np.concatenate([left, layout.rows]))
            else:
                parts.append((layout.rows, found))
        if len(left) or not parts:
            rest = Field(DOCUMENT, documents.starts[left], documents.ends[left])
            values = values_of(documents, rest)
            texts: Sequence[str | None]
            if self._canonical:
                texts = [canonical_json(Slice(DOCUMENT, each)) for each in values]
            else:
                texts = relaxed_documents(values)
            parts.append((left, pa.array(texts, pa.string())))
        return combined(len(documents.ends), parts)

    def of_layout(
        self, documents: JoinedEvents, layout: Layout, name: bytes | None = None
    ) -> pa.Array | None:
        """Return the texts of the documents of a layout, or of their fields of a name.

        None if these are to be written one by one.
        """
        self._depth = 0 if name is None else 1
        try:
            if name is None:
                found = self._of_layout(documents, layout)
            else:
                found = self.values(documents, layout.fields[name])
        except _UncommonError:
            return None
        return joined_text(found, len(layout.rows))

    def name(self, name: bytes) -> str:
        """Return the text of a field's name, with what separates it from the value."""
        try:
            name.decode()
        except ValueError:
            raise _UncommonError from None
        return self.text(*string_of(name)) + self.colon

    def text(self, kind: int, value: bytes) -> str:
        """Return the text of one value."""
        try:
            field = Slice(kind, value)
            return canonical_json(field) or "" if self._canonical else relaxed_part(field)
        except UNREADABLE:
            raise _UncommonError from None

    def _require(self, fits: Any) -> None:
        if not np.all(fits):
            raise _UncommonError

    def _of_layout(self, joined: JoinedEvents, layout: Layout) -> Pieces:
        self._require(self._depth < _DEEPEST)
        # A reference has a form of its own.
        self._require(not self._depth or b"$ref" not in layout.fields)
        self._require(joined.integers(joined.ends[layout.rows] - 1, "u1") == 0)
        self._depth += 1
        found = super()._of_layout(joined, layout)
        self._depth -= 1
        return found

    def _arrays(self, joined: JoinedEvents, field: Field) -> Pieces:
        self._require(joined.integers(field.stops - 1, "u1") == 0)
        self._require(self._depth < _DEEPEST)
        self._depth += 1
        found = super()._arrays(joined, field)
        self._depth -= 1
        return found

    def _strings(self, joined: JoinedEvents, field: Field) -> Pieces:
        self._require(field.stops - field.starts > 4)
        self._require(joined.integers(field.stops - 1, "u1") == 0)
        pieces: list[Any] = super()._strings(joined, field)
        if not self._canonical:
            try:
                pieces[1].validate(full=True)
            except pa.ArrowInvalid:
                raise _UncommonError from None
        return pieces

    def _bools(self, joined: JoinedEvents, field: Field) -> Pieces:
        self._require(joined.integers(field.starts, "u1") <= 1)
        return super()._bools(joined, field)

    def _numbers(self, joined: JoinedEvents, field: Field) -> Pieces:
        [numbers] = super()._numbers(joined, field)
        if not self._canonical:
            return [numbers]
        return self.wrapped("$numberInt" if field.kind == INT32 else "$numberLong", numbers)

    def _doubles(self, joined: JoinedEvents, field: Field) -> Pieces:
        if self._canonical:
            return self._singly(joined, field)
        doubles = joined.integers(field.starts, "<f8")
        self._require(np.isfinite(doubles))
        return [pa.array(relaxed_parts(doubles.tolist()), pa.string())]

    def _dates(self, joined: JoinedEvents, field: Field) -> Pieces:
        milliseconds = joined.integers(field.starts, "<i8")
        is_usual = (milliseconds >= 0) & (milliseconds < _LAST_ISO_DATE)
        if self._canonical or not is_usual.all():
            return self._singly(joined, field)
        days, times = np.divmod(milliseconds, 86_400_000)
        dates = pa.array(days.astype(np.int32)).view(pa.date32()).cast(pa.string())
        clock = pa.array(times.astype(np.int32)).view(pa.time32("ms")).cast(pa.string())
        whole = milliseconds % 1000 == 0
        if whole.any():
            clock = pc.if_else(pa.array(whole), pc.utf8_slice_codeunits(clock, 0, 8), clock)
        time = pc.binary_join_element_wise(dates, clock, "T")
        return ['{"$date":"', time, 'Z"}']


def chosen(field: Field, which: NDArray[np.bool_]) -> Field:
    """Return the values of a field in some rows."""
    return Field(field.kind, field.starts[which], field.stops[which])


def values_of(joined: JoinedEvents, field: Field) -> list[bytes]:
    """Return the bytes of values."""
    places = zip(field.starts.tolist(), field.stops.tolist(), strict=True)
    return [joined.data[start:stop] for start, stop in places]


def _elements_of(arrays: JoinedEvents) -> tuple[int, tuple[Places, Places], Places, Places]:
    """Find the elements of arrays whose elements are all of the type of the first.

    Return the type, where the elements start and stop, the array of each, and the other arrays.
    """
    nothing = np.zeros(0, np.int64)
    rows, places, last = np.arange(len(arrays.ends)), arrays.starts + 4, arrays.ends - 1
    filled = places < last
    rows, places, last = rows[filled], places[filled], last[filled]
    if not len(rows):
        return NULL, (nothing, nothing), nothing, nothing
    kind = arrays.data[places[0]]
    starts, stops, owners = [nothing], [nothing], [nothing]
    others = [nothing]
    for number in range(_LONGEST_ARRAY):
        if not len(rows):
            break
        head = bytes((kind,)) + str(number).encode() + b"\0"
        begin = places + len(head)
        end = stops_of(arrays, kind, begin, last)
        if end is None:
            break
        alike = arrays.begin_with(head, places) & (begin <= end) & (end <= last)
        others.append(rows[~alike])
        rows, begin, end, last = rows[alike], begin[alike], end[alike], last[alike]
        starts, stops, owners = [*starts, begin], [*stops, end], [*owners, rows]
        more = end < last
        rows, places, last = rows[more], end[more], last[more]
    left = np.sort(np.concatenate([*others, rows]))
    start, stop, owner = map(np.concatenate, (starts, stops, owners))
    order = np.argsort(start)
    order = order[~np.isin(owner[order], left)] if len(left) else order
    return kind, (start[order], stop[order]), owner[order], left


def _merged(pieces: Pieces) -> Pieces:
    """Return pieces in which no two constant texts follow each other."""
    found: Pieces = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found

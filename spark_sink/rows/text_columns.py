"""JSON of many documents together: the same texts as one by one, at less cost.

Documents of a collection have few layouts, so that numpy finds a field's values in all documents of
a layout, and Arrow writes them as one column. What has no layout in common with enough others is
written one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from spark_sink.rows.layouts import Indexes, Layout, Values, in_order, layouts_of, stops_of

Pieces = list["str | pa.Array"]
"""The parts of a column of texts, which follow each other: texts that are the same in all rows, and
columns of texts."""

# Longer arrays are written one by one.
_LONGEST_ARRAY = 100
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "<u2")


def joined_text(pieces: Pieces, rows: int) -> pa.Array:
    """Return pieces as one column of texts."""
    parts: list[Any] = []
    for piece in pieces:  # no two constant texts follow each other then
        if isinstance(piece, str) and parts and isinstance(parts[-1], str):
            parts[-1] += piece
        else:
            parts.append(piece)
    if all(isinstance(part, str) for part in parts):
        return pa.repeat(pa.scalar("".join(parts)), rows)
    return pc.binary_join_element_wise(*parts, "")


def _specials(content: NDArray[np.uint8], *, ascii_only: bool) -> NDArray[np.bool_]:
    """Return which bytes a string of JSON cannot contain as they are.

    These are quotes, backslashes and all below a space, with `ascii_only` all above a tilde, too.
    """
    special: NDArray[np.bool_] = content - np.uint8(0x20) >= (0x5F if ascii_only else 0xE0)
    special |= content == ord('"')
    special |= content == ord("\\")
    return special


# The methods that write values of a type; others are written one by one.
_WRITERS = {
    STRING: "_strings", INT32: "_numbers", INT64: "_numbers", DATE: "_dates", DOUBLE: "_doubles",
    OBJECT_ID: "_identifiers", BOOLEAN: "_bools", NULL: "_nulls", DOCUMENT: "documents",
    ARRAY: "_arrays",
}  # fmt: skip


class UncommonError(Exception):
    """Values cannot be written together: they are written one by one."""


def _require(fits: NDArray[np.bool_]) -> None:
    if not fits.all():
        raise UncommonError


def _require_end(values: Values) -> None:
    _require(values.at(values.stops - 1, "u1") == 0)


class TextColumns:
    """Writes columns of values as JSON.

    A subclass defines the texts of names, and the methods `_dates`, `_doubles` and `_singly`.
    """

    quote: str = '"'
    separator: str
    colon: str
    ascii_only: bool
    """Whether strings with characters outside of ASCII are written one by one."""

    def name(self, name: bytes) -> str:
        """Return the text of a field's name, with what separates it from the value."""
        raise NotImplementedError

    def wrapped(self, name: str, values: pa.Array) -> Pieces:
        """Return objects with one field, which is a string."""
        quote = self.quote
        return [f"{{{quote}{name}{quote}{self.colon}{quote}", values, f"{quote}}}"]

    def values(self, values: Values) -> Pieces:
        """Return the texts of values. Raises InvalidBSON."""
        write: Callable[[Values], Pieces] = getattr(self, _WRITERS.get(values.kind, "_singly"))
        try:
            return write(values)
        except (UncommonError, RecursionError):
            return self._singly(values)

    def _singly(self, values: Values) -> Pieces:
        """Return the texts of values, written one by one."""
        raise NotImplementedError

    def documents(self, documents: Values) -> Pieces:
        """Return the texts of documents. Raises InvalidBSON."""
        layouts, left = layouts_of(documents)
        if len(layouts) == 1 and not len(left):
            return self._of_layout(layouts[0])
        parts = [
            (layout.rows, joined_text(self._of_layout(layout), len(layout.rows)))
            for layout in layouts
        ]
        if len(left) or not parts:
            parts.append((left, joined_text(self._singly(documents.chosen(left)), len(left))))
        return [in_order(parts)]

    def _of_layout(self, layout: Layout) -> Pieces:
        _require_end(layout.documents)
        pieces: Pieces = ["{"]
        for name, values in layout.fields.items():
            if len(pieces) > 1:
                pieces.append(self.separator)
            pieces.append(self.name(name))
            pieces += self.values(values)
        return [*pieces, "}"]

    def _strings(self, values: Values) -> Pieces:
        _require(values.stops - values.starts > 4)
        _require_end(values)
        inside = values.within(STRING, values.starts + 4, values.stops - 1)
        texts = inside.column().view(pa.string())
        offsets = np.frombuffer(texts.buffers()[1], np.int32)[: len(values) + 1]
        content = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[: offsets[-1]]
        places = np.flatnonzero(_specials(content, ascii_only=self.ascii_only))
        if len(places):
            special = np.unique(np.searchsorted(offsets, places, side="right") - 1)
            mask = np.zeros(len(values), np.bool_)
            mask[special] = True
            size = len(self.quote)
            [written] = self._singly(values.chosen(mask))
            inner = pc.utf8_slice_codeunits(written, size, -size)
            texts = pc.replace_with_mask(texts, pa.array(mask), inner)
        if not self.ascii_only:
            try:
                texts.validate(full=True)
            except pa.ArrowInvalid:
                raise UncommonError from None
        return [self.quote, texts, self.quote]

    def _numbers(self, values: Values) -> Pieces:
        return [pa.array(values.whole_numbers()).cast(pa.string())]

    def _identifiers(self, values: Values) -> Pieces:
        digits = _HEX[values.at(values.starts, "V12").view(np.uint8)]
        offsets = np.arange(len(values) + 1, dtype=np.int32) * 24
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
        return self.wrapped("$oid", pa.Array.from_buffers(pa.string(), len(values), buffers))

    def _bools(self, values: Values) -> Pieces:
        truths = values.at(values.starts, "u1")
        _require(truths <= 1)
        return [pc.if_else(pa.array(truths.astype(np.bool_)), "true", "false")]

    def _nulls(self, _: Values) -> Pieces:
        return ["null"]

    def _arrays(self, arrays: Values) -> Pieces:
        """Return the texts of arrays: the elements of all arrays are written as one column.

        Arrays of several types, and long ones, are written one by one.
        """
        _require_end(arrays)
        elements, owners, left = _elements_of(arrays)
        whole = np.ones(len(arrays), np.bool_)
        whole[left] = False
        rows = np.flatnonzero(whole)
        written = joined_text(self.values(elements), len(owners))
        offsets = np.searchsorted(owners, np.append(rows, len(whole))).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), written)
        inner = pc.binary_join(lists, self.separator)
        parts = [(rows, joined_text(["[", inner, "]"], len(rows)))]
        if len(left):
            parts.append((left, joined_text(self._singly(arrays.chosen(left)), len(left))))
        return [in_order(parts)]


def _elements_of(arrays: Values) -> tuple[Values, Indexes, Indexes]:
    """Find the elements of arrays whose elements are all of the type of the first.

    Return the elements, the array of each, and the other arrays.
    """
    nothing = np.zeros(0, np.int64)
    rows, places, last = np.arange(len(arrays)), arrays.starts + 4, arrays.stops - 1
    filled = places < last
    rows, places, last = rows[filled], places[filled], last[filled]
    if not len(rows):
        return arrays.within(NULL, nothing, nothing), nothing, nothing
    kind = arrays.data[places[0]]
    starts, stops, owners = [nothing], [nothing], [nothing]
    others = [nothing]
    for number in range(_LONGEST_ARRAY):
        if not len(rows):
            break
        head = bytes((kind,)) + str(number).encode() + b"\0"
        begin = places + len(head)
        end = stops_of(arrays, kind, begin, last)
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
    return arrays.within(kind, start[order], stop[order]), owner[order], left

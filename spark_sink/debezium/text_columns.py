"""Texts of many documents together: the same as `JavaJson` makes of each, at less cost.

Documents of a collection have few layouts, so that numpy finds a field's values in all documents of
a layout, and Arrow writes them as one column. What has no layout in common with enough others is
written one by one.

A message contains the text as a string. So it is written as the content of a JSON string, with
quotes and backslashes escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from json.encoder import encode_basestring
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
from spark_sink.debezium.java_json import JavaJson, escaped
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

# Java writes doubles between these, and zero, without an exponent; Arrow writes them likewise.
_LEAST_PLAIN, _FIRST_EXPONENT = 1e-3, 1e7
# Longer arrays are written one by one.
_LONGEST_ARRAY = 100
# The bytes that are written otherwise in a string: control characters, quotes, backslashes, and
# those that are not ASCII, among which some are.
_SPECIAL = np.ones(256, np.bool_)
_SPECIAL[0x20:0x7F] = False
_SPECIAL[[ord('"'), ord("\\")]] = True


def embedded(text: str) -> str:
    """Return a text as the inside of a string of JSON."""
    return encode_basestring(text)[1:-1]


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


class TextColumns:
    """Writes columns of values with a `JavaJson`."""

    def __init__(self, json: JavaJson) -> None:
        self._json = json

    def values(self, joined: JoinedEvents, field: Field) -> Pieces:
        """Return the texts of values of one BSON type. Raises InvalidBSON."""
        write = self._WRITERS.get(field.kind)
        if write is not None:
            return write(self, joined, field)
        texts = [self._json.value(field.kind, value) for value in values_of(joined, field)]
        return [_embedded_all(texts)]

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
            parts.append((left, self._one_by_one(joined, left, self._json.document)))
        return [combined(len(joined.ends), parts)]

    def _of_layout(self, joined: JoinedEvents, layout: Layout) -> Pieces:
        pieces: Pieces = ["{"]
        for name, field in layout.fields.items():
            if len(pieces) > 1:
                pieces.append(self._json.separator)
            pieces.append(embedded(self._json.name(name)))
            pieces += self.values(joined, field)
        return [*pieces, "}"]

    def _one_by_one(
        self, joined: JoinedEvents, rows: Places, write: Callable[[bytes], str]
    ) -> pa.Array:
        starts, stops = joined.starts[rows].tolist(), joined.ends[rows].tolist()
        texts = (write(joined.data[start:stop]) for start, stop in zip(starts, stops, strict=True))
        return _embedded_all(texts)

    def _strings(self, joined: JoinedEvents, field: Field) -> Pieces:
        starts = field.starts + 4
        texts = _slices(joined, starts, np.maximum(field.stops - 1, starts))
        offsets = np.frombuffer(texts.buffers()[1], np.int32)[: len(starts) + 1]
        content = np.frombuffer(texts.buffers()[2], np.uint8)[: offsets[-1]]
        places = np.flatnonzero(_SPECIAL[content])
        if len(places):
            special = np.unique(np.searchsorted(offsets, places, side="right") - 1)
            mask = np.zeros(len(starts), np.bool_)
            mask[special] = True
            written = [
                escaped(encode_basestring(value[4:-1].decode(errors="replace")))[1:-1]
                for value in values_of(joined, chosen(field, mask))
            ]
            texts = pc.replace_with_mask(texts, pa.array(mask), _embedded_all(written))
        return ['\\"', texts, '\\"']

    def _numbers(self, joined: JoinedEvents, field: Field) -> Pieces:
        kind = "<i4" if field.kind == INT32 else "<i8"
        texts = pa.array(joined.integers(field.starts, kind)).cast(pa.string())
        if field.kind == INT32 or self._json.relaxed:
            return [texts]
        return ['{\\"$numberLong\\": \\"', texts, '\\"}']

    def _dates(self, joined: JoinedEvents, field: Field) -> Pieces:
        dates = pa.array(joined.integers(field.starts, "<i8"))
        if self._json.relaxed:
            return [_embedded_all(map(self._json.date, dates.to_pylist()))]
        return ['{\\"$date\\": ', dates.cast(pa.string()), "}"]

    def _doubles(self, joined: JoinedEvents, field: Field) -> Pieces:
        doubles: NDArray[Any] = joined.integers(field.starts, "<f8")
        sizes = np.abs(doubles)
        plain = (sizes >= _LEAST_PLAIN) & (sizes < _FIRST_EXPONENT) | (sizes == 0)
        numbers = doubles if plain.all() else np.where(plain, doubles, 0.5)
        texts = pa.array(numbers).cast(pa.string())
        whole = np.trunc(numbers) == numbers
        if whole.any():
            points = pc.if_else(pa.array(whole), ".0", "")
            texts = pc.binary_join_element_wise(texts, points, "")
        if not plain.all():
            others = _embedded_all(map(self._json.double, doubles[~plain].tolist()))
            texts = pc.replace_with_mask(texts, pa.array(~plain), others)
        return [texts]

    def _identifiers(self, joined: JoinedEvents, field: Field) -> Pieces:
        return ['{\\"$oid\\": \\"', joined.hexadecimal(field.starts, 12), '\\"}']

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
        inner = pc.binary_join(lists, self._json.separator)
        parts = [(rows, joined_text(["[", inner, "]"], len(rows)))]
        if len(left):
            parts.append((left, self._one_by_one(arrays, left, self._json.array)))
        return [combined(len(whole), parts)]

    _WRITERS: ClassVar[dict[int, Callable[[TextColumns, JoinedEvents, Field], Pieces]]] = {
        STRING: _strings, INT32: _numbers, INT64: _numbers, DATE: _dates, DOUBLE: _doubles,
        OBJECT_ID: _identifiers, BOOLEAN: _bools, NULL: _nulls, DOCUMENT: _documents,
        ARRAY: _arrays,
    }  # fmt: skip


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


def _slices(joined: JoinedEvents, starts: Places, stops: Places) -> pa.Array:
    """Return the bytes between places, which are in order, as a column of texts."""
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[::2], offsets[1::2] = starts, stops
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined.data)]
    pieces = pa.Array.from_buffers(pa.string(), max(0, len(offsets) - 1), buffers)
    return pieces.take(pa.array(np.arange(0, len(offsets), 2)))


def _embedded_all(texts: Any) -> pa.Array:
    return pa.array(map(embedded, texts), pa.string())


def _merged(pieces: Pieces) -> Pieces:
    """Return pieces in which no two constant texts follow each other."""
    found: Pieces = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found

"""The positions of the fields of many documents, found by numpy for all of one layout.

A layout is a sequence of top-level fields with the same names and types. The events of a stream,
and the documents of a collection, have few layouts, so that a step from field to field is a few
operations on arrays, whatever their number.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from bson.errors import InvalidBSON
from numpy.typing import NDArray

from shard_client.bson.values import BINARY, DOCUMENT, FIXED, INT32, NESTED, TEXTS, value_end
from spark_sink.events.slices import Slice

Indexes = NDArray[np.int64]

# A layout with fewer documents, or with a smaller share of them, costs more than it saves.
_MIN_DOCUMENTS = 24
_MIN_SHARE = 64
# After this number of splits, the documents without a layout are returned.
_MAX_SPLITS = 128


@dataclass
class Values:
    """BSON values of one type that lie in one buffer: where each starts and stops.

    They are documents, such as events, or the values of a field of several documents.
    """

    kind: int
    data: bytes
    starts: Indexes
    stops: Indexes

    @classmethod
    def of(cls, documents: Sequence[bytes] | pa.Array) -> Values:
        """Return documents, which may be a binary column without nulls."""
        if not isinstance(documents, pa.Array):
            sizes = np.fromiter(map(len, documents), np.int64, len(documents))
            stops = np.cumsum(sizes)
            return cls(DOCUMENT, b"".join(documents), stops - sizes, stops)
        _, offsets, values = documents.buffers()
        bounds = np.frombuffer(offsets, np.int32)[documents.offset :][: len(documents) + 1]
        first, last = int(bounds[0]), int(bounds[-1])
        data = b"" if values is None else values.slice(first, last - first).to_pybytes()
        places = bounds.astype(np.int64) - first
        return cls(DOCUMENT, data, places[:-1], places[1:])

    def __len__(self) -> int:
        return len(self.starts)

    def chosen(self, which: Indexes | NDArray[np.bool_]) -> Values:
        """Return some of the values."""
        return self.within(self.kind, self.starts[which], self.stops[which])

    def within(self, kind: int, starts: Indexes, stops: Indexes) -> Values:
        """Return other values in the same buffer, in its order."""
        return Values(kind, self.data, starts, stops)

    def column(self) -> pa.Array:
        """Return the bytes of the values as a column."""
        offsets = np.empty(2 * len(self), np.int32)
        offsets[::2], offsets[1::2] = self.starts, self.stops
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        column = pa.Array.from_buffers(pa.binary(), max(0, len(offsets) - 1), buffers)
        return column.take(pa.array(np.arange(0, len(offsets), 2)))

    def to_list(self) -> list[bytes]:
        """Return the bytes of the values."""
        data, places = self.data, zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return [data[start:stop] for start, stop in places]

    def slices(self) -> list[Slice]:
        """Return the values."""
        return [Slice(self.kind, value) for value in self.to_list()]

    def distinct(self) -> tuple[list[Slice], NDArray[np.int64]]:
        """Return the different values, and for each value the index of its equal."""
        encoded = self.column().dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
        return [Slice(self.kind, value) for value in encoded.dictionary.to_pylist()], codes

    def integers(self, kind: str, offset: int = 0) -> NDArray[np.int64]:
        """Return the numbers of numpy's type `kind`, `offset` bytes into the values."""
        return self.at(self.starts + offset, kind).astype(np.int64)

    def whole_numbers(self) -> NDArray[np.int64]:
        """Return values that are ints or longs."""
        return self.integers("<i4" if self.kind == INT32 else "<i8")

    def at(self, places: Indexes, kind: str) -> NDArray[Any]:
        """Return the numbers of numpy's type `kind`, such as "<i4", at places of the buffer."""
        shape = (len(self.data) - np.dtype(kind).itemsize + 1,)
        return np.ndarray(shape, kind, self.data, strides=(1,))[places]

    def begin_with(self, text: bytes, places: Indexes) -> NDArray[np.bool_]:
        """Return for each place of the buffer whether `text` is there."""
        fits: NDArray[np.bool_] = places + len(text) <= len(self.data)
        fits &= self.at(np.where(fits, places, 0), f"V{len(text)}") == np.void(text)
        return fits


class Layout(NamedTuple):
    """Documents with the same top-level fields: their indexes in order, and the fields by name."""

    rows: Indexes
    documents: Values
    fields: dict[bytes, Values]

    def chosen(self, which: Indexes | NDArray[np.bool_]) -> Layout:
        """Return some of the documents."""
        fields = {name: field.chosen(which) for name, field in self.fields.items()}
        return Layout(self.rows[which], self.documents.chosen(which), fields)


def in_order(parts: Sequence[tuple[Indexes, Any]]) -> Any:
    """Return one column, or one batch, of the rows of several, each with its rows' indexes."""
    if len(parts) == 1:
        return parts[0][1]
    rows, values = zip(*parts, strict=True)
    order = np.argsort(np.concatenate(rows))
    join = pa.concat_batches if isinstance(values[0], pa.RecordBatch) else pa.concat_arrays
    return join(values).take(pa.array(order))


def all_layouts_of(documents: Values) -> list[Layout]:
    """Return the layouts of a server's events, which are few. Raises InvalidBSON."""
    layouts, left = _divided(documents, 1, len(documents))
    if len(left):
        raise InvalidBSON("a field exceeds its event, or has an unknown type")
    return layouts


def layouts_of(documents: Values) -> tuple[list[Layout], Indexes]:
    """Return the common layouts of documents, and the indexes of the remaining documents.

    The latter have uncommon layouts, or are not valid BSON.
    """
    least = max(_MIN_DOCUMENTS, len(documents) // _MIN_SHARE)
    return _divided(documents, least, _MAX_SPLITS)


def _divided(documents: Values, least: int, max_splits: int) -> tuple[list[Layout], Indexes]:
    layouts: list[Layout] = []
    left: list[Indexes] = []
    everything = np.arange(len(documents))
    # Documents with the same fields up to a place in each, where the next field begins.
    tasks = [(Layout(everything, documents, {}), documents.starts + 4)]
    splits = 0
    while tasks:
        layout, places = tasks.pop()
        if len(layout.rows) < least or splits > max_splits:
            left.append(layout.rows)
            continue
        last = layout.documents.stops - 1  # of each document: its closing zero
        head = b""  # the type, the name and a zero of the next field
        alike = places == last
        if not alike[0]:
            name_end = documents.data.find(b"\0", int(places[0]) + 1, int(last[0]))
            if name_end < 0:  # invalid BSON
                left.append(layout.rows)
                continue
            head = documents.data[int(places[0]) : name_end + 1]
            alike = documents.begin_with(head, places)
        if not alike.all():
            splits += 1
            tasks.append((layout.chosen(~alike), places[~alike]))
            layout, places, last = layout.chosen(alike), places[alike], last[alike]
        if not head:
            layouts.append(layout)
            continue
        starts = places + len(head)
        stops = stops_of(documents, head[0], starts, last)
        valid = (starts <= stops) & (stops <= last)
        if not valid.all():
            left.append(layout.rows[~valid])
            layout, starts, stops = layout.chosen(valid), starts[valid], stops[valid]
        field = documents.within(head[0], starts, stops)
        tasks.append((layout._replace(fields={**layout.fields, head[1:-1]: field}), stops))
    return layouts, np.sort(np.concatenate(left)) if left else everything[:0]


def stops_of(documents: Values, kind: int, starts: Indexes, last: Indexes) -> Indexes:
    """Return where the values of a type end.

    A value that would exceed its document, which ends at `last`, ends after it.
    """
    fixed = FIXED.get(kind)
    if fixed is not None:
        return starts + fixed
    beyond = 4 if kind in TEXTS else 5 if kind == BINARY else 0
    # A size that would begin beyond its event is read from the event's front, and is invalid.
    within = starts + 4 <= last
    if not beyond and kind not in NESTED:
        places = zip(starts.tolist(), last.tolist(), strict=True)
        return np.array([_stop(documents.data, kind, *place) for place in places], np.int64)
    sizes = documents.at(np.where(within, starts, 0), "<i4").astype(np.int64)
    stops = starts + sizes + beyond
    return np.where(within, stops, last + 1)


def _stop(data: bytes, kind: int, start: int, last: int) -> int:
    """Return where a value of an uncommon type ends."""
    try:
        return value_end(data, kind, start)
    except (ValueError, struct.error):
        return last + 1

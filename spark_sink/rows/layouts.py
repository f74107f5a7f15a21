"""The positions of the fields of many documents, found by numpy for all of one layout.

A layout is a sequence of top-level fields with the same names and types. The events of a stream,
and the documents of a collection, have few layouts, so that a step from field to field is a few
operations on arrays, whatever their number.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from bson.errors import InvalidBSON
from numpy.typing import NDArray

from shard_client.bson.values import BINARY, FIXED, NESTED, TEXTS, value_end
from spark_sink.events.slices import Slice

Places = NDArray[np.int64]

# A layout with fewer events, or with a smaller share of them, costs more than it saves.
_MIN_EVENTS = 24
_MIN_SHARE = 64
# After this number of splits, the events without a layout are returned.
_MAX_SPLITS = 128

_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "<u2")


class Field(NamedTuple):
    """A field of the events of a layout: its BSON type, and where each event's value lies."""

    kind: int
    starts: Places
    stops: Places

    def chosen(self, which: Places | NDArray[np.bool_]) -> Field:
        """Return the values of some of the events."""
        return Field(self.kind, self.starts[which], self.stops[which])


class JoinedEvents:
    """The BSON of events, one after the other in one buffer."""

    def __init__(self, events: Sequence[bytes]) -> None:
        self.data = b"".join(events)
        sizes = np.fromiter(map(len, events), np.int64, len(events))
        self.ends: Places = np.cumsum(sizes)
        self.starts: Places = self.ends - sizes

    @classmethod
    def of_column(cls, events: pa.Array) -> Self:
        """Return the events of a binary column without nulls."""
        _, offsets, values = events.buffers()
        bounds = np.frombuffer(offsets, np.int32)[events.offset :][: len(events) + 1]
        first, last = int(bounds[0]), int(bounds[-1])
        found = cls(())
        found.data = b"" if values is None else values.slice(first, last - first).to_pybytes()
        places = bounds.astype(np.int64) - first
        found.starts, found.ends = places[:-1], places[1:]
        return found

    def within(self, starts: Places, stops: Places) -> Self:
        """Return documents that lie in these events, in the same buffer, in its order."""
        found = copy(self)
        found.starts, found.ends = starts, stops
        return found

    def column(self, rows: Places) -> pa.Array:
        """Return some of the events as a column; all events must be adjacent in the buffer."""
        offsets = np.append(self.starts[:1], self.ends).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        found = pa.Array.from_buffers(pa.binary(), len(self.ends), buffers)
        return found if len(rows) == len(self.ends) else found.take(pa.array(rows))

    def of_field(self, field: Field) -> Self:
        """Return the values of a field of these events."""
        return self.within(field.starts, field.stops)

    def values(self) -> list[bytes]:
        """Return the documents."""
        data, places = self.data, zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [data[start:stop] for start, stop in places]

    def pieces(self, starts: Places, stops: Places) -> pa.Array:
        """Return the bytes between places, which are in order, as a column."""
        offsets = np.empty(2 * len(starts), np.int32)
        offsets[::2], offsets[1::2] = starts, stops
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        found = pa.Array.from_buffers(pa.binary(), max(0, len(offsets) - 1), buffers)
        return found.take(pa.array(np.arange(0, len(offsets), 2)))

    def integers(self, places: Places, kind: str) -> NDArray[Any]:
        """Return the numbers of numpy's type `kind`, such as "<i4", at `places`."""
        size = np.dtype(kind).itemsize
        return self._at_every_byte(kind, size)[places]

    def hexadecimal(self, places: Places, size: int) -> pa.Array:
        """Return the `size` bytes at each place in hexadecimal digits."""
        values = np.frombuffer(self.data, np.uint8)[places[:, None] + np.arange(size)]
        offsets = np.arange(len(places) + 1, dtype=np.int32) * (2 * size)
        digits = np.ascontiguousarray(_HEX[values])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
        return pa.Array.from_buffers(pa.string(), len(places), buffers)

    def begin_with(self, text: bytes, places: Places) -> NDArray[np.bool_]:
        """Return for each place whether `text` is there."""
        size = len(text)
        # Numbers are compared much faster than bytes.
        width = 8 if size >= 8 else 4 if size >= 4 else 1
        alike: NDArray[np.bool_] = places + size <= len(self.data)
        places = places if alike.all() else np.where(alike, places, 0)
        for start in (*range(0, size - width, width), size - width):
            number = int.from_bytes(text[start : start + width], "little")
            alike &= self.integers(places + start, f"<u{width}") == number
        return alike

    def _at_every_byte(self, kind: str, size: int) -> NDArray[Any]:
        shape = (len(self.data) - size + 1,)
        return np.ndarray(shape, np.dtype(kind), self.data, strides=(1,))


class Layout:
    """Events with the same top-level fields: their indexes in order, and the fields by name."""

    def __init__(self, joined: JoinedEvents, rows: Places, fields: dict[bytes, Field]) -> None:
        self.joined = joined
        self.rows = rows
        self.fields = fields

    def chosen(self, which: Places | NDArray[np.bool_]) -> Layout:
        """Return some of the events."""
        return Layout(self.joined, self.rows[which], _chosen(self.fields, which))

    def column(self, name: bytes) -> pa.Array:
        """Return the bytes of a field's values as a column."""
        return self.joined.pieces(self.fields[name].starts, self.fields[name].stops)

    def values(self, name: bytes) -> list[bytes]:
        """Return the bytes of a field's values."""
        return self.documents(name).values()

    def slices(self, name: bytes) -> list[Slice]:
        """Return the values of a field."""
        kind = self.fields[name].kind
        return [Slice(kind, value) for value in self.values(name)]

    def documents(self, name: bytes) -> JoinedEvents:
        """Return the documents in a field, or its values."""
        return self.joined.of_field(self.fields[name])

    def integers(self, name: bytes, kind: str, offset: int = 0) -> NDArray[np.int64]:
        """Return the numbers of type `kind` that lie `offset` bytes into the values of a field."""
        return self.joined.integers(self.fields[name].starts + offset, kind).astype(np.int64)

    def distinct(self, name: bytes) -> tuple[list[Slice], NDArray[np.int64]]:
        """Return the different values of a field, and for each event the index of its value."""
        found, kind = self.column(name).dictionary_encode(), self.fields[name].kind
        codes = found.indices.to_numpy().astype(np.int64)
        return [Slice(kind, each) for each in found.dictionary.to_pylist()], codes


def in_order(parts: Sequence[tuple[Places, Any]]) -> Any:
    """Return one column, or one batch, of the rows of several, each with its rows' indexes."""
    if len(parts) == 1:
        return parts[0][1]
    rows, values = zip(*parts, strict=True)
    order = np.argsort(np.concatenate(rows))
    join = pa.concat_batches if isinstance(values[0], pa.RecordBatch) else pa.concat_arrays
    return join(values).take(pa.array(order))


def all_layouts_of(events: JoinedEvents) -> list[Layout]:
    """Return the layouts of a server's events, which are few. Raises InvalidBSON."""
    found, left = _divided(events, 1, len(events.ends))
    if len(left):
        raise InvalidBSON("a field exceeds its event, or has an unknown type")
    return found


def layouts_of(documents: JoinedEvents) -> tuple[list[Layout], Places]:
    """Return the common layouts of documents, and the indexes of the remaining documents.

    The latter have uncommon layouts, or are not valid BSON.
    """
    return _divided(documents, max(_MIN_EVENTS, len(documents.ends) // _MIN_SHARE), _MAX_SPLITS)


def _divided(joined: JoinedEvents, min_events: int, max_splits: int) -> tuple[list[Layout], Places]:
    found: list[Layout] = []
    left: list[Places] = []
    everything = np.arange(len(joined.ends))
    tasks: list[tuple[Places, Places, dict[bytes, Field]]] = [(everything, joined.starts + 4, {})]
    splits = 0
    while tasks:
        rows, places, fields = tasks.pop()
        if len(rows) < min_events or splits > max_splits:
            left.append(rows)
            continue
        last = joined.ends[rows] - 1  # of each event: its closing zero
        if int(places[0]) == int(last[0]):
            ended = places == last
            if not ended.all():
                splits += 1
                rest = ~ended
                tasks.append((rows[rest], places[rest], _chosen(fields, rest)))
                rows, fields = rows[ended], _chosen(fields, ended)
            found.append(Layout(joined, rows, fields))
            continue
        name_end = joined.data.find(b"\0", int(places[0]) + 1, int(last[0]))
        if name_end < 0:  # invalid BSON
            left.append(rows)
            continue
        head = joined.data[int(places[0]) : name_end + 1]  # the type, the name, a zero
        alike = joined.begin_with(head, places)
        if not alike.all():
            splits += 1
            rest = ~alike
            tasks.append((rows[rest], places[rest], _chosen(fields, rest)))
            rows, places, last = rows[alike], places[alike], last[alike]
            fields = _chosen(fields, alike)
        starts = places + len(head)
        stops = stops_of(joined, head[0], starts, last)
        valid = (starts <= stops) & (stops <= last)
        if not valid.all():
            left.append(rows[~valid])
            rows, starts, stops = rows[valid], starts[valid], stops[valid]
            fields = _chosen(fields, valid)
        tasks.append((rows, stops, {**fields, head[1:-1]: Field(head[0], starts, stops)}))
    return found, np.sort(np.concatenate(left)) if left else everything[:0]


def stops_of(joined: JoinedEvents, kind: int, starts: Places, last: Places) -> Places:
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
        return np.array([_stop(joined.data, kind, *each) for each in places], np.int64)
    sizes = joined.integers(np.where(within, starts, 0), "<i4").astype(np.int64)
    stops = starts + sizes + beyond
    return np.where(within, stops, last + 1)


def _stop(data: bytes, kind: int, start: int, last: int) -> int:
    """Return where a value of an uncommon type ends."""
    try:
        return value_end(data, kind, start)
    except (ValueError, struct.error):
        return last + 1


def _chosen(fields: dict[bytes, Field], which: Places | NDArray[np.bool_]) -> dict[bytes, Field]:
    return {name: field.chosen(which) for name, field in fields.items()}

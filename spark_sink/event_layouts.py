"""Where the fields of many events lie, found for all events of one layout at once by numpy.

A layout is a sequence of top-level fields with the same names and types. The events of a stream
have few layouts, so that a step from field to field is a few operations on arrays, whatever the
number of events. BSON's sizes are those of `spark_sink.event_slices`, which reads the events that
have no layout in common with enough others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_sink.event_slices import COUNTED, FIXED, SIZED, Slice

Places = NDArray[np.int64]

# Fewer events of a layout, or a smaller share of the events, are not worth the steps over arrays.
FEWEST = 24
_SMALLEST_SHARE = 64
# After so many divisions of events by their fields, the events not yet in a layout are left.
_MOST_DIVISIONS = 128
# Different values of a field that are told apart; with more, each event's value is read by itself.
_MOST_VALUES = 32


class Field(NamedTuple):
    """A field of the events of a layout: its BSON type, and where each event's value lies."""

    kind: int
    starts: Places
    stops: Places


class JoinedEvents:
    """Events one after the other in one piece of memory.

    events: their BSON.
    """

    def __init__(self, events: Sequence[bytes]) -> None:
        self.data = b"".join(events)
        sizes = np.fromiter(map(len, events), np.int64, len(events))
        self.ends: Places = np.cumsum(sizes)
        self.starts: Places = self.ends - sizes

    def integers(self, places: Places, kind: str) -> NDArray[np.generic]:
        """Return the numbers that lie at `places`. kind: numpy's name of their type, "<i4"."""
        size = np.dtype(kind).itemsize
        return self._at_every_byte(kind, size)[places]

    def begin_with(self, text: bytes, places: Places) -> NDArray[np.bool_]:
        """Return for each place whether `text` lies there."""
        size = len(text)
        fits = places + size <= len(self.data)
        found = self._at_every_byte(f"V{size}", size)[np.where(fits, places, 0)]
        same = found.view(np.uint8).reshape(-1, size) == np.frombuffer(text, np.uint8)
        alike: NDArray[np.bool_] = fits & same.all(axis=1)
        return alike

    def _at_every_byte(self, kind: str, size: int) -> NDArray[np.generic]:
        shape = (len(self.data) - size + 1,)
        return np.ndarray(shape, np.dtype(kind), self.data, strides=(1,))


class Layout:
    """Events with the same top-level fields.

    joined: where the events lie; rows: their indexes, in order; fields: by name.
    """

    def __init__(self, joined: JoinedEvents, rows: Places, fields: dict[bytes, Field]) -> None:
        self._joined = joined
        self.rows = rows
        self.fields = fields

    def values(self, name: bytes) -> list[bytes]:
        """Return the bytes of a field's values."""
        field, data = self.fields[name], self._joined.data
        places = zip(field.starts.tolist(), field.stops.tolist(), strict=True)
        return [data[start:stop] for start, stop in places]

    def slices(self, name: bytes) -> list[Slice]:
        """Return the values of a field."""
        kind = self.fields[name].kind
        return [Slice(kind, value) for value in self.values(name)]

    def integers(self, name: bytes, kind: str, offset: int = 0) -> NDArray[np.int64]:
        """Return the numbers that lie `offset` bytes into the values of a field.

        kind: numpy's name of their type, "<i4".
        """
        return self._joined.integers(self.fields[name].starts + offset, kind).astype(np.int64)

    def distinct(self, name: bytes) -> tuple[list[Slice], NDArray[np.int64]]:
        """Return the different values of a field, and for each event the index of its own."""
        field = self.fields[name]
        sizes = field.stops - field.starts
        codes = np.zeros(len(sizes), np.int64)
        left = np.arange(len(sizes))
        found: list[Slice] = []
        while len(left):
            if len(found) == _MOST_VALUES:
                return self._many_distinct(name)
            start, size = int(field.starts[left[0]]), int(sizes[left[0]])
            value = self._joined.data[start : start + size]
            same = sizes[left] == size
            if size:
                same &= self._joined.begin_with(value, field.starts[left])
            codes[left[same]] = len(found)
            found.append(Slice(field.kind, value))
            left = left[~same]
        return found, codes

    def _many_distinct(self, name: bytes) -> tuple[list[Slice], NDArray[np.int64]]:
        indexes: dict[Slice, int] = {}
        codes = [indexes.setdefault(each, len(indexes)) for each in self.slices(name)]
        return list(indexes), np.array(codes, np.int64)


def layouts_of(joined: JoinedEvents) -> tuple[list[Layout], Places]:
    """Return the layouts of the events, and the indexes of the events that are left.

    The latter are events of rare layouts, events with fields of rare types, and those that are no
    valid BSON.
    """
    found: list[Layout] = []
    left: list[Places] = []
    everything = np.arange(len(joined.ends))
    tasks: list[tuple[Places, Places, dict[bytes, Field]]] = [(everything, joined.starts + 4, {})]
    fewest = max(FEWEST, len(everything) // _SMALLEST_SHARE)
    divisions = 0
    while tasks:
        rows, places, fields = tasks.pop()
        if len(rows) < fewest or divisions > _MOST_DIVISIONS:
            left.append(rows)
            continue
        last = joined.ends[rows] - 1  # of each event: its closing zero
        if int(places[0]) == int(last[0]):
            ended = places == last
            found.append(Layout(joined, rows[ended], _chosen(fields, ended)))
            if not ended.all():
                divisions += 1
                rest = ~ended
                tasks.append((rows[rest], places[rest], _chosen(fields, rest)))
            continue
        name_end = joined.data.find(b"\0", int(places[0]) + 1, int(last[0]))
        if name_end < 0:  # no valid BSON
            left.append(rows)
            continue
        head = joined.data[int(places[0]) : name_end + 1]  # the type, the name, a zero
        alike = joined.begin_with(head, places)
        if not alike.all():
            divisions += 1
            rest = ~alike
            tasks.append((rows[rest], places[rest], _chosen(fields, rest)))
            rows, places, last = rows[alike], places[alike], last[alike]
            fields = _chosen(fields, alike)
        starts = places + len(head)
        stops = _stops(joined, head[0], starts, last)
        if stops is None:
            left.append(rows)
            continue
        sound = (starts <= stops) & (stops <= last)
        if not sound.all():
            left.append(rows[~sound])
            rows, starts, stops = rows[sound], starts[sound], stops[sound]
            fields = _chosen(fields, sound)
        tasks.append((rows, stops, {**fields, head[1:-1]: Field(head[0], starts, stops)}))
    return found, np.sort(np.concatenate(left)) if left else everything[:0]


def _stops(joined: JoinedEvents, kind: int, starts: Places, last: Places) -> Places | None:
    """Return where the values of a type end; None for a rare type."""
    fixed = FIXED.get(kind)
    if fixed is not None:
        return starts + fixed
    if kind not in SIZED and kind not in COUNTED:
        return None
    # A size that would begin beyond its event is read from the event's front, and is not sound.
    within = starts + 4 <= last
    sizes = joined.integers(np.where(within, starts, 0), "<i4").astype(np.int64)
    stops = starts + sizes + (4 if kind in COUNTED else 0)
    return np.where(within, stops, last + 1)


def _chosen(fields: dict[bytes, Field], which: NDArray[np.bool_]) -> dict[bytes, Field]:
    return {
        name: Field(kind, starts[which], stops[which])
        for name, (kind, starts, stops) in fields.items()
    }

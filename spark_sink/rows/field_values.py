"""The values of some fields of many events, from a column of the events' BSON."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_sink.events.slices import Slice, fields_of

try:
    from spark_sink.rows.layouts import MIN_EVENTS, JoinedEvents, layouts_of
except ImportError:  # numpy is not installed
    _HAS_NUMPY = False
else:
    _HAS_NUMPY = True


def field_values(events: pa.Array, names: Sequence[bytes]) -> list[list[Slice | None]]:
    """Return for each name the values of this top-level field in all events; None if it is missing.

    Raises InvalidBSON.
    """
    columns: list[list[Slice | None]] = [[None] * len(events) for _ in names]
    left: Sequence[int] = range(len(events))
    if _HAS_NUMPY and len(events) >= MIN_EVENTS:
        layouts, others = layouts_of(JoinedEvents.of_column(events))
        left = others.tolist()
        for layout in layouts:
            rows = layout.rows.tolist()
            for column, name in zip(columns, names, strict=True):
                if name not in layout.fields:
                    continue
                for row, value in zip(rows, layout.slices(name), strict=True):
                    column[row] = value
    for row in left:
        fields = fields_of(events[row].as_py(), names)
        for column, name in zip(columns, names, strict=True):
            column[row] = fields.get(name)
    return columns

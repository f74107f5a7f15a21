"""The values of some fields of many events, from a column of the events' BSON."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_sink.events.slices import OBJECT_ID_KEY, Slice, fields_of

try:
    from spark_sink.rows.layouts import MIN_EVENTS, JoinedEvents, layouts_of
except ImportError:  # numpy is not installed
    _HAS_NUMPY = False
else:
    _HAS_NUMPY = True


_KEY, _NONE = b"documentKey", Slice(0, b"")


def object_id_keys(events: pa.Array) -> pa.Array | None:
    """Return the ObjectIds of the documents' keys, if all events have one layout and such keys.

    None otherwise, and if an event is a fragment or may have changed its key. Raises InvalidBSON.
    """
    if not _HAS_NUMPY or len(events) < MIN_EVENTS:
        return None
    if not fields_of(events[0].as_py(), (_KEY,)).get(_KEY, _NONE).value.startswith(OBJECT_ID_KEY):
        return None
    layouts, others = layouts_of(JoinedEvents.of_column(events))
    if len(layouts) != 1 or len(others) or b"splitEvent" in layouts[0].fields:
        return None
    if any(each.text() == "replace" for each in layouts[0].distinct(b"operationType")[0]):
        return None
    return layouts[0].object_id_keys(_KEY)


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

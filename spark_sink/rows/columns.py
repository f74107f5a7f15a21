"""Arrow columns of many events together: the same rows as those of `event_rows`.

Needs numpy, which executors may lack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shard_client.bson.values import DATE, INT32, INT64, TIMESTAMP
from spark_sink.events.header import OPERATIONS, READ, fragment_position, namespace_of
from spark_sink.rows.layouts import JoinedEvents, Layout, layouts_of

ToColumns = Callable[[Layout], dict[str, Any]]
"""Makes the columns of documents, by name: each a list of values or an Arrow array."""


class EventColumns:
    """Makes Arrow batches of events, with columns of documents from a function."""

    def __init__(self, schema: pa.Schema, documents: ToColumns) -> None:
        self._schema = schema
        self._documents = documents

    def batches(
        self, keys: Sequence[str], events: Sequence[bytes], shard: str | None
    ) -> tuple[list[pa.RecordBatch], list[list[int]], list[int]]:
        """Return a batch for each layout of the events, and the indexes of each batch's events.

        Also return the indexes of the events with uncommon layouts, which are in no batch. `keys`
        are the events' tokens.
        """
        joined = JoinedEvents(events)
        layouts, left = layouts_of(joined)
        batches = [self._batch(joined, each, keys, events, shard) for each in layouts]
        return batches, [each.rows.tolist() for each in layouts], left.tolist()

    def _batch(
        self,
        joined: JoinedEvents,
        layout: Layout,
        keys: Sequence[str],
        events: Sequence[bytes],
        shard: str | None,
    ) -> pa.RecordBatch:
        size = len(layout.rows)
        if size == len(keys):
            tokens, whole = keys, _pieces(joined)
        else:
            chosen = layout.rows.tolist()
            tokens = [keys[index] for index in chosen]
            whole = pa.array([events[index] for index in chosen], pa.binary())
        columns = {
            "token": tokens,
            "event": whole,
            "shard": pa.repeat(pa.scalar(shard, pa.string()), size),
            **_operations(layout, size),
            **_times(layout),
            **_namespaces(layout),
            **_optional(layout),
            **self._documents(layout),
        }
        arrays = [_array(columns.get(field.name), field.type, size) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def in_order(batches: Sequence[pa.RecordBatch], indexes: Sequence[Sequence[int]]) -> pa.RecordBatch:
    """Return one batch of the rows of several, by the indexes of their events."""
    if len(batches) == 1:
        return batches[0]
    order = np.argsort(np.concatenate(indexes))
    table = pa.Table.from_batches(batches).combine_chunks()
    return table.to_batches()[0].take(pa.array(order))


def _array(values: Any, kind: pa.DataType, size: int) -> pa.Array:
    if values is None:
        return pa.nulls(size, kind)
    if isinstance(values, pa.Array):
        return values if values.type == kind else values.cast(kind)
    return pa.array(values, type=kind)


def _pieces(joined: JoinedEvents) -> pa.Array:
    """Return the events as a column that shares their memory."""
    offsets = np.zeros(len(joined.ends) + 1, np.int32)
    offsets[1:] = joined.ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined.data)]
    return pa.Array.from_buffers(pa.binary(), len(joined.ends), buffers)


def _operations(layout: Layout, size: int) -> dict[str, Any]:
    if b"operationType" not in layout.fields:
        return {"snapshot": pa.repeat(pa.scalar(False), size)}
    slices, codes = layout.distinct(b"operationType")
    kinds = [each.text() for each in slices]
    return {
        "operationType": _taken(kinds, codes, pa.string()),
        "op": _taken([OPERATIONS.get(kind) for kind in kinds], codes, pa.string()),
        "snapshot": _taken([kind == READ for kind in kinds], codes, pa.bool_()),
    }


def _times(layout: Layout) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    time, wall = layout.fields.get(b"clusterTime"), layout.fields.get(b"wallTime")
    if time is not None and time.kind == TIMESTAMP:
        seconds = layout.integers(b"clusterTime", "<u4", 4)
        columns["clusterTime"] = pa.array(seconds * 1_000_000)
        columns["clusterTimeOrdinal"] = layout.integers(b"clusterTime", "<u4")
    if wall is not None and wall.kind == DATE:
        columns["wallTime"] = pa.array(layout.integers(b"wallTime", "<i8") * 1000)
    return columns


def _namespaces(layout: Layout) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if b"ns" in layout.fields:
        slices, codes = layout.distinct(b"ns")
        parts = zip(*map(namespace_of, slices), strict=True)
        for name, texts in zip(("namespace", "database", "collection"), parts, strict=True):
            columns[name] = _taken(texts, codes, pa.string())
    return columns


def _optional(layout: Layout) -> dict[str, Any]:
    """Return the columns that few events have."""
    columns: dict[str, Any] = {}
    number = layout.fields.get(b"txnNumber")
    if number is not None and number.kind in (INT32, INT64):
        kind = "<i4" if number.kind == INT32 else "<i8"
        columns["txnNumber"] = layout.integers(b"txnNumber", kind)
    if b"to" in layout.fields:
        columns["to"] = [namespace_of(each)[0] for each in layout.slices(b"to")]
    if b"splitEvent" in layout.fields:
        columns["splitEvent"] = [fragment_position(each) for each in layout.slices(b"splitEvent")]
    return columns


def _taken(values: Sequence[Any], codes: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Return a column that has for each code the value of that index."""
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0], kind), len(codes))
    return pa.array(values, kind).take(pa.array(codes))

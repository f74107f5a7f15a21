"""Change events as rows: Arrow batches made from raw events.

`row_schema` declares the columns, which are made for all events of one layout together. A
document's column is extended JSON, BSON or a struct of a given schema, as the option `documents`
says; `event` holds the event's own bytes, without loss. Fields of events: docs/protocol.md#events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shard_client.bson.values import DATE, DOCUMENT, INT32, INT64, NULL, TIMESTAMP
from spark_sink.errors import StreamError
from spark_sink.events.header import OPERATIONS, READ, fragment_position, namespace_of
from spark_sink.events.runs import Run
from spark_sink.events.slices import UNREADABLE, document_of, fields_of
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.rows.extended_json import JsonColumns, canonical_json
from spark_sink.rows.layouts import Layout, Values, all_layouts_of, in_order
from spark_sink.rows.row_schema import DOCUMENT_COLUMNS, row_schema
from spark_sink.rows.typed_documents import RESCUED, TYPED_COLUMNS, TypedDocuments, rescued

# An Arrow batch ends with the first of these.
ROWS_PER_BATCH = 5_000
BYTES_PER_BATCH = 8 * 1024 * 1024


class EventRows:
    """Makes rows of events.

    The columns of documents hold BSON with `raw_documents`, otherwise extended JSON. With `typed`
    the columns TYPED_COLUMNS are structs, and rows have the column RESCUED. If it is `tolerant`, an
    event whose documents cannot be read becomes a row without `op` and without these documents.
    """

    def __init__(
        self,
        *,
        raw_documents: bool = False,
        canonical: bool = False,
        typed: TypedDocuments | None = None,
        tolerant: bool = False,
    ) -> None:
        self._raw = raw_documents
        self._typed = typed
        self._tolerant = tolerant
        self.schema = row_schema(
            raw_documents=raw_documents, document_type=None if typed is None else typed.schema
        )
        """The columns of every row (spark_sink.rows.row_schema)."""
        self._arrow_schema = arrow_schema(self.schema)
        self._json = JsonColumns(canonical=canonical)

    def batches(self, runs: Iterable[Run], shard: str | None = None) -> Iterator[pa.RecordBatch]:
        """Return events as Arrow batches of bounded size, in the same order; a run is not divided.

        They were read from `shard`, None for the merged stream. Raises StreamError for an event
        that cannot be read, unless the rows are tolerant.
        """
        keys: list[str] = []
        events: list[bytes] = []
        size = 0
        for run in runs:
            keys += run.keys
            events += run.events
            size += sum(map(len, run.events))
            if size >= BYTES_PER_BATCH or len(keys) >= ROWS_PER_BATCH:
                yield self._batch(keys, events, shard)
                keys, events, size = [], [], 0
        if keys:
            yield self._batch(keys, events, shard)

    def _batch(self, keys: list[str], events: list[bytes], shard: str | None) -> pa.RecordBatch:
        try:
            return self._read(keys, events, shard)
        except UNREADABLE as error:
            if len(keys) == 1:
                return self._unreadable(keys[0], events[0], shard, error)
        half = len(keys) // 2
        parts = (slice(half), slice(half, None))
        return pa.concat_batches([self._batch(keys[part], events[part], shard) for part in parts])

    def _unreadable(
        self, key: str, event: bytes, shard: str | None, error: Exception
    ) -> pa.RecordBatch:
        """Return the row of an event that cannot be read. Raises StreamError if not tolerant."""
        fields = fields_of(event)
        readable = {name: field for name, field in fields.items() if name not in _DOCUMENTS}
        name, document_key = namespace_of(fields.get(b"ns"))[0], fields.get(b"documentKey")
        shown = repr(None if document_key is None else document_key.value[4:50])
        if document_key is not None:
            with suppress(*UNREADABLE):
                shown = canonical_json(document_key)[:120]
                readable |= {b"documentKey": document_key}
        if not self._tolerant:
            raise StreamError(
                f"an event of {name} cannot be read: set errors.tolerance=all, with which a job "
                f"writes it to the table quarantine, or documents=raw (key {shown}, token {key})",
                error,
            ) from error
        row = self._read([key], [document_of(readable.items())], shard)
        columns = dict(zip(row.schema.names, row.columns, strict=True))
        columns |= {"event": [event], "op": [None]}
        return pa.RecordBatch.from_pydict(columns, self._arrow_schema)

    def _read(
        self, keys: Sequence[str], events: Sequence[bytes], shard: str | None
    ) -> pa.RecordBatch:
        tokens = pa.array(keys, pa.string())
        parts = []
        for layout in all_layouts_of(Values.of(events)):
            size = len(layout.rows)
            columns = {
                "token": tokens if size == len(keys) else tokens.take(pa.array(layout.rows)),
                "event": layout.documents.column(),
                "shard": pa.repeat(pa.scalar(shard, pa.string()), size),
                **_operations(layout, size),
                **_times(layout),
                **_namespaces(layout),
                **_optional(layout),
                **self._documents(layout),
            }
            kinds = self._arrow_schema
            arrays = [_array(columns.get(field.name), field.type, size) for field in kinds]
            parts.append((layout.rows, pa.RecordBatch.from_arrays(arrays, schema=kinds)))
        return in_order(parts)

    def _documents(self, layout: Layout) -> dict[str, Any]:
        """Return the columns of documents."""
        names = [name for name in _ALL_DOCUMENTS if name.encode() in layout.fields]
        if self._raw:
            return {name: layout.fields[name.encode()].column() for name in names}
        columns = {} if self._typed is None else self._typed_columns(self._typed, layout)
        for name in names:
            if self._typed is None or name not in TYPED_COLUMNS:
                columns[name] = self._json.texts(layout.fields[name.encode()])
        return columns

    def _typed_columns(self, typed: TypedDocuments, layout: Layout) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        not_fitting: dict[int, list[tuple[str, str]]] = {}
        for name in TYPED_COLUMNS:
            field = layout.fields.get(name.encode())
            if field is None:
                continue
            if field.kind == DOCUMENT:
                columns[name], misfits = typed.read_all(field.to_list())
            else:  # a null, or what a pipeline has put there: none of them is a struct
                misfits = [] if field.kind == NULL else list(range(len(layout.rows)))
            texts = self._json.texts(field.chosen(np.array(misfits, np.int64))).to_pylist()
            for index, text in zip(misfits, texts, strict=True):
                not_fitting.setdefault(index, []).append((name, text))
        if not_fitting:
            rows = range(len(layout.rows))
            columns[RESCUED] = [rescued(not_fitting.get(index, ())) for index in rows]
        return columns


_DOCUMENTS = tuple(name.encode() for name in DOCUMENT_COLUMNS)
_ALL_DOCUMENTS = (*DOCUMENT_COLUMNS, "lsid")


def _array(values: Any, kind: pa.DataType, size: int) -> pa.Array:
    if values is None:
        return pa.nulls(size, kind)
    if isinstance(values, pa.Array):
        return values if values.type == kind else values.cast(kind)
    return pa.array(values, type=kind)


def _operations(layout: Layout, size: int) -> dict[str, Any]:
    if b"operationType" not in layout.fields:
        return {"snapshot": pa.repeat(pa.scalar(False), size)}
    slices, codes = layout.fields[b"operationType"].distinct()
    kinds = [value.text() for value in slices]
    return {
        "operationType": _taken(kinds, codes, pa.string()),
        "op": _taken([OPERATIONS.get(kind) for kind in kinds], codes, pa.string()),
        "snapshot": _taken([kind == READ for kind in kinds], codes, pa.bool_()),
    }


def _times(layout: Layout) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    time, wall = layout.fields.get(b"clusterTime"), layout.fields.get(b"wallTime")
    if time is not None and time.kind == TIMESTAMP:
        seconds = time.integers("<u4", 4)
        columns["clusterTime"] = pa.array(seconds * 1_000_000)
        columns["clusterTimeOrdinal"] = time.integers("<u4")
    if wall is not None and wall.kind == DATE:
        columns["wallTime"] = pa.array(wall.integers("<i8") * 1000)
    return columns


def _namespaces(layout: Layout) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if b"ns" in layout.fields:
        slices, codes = layout.fields[b"ns"].distinct()
        parts = zip(*map(namespace_of, slices), strict=True)
        for name, texts in zip(("namespace", "database", "collection"), parts, strict=True):
            columns[name] = _taken(texts, codes, pa.string())
    return columns


def _optional(layout: Layout) -> dict[str, Any]:
    """Return the columns that few events have."""
    columns: dict[str, Any] = {}
    number = layout.fields.get(b"txnNumber")
    if number is not None and number.kind in (INT32, INT64):
        columns["txnNumber"] = number.whole_numbers()
    if b"to" in layout.fields:
        columns["to"] = [namespace_of(value)[0] for value in layout.fields[b"to"].slices()]
    if b"splitEvent" in layout.fields:
        columns["splitEvent"] = list(map(fragment_position, layout.fields[b"splitEvent"].slices()))
    return columns


def _taken(values: Sequence[Any], codes: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Return a column that has for each code the value of that index."""
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0], kind), len(codes))
    return pa.array(values, kind).take(pa.array(codes))

"""Change events as rows: Arrow batches made from raw events.

The header's columns are read from slices of the event, and with numpy for all events of one layout
together (`columns`). A document's column is extended JSON, BSON or a struct of a given schema, as
the option `documents` says; `event` holds the event's own bytes, without loss. Fields of events:
docs/protocol.md#events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from bson.raw_bson import RawBSONDocument

from shard_client.bson.values import DOCUMENT, NULL
from spark_sink.errors import StreamError
from spark_sink.events.header import OPERATIONS, READ, fragment_position, namespace_of
from spark_sink.events.runs import Run, run_of
from spark_sink.events.slices import UNREADABLE, Slice, fields_of
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.rows.extended_json import ToJson, canonical_json, relaxed_json
from spark_sink.rows.row_schema import DOCUMENT_COLUMNS, row_schema
from spark_sink.rows.typed_documents import RESCUED, TYPED_COLUMNS, TypedDocuments, rescued

if TYPE_CHECKING:
    from spark_sink.rows.layouts import Layout

try:
    from spark_sink.rows.columns import EventColumns, in_order
    from spark_sink.rows.layouts import MIN_EVENTS
    from spark_sink.rows.text_columns import JsonColumns
except ImportError:  # numpy is not installed
    _HAS_NUMPY = False
else:
    _HAS_NUMPY = True

# An Arrow batch ends with the first of these.
ROWS_PER_BATCH = 2_500
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
        rows_per_batch: int = ROWS_PER_BATCH,
        bytes_per_batch: int = BYTES_PER_BATCH,
    ) -> None:
        self._rows_per_batch = rows_per_batch
        self._bytes_per_batch = bytes_per_batch
        self._to_json: ToJson = canonical_json if canonical else relaxed_json
        self._raw = raw_documents
        self._typed = typed
        self._tolerant = tolerant
        self.schema = row_schema(
            raw_documents=raw_documents, document_type=None if typed is None else typed.schema
        )
        """What every row has (spark_sink.rows.row_schema)."""
        self._arrow_schema = arrow_schema(self.schema)
        self._columns = None
        if _HAS_NUMPY:
            self._columns = EventColumns(self._arrow_schema, self._document_columns)
            self._json = JsonColumns(canonical=canonical)

    def arrow_batches(
        self, events: Iterable[RawBSONDocument], shard: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Return the events as Arrow batches of bounded size, in the same order.

        They were read from `shard`, None for the merged stream. Raises StreamError for an event
        that cannot be read, unless it is tolerant.
        """
        yield from self.batches_of_runs((run_of([event]) for event in events), shard)

    def batches_of_runs(
        self, runs: Iterable[Run], shard: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Return the events of runs as Arrow batches, as `arrow_batches` does.

        A run is not divided.
        """
        keys: list[str] = []
        events: list[bytes] = []
        size = 0
        for run in runs:
            keys += run.keys
            events += run.events
            size += sum(map(len, run.events))
            if size >= self._bytes_per_batch or len(keys) >= self._rows_per_batch:
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
        readable = {name: each for name, each in fields.items() if name not in _DOCUMENTS}
        name, document_key = namespace_of(fields.get(b"ns"))[0], fields.get(b"documentKey")
        with suppress(*UNREADABLE):
            self._to_json(document_key)
            readable |= {} if document_key is None else {b"documentKey": document_key}
        if not self._tolerant:
            shown = repr(None if document_key is None else document_key.value[4:50])
            if b"documentKey" in readable:
                shown = (canonical_json(document_key) or "")[:120]
            raise StreamError(
                f"an event of {name} cannot be read: set errors.tolerance=all, with which a job "
                f"writes it to the table quarantine, or documents=raw (key {shown}, token {key})",
                error,
            ) from error
        return self._made([self._row(key, event, shard, readable)])

    def _read(self, keys: list[str], events: list[bytes], shard: str | None) -> pa.RecordBatch:
        if self._columns is None or len(keys) < MIN_EVENTS:
            return self._row_by_row(keys, events, shard)
        batches, indexes, left = self._columns.batches(keys, events, shard)
        if left:
            rest = [events[index] for index in left]
            batches.append(self._row_by_row([keys[index] for index in left], rest, shard))
            indexes.append(left)
        return in_order(batches, indexes)

    def _row_by_row(
        self, keys: list[str], events: list[bytes], shard: str | None
    ) -> pa.RecordBatch:
        return self._made(
            [self._row(key, event, shard) for key, event in zip(keys, events, strict=True)]
        )

    def _made(self, rows: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = [
            pa.array(column, type=field.type)
            for column, field in zip(zip(*rows, strict=True), self._arrow_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow_schema)

    def _row(
        self, key: str, raw: bytes, shard: str | None, readable: Mapping[bytes, Slice] | None = None
    ) -> tuple[Any, ...]:
        """Return an event's row; `readable` are its readable fields if others are not."""
        get = (fields_of(raw) if readable is None else readable).get
        documents: list[Any]
        operation, time, wall, ns, lsid, number, to, fragment = map(get, _HEADER)
        kind = None if operation is None else operation.text()
        cluster_time = None if time is None else time.second_and_tick()
        wall_time = None if wall is None else wall.milliseconds()
        rescue: tuple[str | None, ...] = ()
        if self._typed is not None:
            structs, misfits = self._typed.columns(get, self._to_json)
            document_key, description = map(self._to_json, map(get, _UNTYPED))
            documents, rescue = [document_key, *structs, description], (misfits,)
        elif self._raw:
            documents = [None if each is None else each.value for each in map(get, _DOCUMENTS)]
        else:
            documents = [*map(self._to_json, map(get, _DOCUMENTS))]
        return (
            key,
            kind,
            None if cluster_time is None else cluster_time[0] * 1_000_000,
            None if cluster_time is None else cluster_time[1],
            None if wall_time is None else wall_time * 1000,
            *namespace_of(ns),
            *documents,
            raw,
            OPERATIONS.get(kind) if readable is None else None,
            kind == READ,
            shard,
            None if lsid is None else lsid.value if self._raw else self._to_json(lsid),
            None if number is None else number.whole_number(),
            None if to is None else namespace_of(to)[0],
            None if fragment is None else fragment_position(fragment),
            *rescue,
        )

    def _document_columns(self, layout: Layout) -> dict[str, Any]:
        """Return the columns of documents of the events of a layout, as `_row` makes them."""
        columns: dict[str, Any] = {}
        if self._raw:
            for name in _ALL_DOCUMENTS:
                if name.encode() in layout.fields:
                    columns[name] = layout.column(name.encode())
            return columns
        for name in _ALL_DOCUMENTS:
            if self._typed is None or name not in TYPED_COLUMNS:
                columns[name] = self._json_column(layout, name.encode())
        if self._typed is not None:
            columns |= self._typed_columns(self._typed, layout)
        return columns

    def _json_column(self, layout: Layout, name: bytes) -> pa.Array | list[str | None] | None:
        field = layout.fields.get(name)
        if field is None:
            return None
        if field.kind == DOCUMENT:
            return self._json.texts(layout.documents(name))
        return list(map(self._to_json, layout.slices(name)))

    def _typed_columns(self, typed: TypedDocuments, layout: Layout) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        not_fitting: dict[int, list[tuple[str, str | None]]] = {}
        for name in TYPED_COLUMNS:
            field = layout.fields.get(name.encode())
            if field is None:
                continue
            if field.kind == DOCUMENT:
                columns[name], misfits = typed.read_all(layout.values(name.encode()))
            else:  # a null, or what a pipeline has put there: none of them is a struct
                misfits = [] if field.kind == NULL else list(range(len(layout.rows)))
            slices = layout.slices(name.encode()) if misfits else []
            for index in misfits:
                not_fitting.setdefault(index, []).append((name, self._to_json(slices[index])))
        if not_fitting:
            rows = range(len(layout.rows))
            columns[RESCUED] = [rescued(not_fitting.get(index, ())) for index in rows]
        return columns


_HEADER = (
    b"operationType", b"clusterTime", b"wallTime", b"ns", b"lsid", b"txnNumber", b"to",
    b"splitEvent",
)  # fmt: skip
_DOCUMENTS = tuple(name.encode() for name in DOCUMENT_COLUMNS)
_ALL_DOCUMENTS = (*DOCUMENT_COLUMNS, "lsid")
_UNTYPED = (b"documentKey", b"updateDescription")

"""Makes Debezium's messages of events.

Those of all events of one layout are made together. The texts are put together from pieces of JSON,
in the order of Debezium's fields, because most of a message is the same for all events of a
collection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shard_client.bson.values import ARRAY, DATE, DOCUMENT, INT32, INT64, TIMESTAMP
from spark_sink.debezium.connect_values import quoted
from spark_sink.debezium.envelope import VERSION, value_pieces
from spark_sink.debezium.java_json import JavaColumns, JavaJson
from spark_sink.debezium.options import MessageOptions
from spark_sink.events.header import OPERATIONS, READ, namespace_of
from spark_sink.events.heartbeats import HEARTBEAT
from spark_sink.events.slices import NOTHING, Slice, fields_of
from spark_sink.rows.arrow_types import batch_of
from spark_sink.rows.layouts import Layout, Values, all_layouts_of, in_order
from spark_sink.rows.text_columns import Pieces, joined_text

_CACHED_NAMES = 10_000
_NO_ORDER = -1
_DOCUMENTS = (b"fullDocumentBeforeChange", b"fullDocument")
_EMPTY = 5  # bytes of an array without elements
_CHANGES = (b"updatedFields", b"removedFields", b"truncatedArrays")
_Numbers = NDArray[np.int64]


MESSAGE = pa.schema(
    [
        ("row", pa.int64()),
        ("index", pa.int32()),
        *((name, pa.string()) for name in ("topic", "key", "value", "transaction", "namespace")),
        ("time", pa.int64()),
    ]
)
"""The columns of messages: the index of the event, and the message's place among those of that
event; and the fields that place it in its transaction, which are null in messages that are no
changes: the transaction's id as JSON, the collection's name, and the milliseconds since 1970 that
`source.ts_ms` has."""


class MessageMaker:
    """Makes the messages of events; `clock` returns ns since 1970."""

    def __init__(self, options: MessageOptions, clock: Callable[[], int]) -> None:
        self._options, self._clock = options, clock
        self._strict, self._identifier, self._updated = (
            JavaColumns(JavaJson(relaxed=relaxed, separator=separator))
            for relaxed, separator in ((False, ","), (True, ","), (True, ", "))
        )
        self._constants = {"version": quoted(VERSION), "name": quoted(options.prefix)}
        self._namespace = lru_cache(_CACHED_NAMES)(self._new_namespace)

    def of_events(self, events: Values) -> pa.RecordBatch:
        """Return the messages of events, in their order, as the columns MESSAGE.

        Raises InvalidBSON, LookupError for an event that lacks a field, and the transform's errors.
        """
        parts: list[pa.RecordBatch] = []
        for layout in all_layouts_of(events):
            slices, codes = layout.fields[b"operationType"].distinct()
            for code, value in enumerate(slices):
                part = layout if len(slices) == 1 else layout.chosen(codes == code)
                kind = value.text()
                if kind == HEARTBEAT:
                    parts.append(self._heartbeats(part))
                else:
                    parts += self._changes(part, kind)
        if len(parts) == 1:
            return parts[0]
        whole = pa.concat_batches([batch_of((), MESSAGE), *parts])
        return whole.sort_by([("row", "ascending"), ("index", "ascending")])

    def _heartbeats(self, layout: Layout) -> pa.RecordBatch:
        key = f'{{"serverName":{quoted(self._options.prefix)}}}'
        value = f'{{"ts_ms":{self._clock() // 1_000_000}}}'
        return _batch(layout.rows, 0, self._options.topic_of_heartbeats, key, value)

    def _changes(self, layout: Layout, kind: str | None) -> Iterator[pa.RecordBatch]:
        """Return the messages of changes of one kind, and those of tombstones."""
        fields, size = layout.fields, len(layout.rows)
        ms, times = self._times(layout, is_read=kind == READ)
        slices, places = fields[b"ns"].distinct()
        columns = zip(*(self._namespace(part.value) for part in slices), strict=True)
        name, topic, database, collection = (_taken(column, places) for column in columns)
        key = joined_text(['{"id":"', *self._keys(fields[b"documentKey"]), '"}'], size)
        session, number, transaction = self._transactions(layout)
        before, after = (self._document(fields.get(name)) for name in _DOCUMENTS)
        value = value_pieces(
            {
                **self._constants,
                **times,
                "before": before,
                "after": after,
                "description": self._descriptions(fields.get(b"updateDescription")),
                "database": database,
                "collection": collection,
                "session": session,
                "number": number,
                "op": f'"{OPERATIONS[kind]}"',
                "now": str(self._clock() // 1_000_000),
            }
        )
        values = joined_text(value, size)
        if self._options.transform is not None:
            yield self._transformed(layout, joined_text([topic], size), values)
            return
        yield _batch(layout.rows, 0, topic, key, values, transaction, name, pa.array(ms))
        if self._options.tombstones and kind == "delete":
            yield _batch(layout.rows, 1, topic, key)

    def _transformed(self, layout: Layout, topics: pa.Array, values: pa.Array) -> pa.RecordBatch:
        """Return what the transform makes of the messages with these topics and values."""
        transform, tombstones = self._options.transform, self._options.tombstones
        assert transform is not None
        events = layout.documents.to_list()
        made = (
            (row, index, *message, None, None, None)
            for row, event, topic, value in zip(
                layout.rows.tolist(), events, topics.to_pylist(), values.to_pylist(), strict=True
            )
            for index, message in enumerate(
                transform.messages(topic, fields_of(event), value, tombstones=tombstones)
            )
        )
        return batch_of(made, MESSAGE)

    def _document(self, documents: Values | None) -> Pieces:
        if documents is None or documents.kind != DOCUMENT:
            return ["null"]
        return ['"', *self._strict.values(documents), '"']

    def _keys(self, keys: Values) -> Pieces:
        """Return the texts of the `_id` of document keys."""
        parts = []
        for layout in all_layouts_of(keys):
            texts = self._identifier.values(layout.fields[b"_id"])
            parts.append((layout.rows, joined_text(texts, len(layout.rows))))
        return [in_order(parts)]

    def _descriptions(self, described: Values | None) -> Pieces:
        if described is None or described.kind != DOCUMENT:
            return ["null"]
        parts = []
        for layout in all_layouts_of(described):
            updated, removed, truncated = map(layout.fields.get, _CHANGES)
            texts: Pieces = ["null"]
            if updated is not None and updated.kind == DOCUMENT:
                texts = ['"', *self._updated.values(updated), '"']
            pieces = [
                *('{"removedFields":', _listed(removed, _removal)),
                *(',"updatedFields":', *texts),
                *(',"truncatedArrays":', _listed(truncated, _truncation), "}"),
            ]
            parts.append((layout.rows, joined_text(pieces, len(layout.rows))))
        return [in_order(parts)]

    def _transactions(self, layout: Layout) -> tuple[Pieces, Pieces, pa.Array]:
        """Return the sessions, the transactions' numbers, and their ids."""
        session, number = layout.fields.get(b"lsid"), layout.fields.get(b"txnNumber")
        size = len(layout.rows)
        if session is None or number is None or number.kind not in (INT32, INT64):
            return ["null"], ["null"], pa.nulls(size, pa.string())
        texts = joined_text(self._strict.values(session), size)
        numbers = _text(number.whole_numbers())
        name = joined_text(['"', texts, ":", numbers, '"'], size)
        return ['"', texts, '"'], [numbers], name

    def _times(self, layout: Layout, *, is_read: bool) -> tuple[_Numbers, dict[str, Any]]:
        """Return `source.ts_ms`, and the parts of the value that are times.

        Of a snapshot's documents only those of incremental ones have cluster times.
        """
        time, wall = layout.fields[b"clusterTime"], layout.fields.get(b"wallTime")
        if time.kind != TIMESTAMP:
            raise LookupError("clusterTime")
        ns, order = time.integers("<u4", 4) * 1_000_000_000, time.integers("<u4")
        shown: str | pa.Array = "null"
        snapshot: str | pa.Array = "false"
        if is_read:
            signals, codes = [NOTHING], np.zeros(len(layout.rows), np.int64)
            if b"signal" in layout.fields:
                signals, codes = layout.fields[b"signal"].distinct()
            kinds = [_snapshot_of(signal) for signal in signals]
            snapshot = _taken(kinds, codes)
            is_incremental = np.array([kind == "incremental" for kind in kinds])[codes]
            ns = np.where(is_incremental, ns, self._clock())
            order = np.where(is_incremental, order, _NO_ORDER)
        elif wall is not None and wall.kind == DATE:
            walls = wall.integers("<i8")
            shown, ns = _text(walls), walls * 1_000_000
        numbers = {"ms": ns // 1_000_000, "us": ns // 1000, "ns": ns, "order": order}
        parts: dict[str, Any] = {name: _text(column) for name, column in numbers.items()}
        return numbers["ms"], {**parts, "wall": shown, "snapshot": ['"', snapshot, '"']}

    def _new_namespace(self, ns: bytes) -> tuple[str, str, str, str]:
        """Return a collection's full name, its topic, and the names of both parts as JSON."""
        name, database, collection = namespace_of(Slice(DOCUMENT, ns))
        database, collection = database or "", collection or ""
        topic = self._options.topic(database, collection)
        return name or "", topic, quoted(database), quoted(collection)


def _batch(rows: _Numbers, index: int, *columns: str | pa.Array) -> pa.RecordBatch:
    """Return messages of these rows; the columns are those from `topic` on, others are null."""
    size, kinds = len(rows), MESSAGE.types[2:]
    made = [pa.repeat(column, size) if isinstance(column, str) else column for column in columns]
    made += [pa.nulls(size, kind) for kind in kinds[len(columns) :]]
    return pa.RecordBatch.from_arrays(
        [pa.array(rows), pa.repeat(pa.scalar(index, pa.int32()), size), *made], schema=MESSAGE
    )


def _snapshot_of(signal: Slice) -> str:
    """Return the field `snapshot` of documents that a signal has let a snapshot read."""
    kind = signal.fields().get(b"type", NOTHING).text()
    return "incremental" if kind == "incremental" else "true"


def _listed(arrays: Values | None, text_of: Callable[[Slice], str]) -> str | pa.Array:
    """Return arrays as JSON, with the texts of their elements; an empty array is null."""
    if arrays is None or arrays.kind != ARRAY or (arrays.stops - arrays.starts == _EMPTY).all():
        return "null"
    texts = (",".join(map(text_of, fields_of(array).values())) for array in arrays.to_list())
    return pa.array((f"[{text}]" if text else "null" for text in texts), pa.string())


def _removal(path: Slice) -> str:
    return quoted(path.text() or "")


def _truncation(array: Slice) -> str:
    fields = array.fields()
    size = fields[b"newSize"].whole_number()
    return f'{{"field":{quoted(fields[b"field"].text() or "")},"size":{size}}}'


def _text(numbers: _Numbers) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _taken(texts: Sequence[str], codes: _Numbers) -> str | pa.Array:
    """Return for each code the text of that index: one text, if there is only one."""
    if len(texts) == 1:
        return texts[0]
    return pa.array(texts, pa.string()).take(pa.array(codes))

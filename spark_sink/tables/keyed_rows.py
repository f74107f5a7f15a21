"""Rows of a table and events in one form, each with the place of its document.

The rows with the columns KEYED are the input of `Fold`. DDL events and ends of snapshots change
many rows together. So each row, and each event, is compared with the DDL events after it in the
stream, which change its namespace or remove it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from shard_client.bson.values import DOCUMENT, STRING
from spark_sink.events.header import SNAPSHOT_END
from spark_sink.events.slices import UNREADABLE, Slice, document_of, field_of, fields_of
from spark_sink.rows.arrow_types import arrow_schema, batch_of, rows_in
from spark_sink.rows.extended_json import JsonColumns, canonical_json
from spark_sink.rows.layouts import Indexes, Layout, Values, all_layouts_of, in_order
from spark_sink.rows.row_schema import columns
from spark_sink.rows.text_columns import joined_text
from spark_sink.tables.ddl_events import DdlEvent

KEYED = StructType(
    columns("place string!, token string!, documentKey string, kind long!, payload binary!")
)
DELETED_ROW, ROW, EVENT, INAPPLICABLE = -1, 0, 1, 2
"""The values of `kind`: the row of a deleted document, another row, an event of a document, and an
event that belongs to no document."""
DELETED = "_deleted"
"""The column of a table that keeps the rows of deleted documents."""

_REPLACE = Slice(STRING, b"\x08\0\0\0replace\0")
_DELETE = Slice(STRING, b"\x07\0\0\0delete\0")


@dataclass
class KeyedRows:
    """Makes rows of KEYED from rows of a table, or from a source's rows.

    Args:
        keys: the fields of the document key that identify a document.
        ddl_events: sorted DDL events.
    """

    keys: Sequence[str]
    ddl_events: Sequence[DdlEvent]

    def __post_init__(self) -> None:
        self._tokens = [event.token for event in self.ddl_events]
        # Their indexes by prefixes of places: a batch may drop thousands of collections.
        self._concerning: dict[str, list[int]] = {}
        for index, event in enumerate(self.ddl_events):
            for prefix in event.prefixes:
                self._concerning.setdefault(prefix, []).append(index)

    def table_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert database, collection, key, token, documentKey, document.

        DELETED follows in a table that has it: there, the end of a snapshot marks rows as deleted.
        """
        for batch in batches:
            texts = [column.cast(pa.string()) for column in batch.columns[:5]]
            place = pc.binary_join_element_wise(*texts[:3], "\0")
            arrays = [place, *texts[3:], kinds_of(batch), batch.column(5).cast(pa.binary())]
            rows = pa.RecordBatch.from_arrays(arrays, schema=_KEYED_ARROW)
            yield self.after_ddl(rows, keeps_deleted=DELETED in batch.schema.names)

    def events(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert database, collection, token, event.

        An event without a readable key becomes an INAPPLICABLE row, which `Fold` reports.
        """
        for batch in batches:
            yield self.after_ddl(self._keyed(batch))

    def _keyed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if not rows.num_rows:
            return batch_of((), _KEYED_ARROW)
        parts: list[tuple[Indexes, pa.RecordBatch]] = []
        former: dict[int, bytes] = {}
        for layout in all_layouts_of(Values.of(rows["event"])):
            documents = layout.fields.get(b"documentKey")
            if documents is None or documents.kind != DOCUMENT or b"splitEvent" in layout.fields:
                parts.append((layout.rows, _inapplicable(len(layout.rows))))
                continue
            if changed := _changed_keys(layout):
                keys = documents.to_list()
                for index, key in changed.items():
                    former[int(layout.rows[index])], keys[index] = keys[index], key
                documents = Values.of(keys)
            parts.append((layout.rows, self._keys_of(documents)))
        keyed = _with_keys(rows, in_order(parts), rows["event"])
        if not former:
            return keyed
        deletes = (
            [(b"operationType", _DELETE), (b"documentKey", Slice(DOCUMENT, key))]
            for key in former.values()
        )
        events = pa.array(map(document_of, deletes), pa.binary())
        removed = self._keys_of(Values.of(list(former.values())))
        return pa.concat_batches(
            [keyed, _with_keys(rows.take(pa.array(list(former))), removed, events)]
        )

    def _keys_of(self, documents: Values) -> pa.RecordBatch:
        """Return the columns _KEYS of events with these keys of documents."""
        try:
            return self._read_keys(documents)
        except UNREADABLE:
            if len(documents) == 1:
                return _inapplicable(1)
        singles = (documents.chosen(np.array([row])) for row in range(len(documents)))
        return pa.concat_batches(map(self._keys_of, singles))

    def _read_keys(self, documents: Values) -> pa.RecordBatch:
        texts = JsonColumns(canonical=True)
        parts = []
        for layout in all_layouts_of(documents):
            size = len(layout.rows)
            fields = (layout.fields.get(name.encode()) for name in self.keys)
            arrays = [
                joined_text(["null"], size) if field is None else texts.texts(field)
                for field in fields
            ]
            if len(arrays) > 1:
                arrays = [joined_text(["[", *_between(arrays), "]"], size)]
            parts.append((layout.rows, arrays[0]))
        kinds = pa.repeat(pa.scalar(EVENT, pa.int64()), len(documents))
        arrays = [in_order(parts), texts.texts(documents), kinds]
        return pa.RecordBatch.from_arrays(arrays, schema=_KEYS)

    def after_ddl(self, keyed: pa.RecordBatch, *, keeps_deleted: bool = False) -> pa.RecordBatch:
        """Return rows of KEYED with the namespaces that the DDL events give them.

        In a table that `keeps_deleted`, the end of a snapshot marks a row instead of removing it.
        """
        if not self.ddl_events:
            return keyed
        followed = (self._after_ddl(*row, keeps_deleted=keeps_deleted) for row in rows_in(keyed))
        return batch_of((row for row in followed if row is not None), _KEYED_ARROW)

    def _after_ddl(
        self, place: str, token: str, *rest: Any, keeps_deleted: bool
    ) -> tuple[Any, ...] | None:
        """Return a row after the DDL events with larger tokens; None if they remove it."""
        document_key, kind, payload = rest
        database, collection, key = place.split("\0")
        index = bisect_right(self._tokens, token)
        while (number := self._next(database, collection, index)) is not None:
            event, index = self.ddl_events[number], number + 1
            if event.token <= token:
                continue
            after = event.result(database, collection)
            if after is not None:
                database, collection = after
            elif keeps_deleted and event.kind == SNAPSHOT_END:
                token, kind = (token if kind == DELETED_ROW else event.token), DELETED_ROW
            else:
                return None
        return "\0".join((database, collection, key)), token, document_key, kind, payload

    def _next(self, database: str, collection: str, index: int) -> int | None:
        """Return the index, from `index` on, of the next event that concerns a namespace."""
        numbers: list[int] = []
        for prefix in (f"{database}\0{collection}\0", f"{database}\0", ""):
            indexes = self._concerning.get(prefix, [])
            first = bisect_left(indexes, index)
            numbers += indexes[first : first + 1]
        return min(numbers, default=None)


def _changed_keys(layout: Layout) -> dict[int, bytes]:
    """Return the keys that differ after replaces, by the index of the event in the layout.

    An `_id` may become an equal number of another type, or a document with such numbers.
    """
    full = layout.fields.get(b"fullDocument")
    kinds, codes = layout.fields[b"operationType"].distinct()
    if full is None or full.kind != DOCUMENT or _REPLACE not in kinds:
        return {}
    replaces = np.flatnonzero(codes == kinds.index(_REPLACE))
    chosen = layout.chosen(replaces)
    changed = {}
    keys, documents = (chosen.fields[name].to_list() for name in (b"documentKey", b"fullDocument"))
    pairs = zip(keys, documents, strict=True)
    for index, (key, document) in zip(replaces.tolist(), pairs, strict=True):
        if document.startswith(key[4:-1], 4):
            continue
        before, identifier = fields_of(key), field_of(document, b"_id")
        if identifier is not None and before.get(b"_id") not in (None, identifier):
            changed[index] = document_of({**before, b"_id": identifier}.items())
    return changed


def _inapplicable(size: int) -> pa.RecordBatch:
    """Return the columns _KEYS of events that belong to no document."""
    return batch_of([("", None, INAPPLICABLE)] * size, _KEYS)


def _with_keys(rows: pa.RecordBatch, keys: pa.RecordBatch, events: pa.Array) -> pa.RecordBatch:
    """Return rows of KEYED from rows of the source and the columns _KEYS."""
    names = (pc.fill_null(rows[name], "") for name in ("database", "collection"))
    key, document_key, kind = keys.columns
    place = pc.binary_join_element_wise(*names, key, "\0")
    arrays = [place, rows["token"], document_key, kind, events]
    return pa.RecordBatch.from_arrays(arrays, schema=_KEYED_ARROW)


def _between(arrays: Sequence[pa.Array]) -> list[str | pa.Array]:
    """Return arrays with commas between them."""
    return [part for array in arrays for part in (",", array)][1:]


def problem_of(document_key: Slice | None) -> str:
    """Return why an event belongs to no document: it has no readable key, or is a fragment."""
    if document_key is None:
        return (
            "an event has no documentKey: a current table requires complete events. Remove stages "
            "that drop fields from option 'pipeline'"
        )
    try:
        canonical_json(document_key)
    except UNREADABLE as error:
        return f"the key of an event cannot be read: {error}"
    return (
        "a current table requires complete events, and a query that begins or ends within one "
        "has its fragments: begin the query at another token"
    )


def kinds_of(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """Return the `kind` that rows of a table have in KEYED."""
    live = pa.scalar(ROW, pa.int64())
    if DELETED not in rows.schema.names:
        return pa.repeat(live, rows.num_rows)
    deleted = pc.fill_null(rows[DELETED], fill_value=False)
    return pc.if_else(deleted, pa.scalar(DELETED_ROW, pa.int64()), live)


def order_of(rows: pa.Table) -> pa.Array | None:
    """Return the indexes that sort rows of KEYED by place, token and kind; None if sorted."""
    keys = [(name, "ascending") for name in ("place", "token", "kind")]
    order = pc.sort_indices(rows, sort_keys=keys)
    return None if np.array_equal(order.to_numpy(), np.arange(len(order))) else order


def sorted_rows(rows: pa.Table) -> pa.Table:
    """Return rows of KEYED in the order of `order_of`; sorted rows are not copied."""
    order = order_of(rows)
    return rows if order is None else rows.take(order)


_KEYED_ARROW = arrow_schema(KEYED)
_KEYS = pa.schema(
    [("key", pa.string()), *(_KEYED_ARROW.field(name) for name in ("documentKey", "kind"))]
)

"""Makes Debezium's messages of events.

Those of all events of one layout are made together. The texts are put together from pieces of JSON,
in the order of Debezium's fields, because most of a message is the same for all events of a
collection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shard_client.bson.values import ARRAY, DATE, DOCUMENT, INT32, INT64, NULL, TIMESTAMP
from spark_sink.debezium.connect_values import quoted
from spark_sink.debezium.envelope import VERSIONS, value_pieces
from spark_sink.debezium.java_json import JavaColumns, JavaJson
from spark_sink.debezium.options import MessageOptions
from spark_sink.events.header import OPERATIONS, READ, namespace_of
from spark_sink.events.heartbeats import HEARTBEAT
from spark_sink.events.slices import OBJECT_ID_KEY, Slice, fields_of
from spark_sink.rows.layouts import (
    Field,
    JoinedEvents,
    Layout,
    all_layouts_of,
    in_order,
    layouts_of,
)
from spark_sink.rows.text_columns import Pieces, joined_text

_CACHED_NAMES = 10_000
_NO_ORDER = -1
_DOCUMENTS = (b"fullDocumentBeforeChange", b"fullDocument")
_NOTHING = Slice(NULL, b"")
_EMPTY_ARRAY = 5  # bytes
_UPDATED, _REMOVALS = b"updatedFields", {b"removedFields", b"truncatedArrays"}
_Numbers = NDArray[np.int64]


class Message(NamedTuple):
    """A message, and the fields that place it in its transaction.

    `transaction` is the transaction's id as JSON, `namespace` the collection's name, `time` the
    milliseconds since 1970 that `source.ts_ms` has; None and 0 in messages that are no changes.
    """

    topic: str
    key: str
    value: str | None
    transaction: str | None = None
    namespace: str | None = None
    time: int = 0


MESSAGE = pa.schema(
    [(name, pa.string()) for name in Message._fields[:-1]] + [(Message._fields[-1], pa.int64())]
)
"""The columns of messages."""


def columns_of(messages: Iterable[Message]) -> list[pa.Array]:
    """Return messages as the columns MESSAGE."""
    columns = list(zip(*messages, strict=True)) or [()] * len(MESSAGE)
    return [pa.array(each, field.type) for each, field in zip(columns, MESSAGE, strict=True)]


class MadeMessages(NamedTuple):
    """Messages: for each its event's index, its place among that event's messages, its columns.

    `columns` are those of MESSAGE.
    """

    rows: _Numbers
    places: _Numbers
    columns: list[pa.Array]

    def of_rows(self, column: pa.Array) -> pa.Array:
        """Return for each message the value that a column has for its event."""
        if np.array_equal(self.rows, np.arange(len(column))):
            return column
        return column.take(pa.array(self.rows))

    @property
    def index(self) -> pa.Array:
        """The places as a column."""
        return pa.array(self.places, pa.int64()).cast(pa.int32())


class MessageMaker:
    """Makes the messages of events; `clock` returns ns since 1970."""

    def __init__(self, options: MessageOptions, clock: Callable[[], int]) -> None:
        self._options, self._clock = options, clock
        plus = not options.is_old
        self._strict, self._identifier, self._updated = (
            JavaColumns(JavaJson(relaxed=relaxed, separator=separator, plus=plus))
            for relaxed, separator in ((False, ","), (True, ","), (True, ", "))
        )
        self._constants = {
            "version": quoted(VERSIONS[options.version]),
            "name": quoted(options.prefix),
        }
        self._namespace = lru_cache(_CACHED_NAMES)(self._new_namespace)

    def of_events(self, events: JoinedEvents) -> MadeMessages:
        """Return the messages of events, in their order.

        Raises InvalidBSON, LookupError for an event that lacks a field, and the transform's errors.
        """
        parts: list[MadeMessages] = []
        for layout in all_layouts_of(events):
            slices, codes = layout.distinct(b"operationType")
            kinds = [each.text() for each in slices]
            groups = [kind if kind in (HEARTBEAT, READ) else None for kind in kinds]
            for group in dict.fromkeys(groups):
                chosen = np.array([each == group for each in groups])[codes]
                part = layout if chosen.all() else layout.chosen(chosen)
                if group == HEARTBEAT:
                    parts.append(self._heartbeats(part))
                else:
                    parts += self._changes(part, is_read=group == READ)
        if not parts:
            return MadeMessages(np.zeros(0, np.int64), np.zeros(0, np.int64), columns_of(()))
        if len(parts) == 1:
            return parts[0]
        rows, places = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
        order = np.lexsort((places, rows))
        taken = pa.array(order)
        columns = zip(*(part.columns for part in parts), strict=True)
        return MadeMessages(
            rows[order], places[order], [pa.concat_arrays(each).take(taken) for each in columns]
        )

    def _heartbeats(self, layout: Layout) -> MadeMessages:
        message = Message(
            self._options.heartbeats,
            f'{{"serverName":{quoted(self._options.prefix)}}}',
            f'{{"ts_ms":{self._clock() // 1_000_000}}}',
        )
        size = len(layout.rows)
        return MadeMessages(layout.rows, np.zeros(size, np.int64), columns_of([message] * size))

    def _changes(self, layout: Layout, *, is_read: bool) -> Iterator[MadeMessages]:
        """Return the messages of changes, and those of tombstones."""
        joined, fields, size = layout.joined, layout.fields, len(layout.rows)
        slices, codes = layout.distinct(b"operationType")
        letters = [OPERATIONS[each.text()] for each in slices]
        times = self._read_times(layout) if is_read else self._times(layout)
        namespaces = self._namespaces(layout)
        key = joined_text(['{"id":"', *self._keys(joined, fields[b"documentKey"]), '"}'], size)
        session, number, transaction = self._transactions(layout)
        before, after = (self._document(joined, fields.get(name)) for name in _DOCUMENTS)
        value = value_pieces(
            {
                **self._constants,
                "before": before,
                "after": after,
                "description": self._descriptions(joined, fields.get(b"updateDescription")),
                "ms": _text(times.ms),
                "snapshot": ['"', times.snapshot, '"'],
                "database": namespaces.database,
                "us": _text(times.us),
                "ns": _text(times.ns),
                "collection": namespaces.collection,
                "order": _text(times.order),
                "session": session,
                "number": number,
                "wall": times.wall,
                "op": ['"', _taken(letters, codes), '"'],
                "now": str(self._clock() // 1_000_000),
            }
        )
        values = joined_text(value, size)
        topic, name = (joined_text([each], size) for each in (namespaces.topic, namespaces.name))
        if self._options.transform is not None:
            yield self._transformed(layout, topic, values)
            return
        columns = [topic, key, values, transaction, name, pa.array(times.ms)]
        yield MadeMessages(layout.rows, np.zeros(size, np.int64), columns)
        deleted = np.array([letter == "d" for letter in letters])[codes]
        if self._options.tombstones and deleted.any():
            which = pa.array(deleted)
            pairs = zip(topic.filter(which).to_pylist(), key.filter(which).to_pylist(), strict=True)
            rows, tombstones = layout.rows[deleted], (Message(*each, None) for each in pairs)
            yield MadeMessages(rows, np.ones(len(rows), np.int64), columns_of(tombstones))

    def _transformed(self, layout: Layout, topics: pa.Array, values: pa.Array) -> MadeMessages:
        """Return what the transform makes of the messages with these topics and values."""
        transform, tombstones = self._options.transform, self._options.tombstones
        assert transform is not None
        events = layout.joined.column(layout.rows).to_pylist()
        found = [
            (row, place, Message(*message))
            for row, event, topic, value in zip(
                layout.rows.tolist(), events, topics.to_pylist(), values.to_pylist(), strict=True
            )
            for place, message in enumerate(
                transform.messages(topic, fields_of(event), value, tombstones=tombstones)
            )
        ]
        rows, places = (np.array([each[at] for each in found], np.int64) for at in (0, 1))
        return MadeMessages(rows, places, columns_of(each for _, _, each in found))

    def _document(self, joined: JoinedEvents, field: Field | None) -> Pieces:
        if field is None or field.kind != DOCUMENT:
            return ["null"]
        return ['"', *self._strict.values(joined, field), '"']

    def _keys(self, joined: JoinedEvents, field: Field) -> Pieces:
        """Return the texts of the `_id` of document keys."""
        if joined.begin_with(OBJECT_ID_KEY, field.starts).all():
            starts = field.starts + len(OBJECT_ID_KEY)
            return ['{\\"$oid\\": \\"', joined.hexadecimal(starts, 12), '\\"}']
        parts = []
        for layout in all_layouts_of(joined.of_field(field)):
            texts = self._identifier.values(joined, layout.fields[b"_id"])
            parts.append((layout.rows, joined_text(texts, len(layout.rows))))
        return [in_order(parts)]

    def _descriptions(self, joined: JoinedEvents, field: Field | None) -> Pieces:
        """Return the descriptions of updates, together where no field or element was removed."""
        if field is None or field.kind != DOCUMENT:
            return ["null"]
        described = joined.of_field(field)
        layouts, left = layouts_of(described)
        parts, others = [], [left]
        for layout in layouts:
            updated, known = layout.fields.get(_UPDATED), {_UPDATED, *_REMOVALS}
            if updated is None or updated.kind != DOCUMENT or not layout.fields.keys() <= known:
                others.append(layout.rows)
                continue
            common = np.ones(len(layout.rows), np.bool_)
            for name in _REMOVALS & layout.fields.keys():
                removed = layout.fields[name]
                common &= removed.stops - removed.starts == _EMPTY_ARRAY
            if common.any():
                texts = self._updated.values(described, updated.chosen(common))
                pieces = ['{"removedFields":null,"updatedFields":"', *texts]
                whole = joined_text([*pieces, '","truncatedArrays":null}'], int(common.sum()))
                parts.append((layout.rows[common], whole))
            others.append(layout.rows[~common])
        rest = np.concatenate(others)
        alone = map(self._description, joined.of_field(field.chosen(rest)).values())
        return [in_order([*parts, (rest, pa.array(alone, pa.string()))])]

    def _description(self, description: bytes) -> str:
        """Return an update's description as JSON. Raises InvalidBSON."""
        parts = fields_of(description)
        removed = ",".join(quoted(each.text() or "") for each in _elements(parts, b"removedFields"))
        arrays = (fields_of(each.value) for each in _elements(parts, b"truncatedArrays"))
        truncated = ",".join(
            f'{{"field":{quoted(each[b"field"].text() or "")},'
            f'"size":{each[b"newSize"].whole_number()}}}'
            for each in arrays
        )
        updated = parts.get(_UPDATED)
        text = None if updated is None else self._updated.text(DOCUMENT, updated.value)
        return (
            f'{{"removedFields":{f"[{removed}]" if removed else "null"},"updatedFields":'
            f"{'null' if text is None else encode_basestring(text)},"
            f'"truncatedArrays":{f"[{truncated}]" if truncated else "null"}}}'
        )

    def _transactions(self, layout: Layout) -> tuple[Pieces, Pieces, pa.Array]:
        """Return the sessions, the transactions' numbers, and their ids."""
        session, number = layout.fields.get(b"lsid"), layout.fields.get(b"txnNumber")
        size = len(layout.rows)
        if session is None or number is None or number.kind not in (INT32, INT64):
            return ["null"], ["null"], pa.nulls(size, pa.string())
        texts = joined_text(self._strict.values(layout.joined, session), size)
        numbers = layout.integers(b"txnNumber", "<i4" if number.kind == INT32 else "<i8")
        name = joined_text(['"', texts, ":", _text(numbers), '"'], size)
        return ['"', texts, '"'], [_text(numbers)], name

    def _times(self, layout: Layout) -> _Times:
        seconds, order = _cluster_times(layout)
        wall, walls = layout.fields.get(b"wallTime"), None
        if wall is not None and wall.kind == DATE:
            walls = layout.integers(b"wallTime", "<i8")
        ms = seconds * 1000 if walls is None or self._options.is_old else walls
        shown = "null" if walls is None else _text(walls)
        return _Times(ms, ms * 1000, ms * 1_000_000, shown, order, "false")

    def _read_times(self, layout: Layout) -> _Times:
        """Return the times of documents of snapshots: incremental ones have cluster times."""
        (seconds, order), size = _cluster_times(layout), len(layout.rows)
        signals, codes = [_NOTHING], np.zeros(size, np.int64)
        if b"signal" in layout.fields:
            signals, codes = layout.distinct(b"signal")
        kinds = [_snapshot_of(each) for each in signals]
        is_incremental = np.array([each == "incremental" for each in kinds])[codes]
        now = 0 if self._options.is_old else self._clock()
        ms, us, ns, ordinal = (
            np.where(is_incremental, *each)
            for each in (
                (seconds * 1000, now // 1_000_000),
                (seconds * 1_000_000, now // 1000),
                (seconds * 1_000_000_000, now),
                (order, _NO_ORDER),
            )
        )
        return _Times(ms, us, ns, "null", ordinal, _taken(kinds, codes))

    def _namespaces(self, layout: Layout) -> _Namespace:
        slices, codes = layout.distinct(b"ns")
        found = [self._namespace(each.value) for each in slices]
        return _Namespace(*(_taken(names, codes) for names in zip(*found, strict=True)))

    def _new_namespace(self, ns: bytes) -> _Namespace:
        name, database, collection = namespace_of(Slice(DOCUMENT, ns))
        database, collection = database or "", collection or ""
        topic = self._options.topic(database, collection)
        return _Namespace(name or "", topic, quoted(database), quoted(collection))


class _Namespace(NamedTuple):
    """A collection: its full name, its topic, and the names of both parts as JSON.

    They are texts, or columns of texts.
    """

    name: Any
    topic: Any
    database: Any
    collection: Any


class _Times(NamedTuple):
    """The times in a block `source`: since 1970 in ms, µs and ns; `wallTime` as JSON; `ord`.

    `snapshot` is the field of that name.
    """

    ms: _Numbers
    us: _Numbers
    ns: _Numbers
    wall: str | pa.Array
    order: _Numbers
    snapshot: str | pa.Array


def _cluster_times(layout: Layout) -> tuple[_Numbers, _Numbers]:
    """Return seconds since 1970, and the ordinals within them."""
    if layout.fields[b"clusterTime"].kind != TIMESTAMP:
        raise LookupError("clusterTime")
    return layout.integers(b"clusterTime", "<u4", 4), layout.integers(b"clusterTime", "<u4")


def _snapshot_of(signal: Slice) -> str:
    """Return the field `snapshot` of documents that a signal has let a snapshot read."""
    fields = fields_of(signal.value) if signal.kind == DOCUMENT else {}
    return "incremental" if fields.get(b"type", _NOTHING).text() == "incremental" else "true"


def _elements(parts: dict[bytes, Slice], name: bytes) -> Iterable[Slice]:
    field = parts.get(name)
    return () if field is None or field.kind != ARRAY else fields_of(field.value).values()


def _text(numbers: _Numbers) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _taken(texts: Sequence[str], codes: _Numbers) -> str | pa.Array:
    """Return for each code the text of that index: one text, if there is only one."""
    if len(texts) == 1:
        return texts[0]
    return pa.array(texts, pa.string()).take(pa.array(codes))

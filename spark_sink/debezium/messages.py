"""Makes Debezium's messages of events.

The texts are put together from pieces of JSON, in the order of Debezium's fields, because most of a
message is the same for all events of a collection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, NamedTuple

import pyarrow as pa

from shard_client.bson.values import ARRAY, DOCUMENT, NULL
from spark_sink.debezium.connect_values import quoted
from spark_sink.debezium.envelope import Envelope, EventParts
from spark_sink.debezium.java_json import JavaJson
from spark_sink.debezium.options import MessageOptions
from spark_sink.events.header import OPERATIONS, READ, namespace_of
from spark_sink.events.heartbeats import HEARTBEAT
from spark_sink.events.slices import OBJECT_ID_KEY, Slice, fields_of

_CACHED_NAMES = 10_000
NO_ORDER = -1
DOCUMENTS = (b"fullDocumentBeforeChange", b"fullDocument")
_NOTHING = Slice(NULL, b"")


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


class Made(NamedTuple):
    """Messages: for each its event's index, its place among that event's messages, its columns.

    `rows` and `places` are lists or arrays of integers, `columns` those of MESSAGE.
    """

    rows: Any
    places: Any
    columns: list[pa.Array]

    def of_rows(self, column: pa.Array) -> pa.Array:
        """Return for each message the value that a column has for its event."""
        return column.take(pa.array(self.rows, pa.int64()))

    @property
    def index(self) -> pa.Array:
        """The places as a column."""
        return pa.array(self.places, pa.int64()).cast(pa.int32())


class Maker:
    """Makes the messages of events, from their fields; `clock` returns ns since 1970."""

    def __init__(self, options: MessageOptions, clock: Callable[[], int]) -> None:
        self.options, self.clock = options, clock
        plus = not options.is_old
        self.strict = JavaJson(relaxed=False, separator=",", plus=plus)
        self.identifier = JavaJson(relaxed=True, separator=",", plus=plus)
        self.updated = JavaJson(relaxed=True, separator=", ", plus=plus)
        self._heartbeat_key = f'{{"serverName":{quoted(options.prefix)}}}'
        self.envelope = Envelope(options.version, options.prefix)
        self.namespace = lru_cache(_CACHED_NAMES)(self._new_namespace)

    def of_events(self, events: Sequence[bytes]) -> Made:
        """Return the messages of events, in their order. Raises InvalidBSON."""
        made = [list(self.of_event(event)) for event in events]
        rows = [row for row, messages in enumerate(made) for _ in messages]
        places = [place for messages in made for place in range(len(messages))]
        return Made(rows, places, columns_of(each for messages in made for each in messages))

    def of_event(self, event: bytes) -> Iterator[Message]:
        """Return an event's messages: a change and perhaps a tombstone, or a heartbeat.

        Raises InvalidBSON.
        """
        fields = fields_of(event)
        kind = fields[b"operationType"].text()
        if kind == HEARTBEAT:
            value = f'{{"ts_ms":{self.clock() // 1_000_000}}}'
            yield Message(self.options.heartbeats, self._heartbeat_key, value)
            return
        namespace = self.namespace(fields[b"ns"].value)
        key = self.key(fields[b"documentKey"].value)
        before, after = (self._document(fields.get(name)) for name in DOCUMENTS)
        lsid, number, transaction = "null", "null", None
        if b"txnNumber" in fields and b"lsid" in fields:
            text = self.strict.document(fields[b"lsid"].value)
            number = str(fields[b"txnNumber"].whole_number())
            lsid, transaction = encode_basestring(text), encode_basestring(f"{text}:{number}")
        now = self.clock()
        times = self._times(fields, kind, now)
        letter = OPERATIONS[kind]
        value = self.envelope.text(
            EventParts(
                before=before,
                after=after,
                description=self.description(fields.get(b"updateDescription")),
                ms=times.ms,
                snapshot=f'"{times.snapshot}"',
                database=namespace.database,
                us=times.us,
                ns=times.ns,
                collection=namespace.collection,
                order=times.order,
                session=lsid,
                number=number,
                wall=times.wall,
                op=f'"{letter}"',
                now=now // 1_000_000,
            )
        )
        transform = self.options.transform
        if transform is not None:
            tombstones = self.options.tombstones
            for each in transform.messages(namespace.topic, fields, value, tombstones=tombstones):
                yield Message(*each)
            return
        yield Message(namespace.topic, key, value, transaction, namespace.name, times.ms)
        if letter == "d" and self.options.tombstones:
            yield Message(namespace.topic, key, None)

    def _document(self, field: Slice | None) -> str:
        if field is None or field.kind != DOCUMENT:
            return "null"
        return encode_basestring(self.strict.document(field.value))

    def _new_namespace(self, ns: bytes) -> Namespace:
        name, database, collection = namespace_of(Slice(DOCUMENT, ns))
        database, collection = database or "", collection or ""
        topic = self.options.topic(database, collection)
        return Namespace(name or "", topic, quoted(database), quoted(collection))

    def key(self, key: bytes) -> str:
        """Return the key of a message, of an event's documentKey. Raises InvalidBSON."""
        if key.startswith(OBJECT_ID_KEY):
            return f'{{"id":"{{\\"$oid\\": \\"{key[9:21].hex()}\\"}}"}}'
        kind, value = fields_of(key, (b"_id",))[b"_id"]
        return f'{{"id":{encode_basestring(self.identifier.value(kind, value))}}}'

    def _times(self, fields: Mapping[bytes, Slice], kind: str | None, now: int) -> Times:
        seconds, order = fields[b"clusterTime"].second_and_tick() or (0, 0)
        if kind == READ:
            if is_incremental(fields):
                return times_at(seconds * 1000, "null", order, "incremental")
            if self.options.is_old:
                return times_at(0, "null", NO_ORDER, "true")
            return Times(now // 1_000_000, now // 1000, now, "null", NO_ORDER, "true")
        wall = fields[b"wallTime"].milliseconds() if b"wallTime" in fields else None
        ms = seconds * 1000 if wall is None or self.options.is_old else wall
        return times_at(ms, "null" if wall is None else wall, order, "false")

    def description(self, field: Slice | None) -> str:
        """Return an update's description as JSON. Raises InvalidBSON."""
        if field is None or field.kind != DOCUMENT:
            return "null"
        parts = fields_of(field.value)
        removed = ",".join(quoted(each.text() or "") for each in _elements(parts, b"removedFields"))
        arrays = (fields_of(each.value) for each in _elements(parts, b"truncatedArrays"))
        truncated = ",".join(
            f'{{"field":{quoted(each[b"field"].text() or "")},'
            f'"size":{each[b"newSize"].whole_number()}}}'
            for each in arrays
        )
        updated = parts.get(b"updatedFields")
        text = None if updated is None else self.updated.document(updated.value)
        return (
            f'{{"removedFields":{f"[{removed}]" if removed else "null"},"updatedFields":'
            f"{'null' if text is None else encode_basestring(text)},"
            f'"truncatedArrays":{f"[{truncated}]" if truncated else "null"}}}'
        )


class Namespace(NamedTuple):
    """A collection: its full name, its topic, and the names of both parts as JSON.

    They are texts, or columns of texts.
    """

    name: Any
    topic: Any
    database: Any
    collection: Any


class Times(NamedTuple):
    """The times in a block `source`: since 1970 in ms, µs and ns; `wallTime` as JSON; `ord`.

    They are numbers, or arrays of numbers. `snapshot` is the field of that name.
    """

    ms: Any
    us: Any
    ns: Any
    wall: Any
    order: Any
    snapshot: str


def times_at(ms: Any, wall: Any, order: Any, snapshot: str) -> Times:
    """Return the times for milliseconds since 1970."""
    return Times(ms, ms * 1000, ms * 1_000_000, wall, order, snapshot)


def is_incremental(fields: Mapping[bytes, Slice]) -> bool:
    """Return whether a snapshot's document was read by an incremental snapshot."""
    signal = fields.get(b"signal")
    return (
        signal is not None
        and fields_of(signal.value).get(b"type", _NOTHING).text() == "incremental"
    )


def _elements(parts: Mapping[bytes, Slice], name: bytes) -> Iterable[Slice]:
    field = parts.get(name)
    return () if field is None or field.kind != ARRAY else fields_of(field.value).values()

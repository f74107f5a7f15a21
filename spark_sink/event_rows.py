"""Change events as rows: the source's schema, and Arrow batches made from raw events.

The header's columns are read from slices of the event. A document's column is extended JSON, the
document's BSON or a struct of a given schema, as the option `documents` says; `event` holds the
event's own bytes, from which nothing is lost. Fields of events: docs/protocol.md#events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from bson.raw_bson import RawBSONDocument
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_sink.event_slices import DOCUMENT, NULL, Slice, fields_of
from spark_sink.event_stream import sort_key
from spark_sink.extended_json import ToJson, canonical_json, relaxed_json
from spark_sink.typed_documents import RESCUED, TYPED_COLUMNS, TypedDocuments

DOCUMENT_COLUMNS = ("documentKey", *TYPED_COLUMNS, "updateDescription")

# An Arrow batch ends with the first of these.
ROWS_PER_BATCH = 10_000
BYTES_PER_BATCH = 8 * 1024 * 1024

_READ = "read"
OPERATIONS: dict[str | None, str] = {
    "insert": "c", "update": "u", "replace": "u", "delete": "d", _READ: "r",
}  # fmt: skip
"""Debezium's letters for operation types; others have none."""

_FRAGMENT = StructType([StructField("fragment", LongType()), StructField("of", LongType())])

_NO_FIELDS: dict[bytes, Slice] = {}
_NOTHING = Slice(NULL, b"")


class EventRows:
    """Makes rows of events.

    raw_documents: the columns of documents hold BSON; otherwise extended JSON, canonical or
    relaxed; typed: makes the structs of TYPED_COLUMNS, and rows have the column RESCUED.
    """

    def __init__(
        self,
        *,
        raw_documents: bool = False,
        canonical: bool = False,
        typed: TypedDocuments | None = None,
        rows_per_batch: int = ROWS_PER_BATCH,
        bytes_per_batch: int = BYTES_PER_BATCH,
    ) -> None:
        self._rows_per_batch = rows_per_batch
        self._bytes_per_batch = bytes_per_batch
        self._to_json: ToJson = canonical_json if canonical else relaxed_json
        self._raw = raw_documents
        self._typed = typed
        documents: DataType = BinaryType() if raw_documents else StringType()
        kinds = dict.fromkeys(DOCUMENT_COLUMNS, documents)
        if typed is not None:
            kinds |= dict.fromkeys(TYPED_COLUMNS, typed.schema)
        self.schema = StructType(
            [
                StructField("token", StringType(), nullable=False),
                StructField("operationType", StringType()),
                StructField("clusterTime", TimestampType()),
                StructField("clusterTimeOrdinal", LongType()),
                StructField("wallTime", TimestampType()),
                StructField("namespace", StringType()),
                StructField("database", StringType()),
                StructField("collection", StringType()),
                *(StructField(name, kind) for name, kind in kinds.items()),
                StructField("event", BinaryType(), nullable=False),
                StructField("op", StringType()),
                StructField("snapshot", BooleanType(), nullable=False),
                StructField("shard", StringType()),
                StructField("lsid", documents),
                StructField("txnNumber", LongType()),
                StructField("to", StringType()),
                StructField("splitEvent", _FRAGMENT),
                *([StructField(RESCUED, StringType())] if typed is not None else []),
            ]
        )
        """What every row has. Rows sort by `token` as the stream is ordered; clusterTime and
        clusterTimeOrdinal are the event's cluster time, the ordinal counting within a second. op is
        Debezium's letter; shard is the shard that the event was read from, null where a task read
        the merged stream."""
        self._arrow_schema = to_arrow_schema(self.schema, timezone="UTC")

    def arrow_batches(
        self, events: Iterable[RawBSONDocument], shard: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The events as Arrow batches, each of bounded size, in the same order.

        shard: what they were read from, None for the merged stream.
        """
        rows: list[tuple[Any, ...]] = []
        size = 0
        for event in events:
            rows.append(self._row(event, shard))
            size += len(event.raw)
            if len(rows) >= self._rows_per_batch or size >= self._bytes_per_batch:
                yield self._batch(rows)
                rows, size = [], 0
        if rows:
            yield self._batch(rows)

    def _row(self, event: RawBSONDocument, shard: str | None) -> tuple[Any, ...]:
        raw = bytes(event.raw)
        get = fields_of(raw).get
        documents: list[Any]
        operation, time, wall, ns, lsid, number, to, fragment = map(get, _HEADER)
        kind = None if operation is None else operation.text()
        cluster_time = None if time is None else time.second_and_tick()
        wall_time = None if wall is None else wall.milliseconds()
        database, collection = _namespace(ns)
        rescued: tuple[str | None, ...] = ()
        if self._typed is not None:
            structs, misfits = self._typed.columns(get, self._to_json)
            key, description = map(self._to_json, map(get, _UNTYPED))
            documents, rescued = [key, *structs, description], (misfits,)
        elif self._raw:
            documents = [None if each is None else each.value for each in map(get, _DOCUMENTS)]
        else:
            documents = [*map(self._to_json, map(get, _DOCUMENTS))]
        return (
            sort_key(event),
            kind,
            None if cluster_time is None else cluster_time[0] * 1_000_000,
            None if cluster_time is None else cluster_time[1],
            None if wall_time is None else wall_time * 1000,
            _joined(database, collection),
            database,
            collection,
            *documents,
            raw,
            OPERATIONS.get(kind),
            kind == _READ,
            shard,
            None if lsid is None else lsid.value if self._raw else self._to_json(lsid),
            None if number is None else number.whole_number(),
            None if to is None else _joined(*_namespace(to)),
            None if fragment is None else _fragment(fragment),
            *rescued,
        )

    def _batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = [
            pa.array(column, type=field.type)
            for column, field in zip(zip(*rows, strict=True), self._arrow_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow_schema)


_HEADER = (
    b"operationType", b"clusterTime", b"wallTime", b"ns", b"lsid", b"txnNumber", b"to",
    b"splitEvent",
)  # fmt: skip
_DOCUMENTS = tuple(name.encode() for name in DOCUMENT_COLUMNS)
_UNTYPED = (b"documentKey", b"updateDescription")


def _joined(database: str | None, collection: str | None) -> str | None:
    return f"{database}.{collection}" if database and collection else database or collection


def _fragment(value: Slice) -> dict[str, int | None]:
    fields = fields_of(value.value) if value.kind == DOCUMENT else _NO_FIELDS
    return {name: fields.get(name.encode(), _NOTHING).whole_number() for name in ("fragment", "of")}


def _namespace(ns: Slice | None) -> tuple[str | None, str | None]:
    fields = _NO_FIELDS if ns is None or ns.kind != DOCUMENT else fields_of(ns.value)
    database, collection = fields.get(b"db", _NOTHING), fields.get(b"coll", _NOTHING)
    return database.text(), collection.text()

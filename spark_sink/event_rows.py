"""Change events as rows: the source's schema, and Arrow batches made from raw events.

The header's columns are read from slices of the event. A document's column is extended JSON or the
document's BSON, as the option `documents` says; `event` holds the event's own bytes, from which
nothing is lost. Fields of events: docs/protocol.md, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from bson.raw_bson import RawBSONDocument
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_sink.event_slices import DOCUMENT, Slice, fields_of
from spark_sink.event_stream import sort_key
from spark_sink.extended_json import ToJson, canonical_json, relaxed_json

DOCUMENT_COLUMNS = (
    "documentKey",
    "fullDocument",
    "fullDocumentBeforeChange",
    "updateDescription",
)

# An Arrow batch ends with the first of these.
ROWS_PER_BATCH = 10_000
BYTES_PER_BATCH = 8 * 1024 * 1024

_NO_FIELDS: dict[bytes, Slice] = {}
_NOTHING = Slice(0x0A, b"")


class EventRows:
    """Makes rows of events.

    raw_documents: the columns of documents hold BSON; otherwise extended JSON, canonical or
    relaxed.
    """

    def __init__(self, *, raw_documents: bool = False, canonical: bool = False) -> None:
        self._to_json: ToJson = canonical_json if canonical else relaxed_json
        self._raw = raw_documents
        documents: DataType = BinaryType() if raw_documents else StringType()
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
                *(StructField(name, documents) for name in DOCUMENT_COLUMNS),
                StructField("event", BinaryType(), nullable=False),
            ]
        )
        """What every row has. Rows sort by `token` as the stream is ordered; clusterTime and
        clusterTimeOrdinal are the event's cluster time, the ordinal counting within a second."""
        self._arrow_schema = to_arrow_schema(self.schema, timezone="UTC")

    def arrow_batches(self, events: Iterable[RawBSONDocument]) -> Iterator[pa.RecordBatch]:
        """The events as Arrow batches, each of bounded size, in the same order."""
        rows: list[tuple[Any, ...]] = []
        size = 0
        for event in events:
            rows.append(self._row(event))
            size += len(event.raw)
            if len(rows) >= ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
                yield self._batch(rows)
                rows, size = [], 0
        if rows:
            yield self._batch(rows)

    def _row(self, event: RawBSONDocument) -> tuple[Any, ...]:
        raw = bytes(event.raw)
        get = fields_of(raw).get
        operation, time, wall, ns = map(get, _HEADER)
        cluster_time = None if time is None else time.second_and_tick()
        wall_time = None if wall is None else wall.milliseconds()
        database, collection = _namespace(ns)
        documents = (
            [None if each is None else each.value for each in map(get, _DOCUMENTS)]
            if self._raw
            else map(self._to_json, map(get, _DOCUMENTS))
        )
        return (
            sort_key(event),
            None if operation is None else operation.text(),
            None if cluster_time is None else cluster_time[0] * 1_000_000,
            None if cluster_time is None else cluster_time[1],
            None if wall_time is None else wall_time * 1000,
            f"{database}.{collection}" if database and collection else database or collection,
            database,
            collection,
            *documents,
            raw,
        )

    def _batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = [
            pa.array(column, type=field.type)
            for column, field in zip(zip(*rows, strict=True), self._arrow_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow_schema)


_HEADER = (b"operationType", b"clusterTime", b"wallTime", b"ns")
_DOCUMENTS = tuple(name.encode() for name in DOCUMENT_COLUMNS)


def _namespace(ns: Slice | None) -> tuple[str | None, str | None]:
    fields = _NO_FIELDS if ns is None or ns.kind != DOCUMENT else fields_of(ns.value)
    database, collection = fields.get(b"db", _NOTHING), fields.get(b"coll", _NOTHING)
    return database.text(), collection.text()

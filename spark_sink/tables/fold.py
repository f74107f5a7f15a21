"""Folds the rows of a table and the events after them into the table's next rows.

`prepare` gives each row and each event its key; Spark sorts them by key and token; `fold` goes
through the versions of each key in order. The token of a row guards it: an event that is not above
it has been applied already, or is contained in the document that a snapshot has read. So applying
events again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import bson
import pyarrow as pa
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_sink.arrow_types import arrow_schema
from spark_sink.errors import StreamError
from spark_sink.event_slices import DOCUMENT, Slice, fields_of
from spark_sink.extended_json import canonical_json, relaxed_json
from spark_sink.positions import time_in
from spark_sink.tables.definitions import Definition, place_of
from spark_sink.tables.update_description import apply_update

TABLE = StructType(
    [
        StructField("namespace", StringType(), nullable=False),
        StructField("database", StringType(), nullable=False),
        StructField("collection", StringType(), nullable=False),
        StructField("key", StringType(), nullable=False),
        StructField("documentKey", StringType()),
        StructField("fullDocument", StringType(), nullable=False),
        StructField("document", BinaryType(), nullable=False),
        StructField("token", StringType(), nullable=False),
        StructField("clusterTime", TimestampType(), nullable=False),
    ]
)
"""A row of a current table: a document as extended JSON (`fullDocument`) and as BSON (`document`),
its key in canonical extended JSON, and the token and time of the last event that is in it."""

FOLDED = StructType(
    [
        *(StructField(each.name, each.dataType) for each in TABLE.fields),
        StructField("problem", StringType()),
    ]
)
"""A row of TABLE, or an event that cannot be applied: `problem` says why, `document` is the event's
BSON, and `fullDocument` is null."""

PREPARED = StructType(
    [
        StructField("database", StringType(), nullable=False),
        StructField("collection", StringType(), nullable=False),
        StructField("key", StringType(), nullable=False),
        StructField("token", StringType(), nullable=False),
        StructField("documentKey", StringType()),
        StructField("kind", LongType(), nullable=False),
        StructField("payload", BinaryType(), nullable=False),
    ]
)
_ROW, _EVENT, _UNUSABLE = 0, 1, 2

_CODEC: CodecOptions[Any] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)
_ROWS_PER_BATCH = 5_000
_BYTES_PER_BATCH = 8 * 1024 * 1024


@dataclass
class Prepare:
    """Makes rows of PREPARED out of rows of a table, or of a source's rows.

    keys: the fields of the document key that identify a document; definitions: sorted; tolerant:
    an event without a key becomes a row of its own, which Fold reports, instead of an error.
    """

    keys: Sequence[str]
    definitions: Sequence[Definition]
    tolerant: bool = False

    def table_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """From database, collection, key, token, documentKey, document."""
        for batch in batches:
            yield _batch(
                (*place, key, token, document_key, _ROW, document)
                for database, collection, key, token, document_key, document in _rows(batch)
                if (place := place_of(token, database, collection, self.definitions))
            )

    def events(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """From database, collection, token, event. Raises StreamError if it is not tolerant."""
        for batch in batches:
            yield _batch(
                (*place, *self._key(token, event), event)
                for database, collection, token, event in _rows(batch)
                if (place := place_of(token, database or "", collection or "", self.definitions))
            )

    def _key(self, token: str, event: bytes) -> tuple[str, str, str | None, int]:
        fields = fields_of(event)
        problem = _problem_of(fields)
        if problem is not None:
            if self.tolerant:
                return "", token, None, _UNUSABLE
            raise StreamError(problem)
        document_key = fields[b"documentKey"]
        values = fields_of(document_key.value)
        parts = []
        for name in self.keys:
            value = values.get(name.encode())
            parts.append("null" if value is None else canonical_json(value) or "null")
        key = parts[0] if len(parts) == 1 else f"[{','.join(parts)}]"
        return key, token, canonical_json(document_key) or "", _EVENT


def _problem_of(fields: dict[bytes, Slice]) -> str | None:
    """Why an event cannot be applied to any document; None if it can."""
    if b"documentKey" not in fields:
        return (
            "an event has no documentKey: a current table needs whole events. Leave stages "
            "that remove fields out of option 'pipeline'"
        )
    if b"splitEvent" in fields:
        return (
            "a current table needs whole events, and a query that begins or ends within one has "
            "fragments of it: begin the query at another token"
        )
    return None


@dataclass
class _State:
    """The versions of one key, as far as they have been seen."""

    database: str
    collection: str
    key: str
    token: str = ""
    document_key: str | None = None
    document: bytes | None = None
    unknown: bool = False
    event: bytes = b""
    damage: str | None = None

    def take_row(self, token: str, document_key: str | None, document: bytes) -> None:
        """A row of the table, which comes before the events above it."""
        if token > self.token:
            self.token, self.document_key, self.document = token, document_key, document
            self.unknown, self.damage = False, None

    def take_event(self, token: str, document_key: str | None, event: bytes) -> None:
        """The next event in the order of the stream."""
        if token <= self.token:
            return
        fields = fields_of(event)
        operation = fields[b"operationType"].text()
        if operation == "delete":
            # A new shard key value moves a document: in one transaction it is deleted on one
            # shard and inserted on another, and the insert may have the smaller token.
            moved = token[:18] == self.token[:18] and document_key != self.document_key
            if not moved:
                self.document, self.unknown, self.damage = None, False, None
            else:
                return
        else:
            self.document = self._changed(fields)
            self.document_key = document_key
        self.token, self.event = token, event

    def _changed(self, fields: dict[bytes, Slice]) -> bytes | None:
        full = fields.get(b"fullDocument")
        if full is not None and full.kind == DOCUMENT:
            self.unknown, self.damage = False, None
            return full.value
        description = fields.get(b"updateDescription")
        if self.document is None or description is None:
            self.unknown = True
            return None
        try:
            document = bson.decode(self.document, _CODEC)
            return bson.encode(apply_update(document, bson.decode(description.value, _CODEC)))
        except (ValueError, TypeError, BSONError) as error:
            self.damage = str(error)
            return None

    def row(self, complete_from: str) -> tuple[Any, ...] | None:
        """The row of the table, as of FOLDED; None where there is no document.

        complete_from: an update below it may concern a document that a snapshot found deleted.
        Raises StreamError if an update above it concerns a document that is not known, or if an
        update cannot be applied.
        """
        if self.damage is not None:
            raise StreamError(
                f"an update of {self.database}.{self.collection} does not fit the document that "
                "the table has: read post-images with fullDocument=required, or read the "
                f"collection again with snapshotMode=always (key {self.key})",
                self.damage,
            )
        if self.unknown and self.token >= complete_from:
            raise StreamError(
                f"an update of {self.database}.{self.collection} changes a document that the table "
                "does not have: let the query begin with snapshotMode=initial, or read post-images "
                f"with fullDocument=required (key {self.key})"
            )
        if self.document is None:
            return None
        return self._row(self.document, relaxed_json(Slice(DOCUMENT, self.document)))

    def problem_row(self, problem: str) -> tuple[Any, ...]:
        """The latest event as a row of FOLDED that says why it cannot be applied."""
        return self._row(self.event, None, problem)

    def _row(
        self, document: bytes, text: str | None, problem: str | None = None
    ) -> tuple[Any, ...]:
        return (
            f"{self.database}.{self.collection}",
            self.database,
            self.collection,
            self.key,
            self.document_key,
            text,
            document,
            self.token,
            time_in(self.token).time * 1_000_000,
            problem,
        )


class _Unusable(_State):
    """An event that belongs to no document."""

    def row(self, complete_from: str) -> tuple[Any, ...] | None:
        raise StreamError(_problem_of(fields_of(self.event)) or "")


@dataclass
class Fold:
    """Makes rows of FOLDED out of rows of PREPARED, sorted by key and token.

    complete_from: the token from which the table has every document that is changed; complete_in:
    later such tokens by namespace; tolerant: an event that cannot be applied becomes a row with its
    problem instead of an error.
    """

    complete_from: str = ""
    complete_in: Mapping[str, str] = field(default_factory=dict)
    tolerant: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The next rows of the table. Raises StreamError if it is not tolerant."""
        rows: list[tuple[Any, ...]] = []
        size = 0
        for state in _states(batches):
            row = self._row(state)
            if row is None:
                continue
            rows.append(row)
            size += len(row[6])
            if len(rows) >= _ROWS_PER_BATCH or size >= _BYTES_PER_BATCH:
                yield _batch_of(rows, _FOLDED_ARROW)
                rows, size = [], 0
        yield _batch_of(rows, _FOLDED_ARROW)

    def _row(self, state: _State) -> tuple[Any, ...] | None:
        try:
            later = self.complete_in.get(f"{state.database}.{state.collection}", "")
            return state.row(max(self.complete_from, later))
        except StreamError as error:
            if not self.tolerant:
                raise
            return state.problem_row(str(error))


def _states(batches: Iterable[pa.RecordBatch]) -> Iterator[_State]:
    state: _State | None = None
    for batch in batches:
        for database, collection, key, token, document_key, kind, payload in _rows(batch):
            place = (database, collection, key)
            if kind == _UNUSABLE:
                yield _Unusable(*place, token=token, event=payload)
                continue
            if state is None or (state.database, state.collection, state.key) != place:
                if state is not None:
                    yield state
                state = _State(*place)
            take = state.take_row if kind == _ROW else state.take_event
            take(token, document_key, payload)
    if state is not None:
        yield state


_PREPARED_ARROW = arrow_schema(PREPARED)
_FOLDED_ARROW = arrow_schema(FOLDED)


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _batch(rows: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    return _batch_of(list(rows), _PREPARED_ARROW)


def _batch_of(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [
        pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

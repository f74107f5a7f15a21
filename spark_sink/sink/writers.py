"""The writers that Spark calls, of streams and of batches.

They write each change at most once, guarded by the token in the document.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
from bson.codec_options import CodecOptions, TypeRegistry
from bson.decimal128 import Decimal128
from pymongo import DeleteOne, MongoClient, ReplaceOne, UpdateOne, WriteConcern
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, PyMongoError
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_sink.errors import OptionError, StreamError, without_traceback
from spark_sink.sink.changes import (
    Change,
    WriteBatch,
    WriteOptions,
    change_of_event,
    change_of_row,
    write_batches,
)
from spark_sink.stream.router_client import require_router

_SELECTION_TIMEOUT = 30.0
_DUPLICATE_KEY = 11000
_TRUNCATED = "truncatedArrays"
# Attempts for a document that another task inserts concurrently.
_INSERT_ATTEMPTS = 5


@dataclass
class DocumentWriter:
    """Writes batches of changes, as the sink's options say. Closed by its owner."""

    options: WriteOptions

    def __post_init__(self) -> None:
        self._client: MongoClient[dict[str, Any]] = MongoClient(
            self.options.uri,
            appname="mergerouter-spark",
            serverSelectionTimeoutMS=int(_SELECTION_TIMEOUT * 1000),
        )
        self._knows_router = False

    def write(self, batch: WriteBatch) -> None:
        """Write the changes. Raises StreamError, before the first write if the server is wrong."""
        try:
            if not self._knows_router:
                require_router(self._client)
                self._knows_router = True
            for changes in batch.passes():
                for namespace, found in _by_namespace(changes).items():
                    self._write(self._collection(namespace), found)
        except BulkWriteError as error:
            details: Mapping[str, Any] = error.details or {}
            first = next(iter(details.get("writeErrors", ())), details)
            raise StreamError(
                "the cluster refuses a write of the sink: fix the reason, and restart the query",
                first.get("errmsg", error),
            ) from None
        except PyMongoError as error:
            raise StreamError(
                "the sink cannot write through the router: check that it is reachable and that its "
                "user may write, and restart the query",
                error,
            ) from None

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _collection(self, namespace: tuple[str, str]) -> Collection[dict[str, Any]]:
        database, name = namespace
        default = self._client.write_concern.is_server_default
        return self._client[database].get_collection(
            name, _CODEC, write_concern=WriteConcern("majority") if default else None
        )

    def _write(self, collection: Collection[dict[str, Any]], changes: list[Change]) -> None:
        updates = [change for change in changes if change.is_update]
        pending = [change for change in changes if not change.is_update]
        for attempt in range(_INSERT_ATTEMPTS):
            if not pending:
                break
            pending = self._write_whole(collection, pending, last=attempt == _INSERT_ATTEMPTS - 1)
        if updates:
            self._update(collection, updates)

    def _write_whole(
        self, collection: Collection[dict[str, Any]], changes: list[Change], *, last: bool
    ) -> list[Change]:
        """Replace and delete documents; return the changes to retry."""
        requests = [self._request(change) for change in changes]
        try:
            collection.bulk_write(requests, ordered=False)
        except BulkWriteError as error:
            failed: list[Mapping[str, Any]] = (error.details or {}).get("writeErrors", [])
            if any(each["code"] != _DUPLICATE_KEY for each in failed) or not failed:
                raise
            # The document exists: with this change or a later one, or by another task.
            conflicts = [changes[each["index"]] for each in failed]
            again = [change for change in conflicts if not self._has(collection, change)]
            if again and last:
                raise
            return again
        return []

    def _request(self, change: Change) -> ReplaceOne[dict[str, Any]] | DeleteOne:
        where = self._guarded(change)
        if change.document is None:
            return DeleteOne(where)
        document = {**change.document, self.options.token_field: change.token}
        return ReplaceOne(where, document, upsert=True)

    def _update(self, collection: Collection[dict[str, Any]], changes: list[Change]) -> None:
        # A separate update, because its paths may be those of fields that are set.
        truncations = [change for change in changes if (change.description or {}).get(_TRUNCATED)]
        if truncations:
            collection.bulk_write(
                [UpdateOne(self._guarded(change), _truncation(change)) for change in truncations],
                ordered=False,
            )
        field = self.options.token_field
        done = collection.bulk_write(
            [UpdateOne(self._guarded(change), _assignment(change, field)) for change in changes],
            ordered=False,
        )
        if done.matched_count == len(changes) or self.options.ignores_missing:
            return
        for change in changes:
            if not self._has(collection, change):
                raise StreamError(
                    f"{collection.full_name} does not contain a changed document: let "
                    "the source begin with snapshotMode=initial and set missing=ignore, or read "
                    f"post-images with fullDocument=required (key {dict(change.key)})"
                )

    def _has(self, collection: Collection[dict[str, Any]], change: Change) -> bool:
        """Whether the document contains the change, or a later one."""
        field = self.options.token_field
        where = {**change.key, field: {"$gte": change.token}}
        return collection.find_one(where, {"_id": 1}) is not None

    def _guarded(self, change: Change) -> dict[str, Any]:
        return {**change.key, self.options.token_field: {"$not": {"$gte": change.token}}}


def _truncation(change: Change) -> dict[str, Any]:
    truncated = (change.description or {})[_TRUNCATED]
    return {
        "$push": {each["field"]: {"$each": [], "$slice": each["newSize"]} for each in truncated}
    }


def _assignment(change: Change, token_field: str) -> dict[str, Any]:
    description = change.description or {}
    for dotted, parts in (description.get("disambiguatedPaths") or {}).items():
        if any("." in part for part in parts if isinstance(part, str)):
            raise StreamError(
                f"an update changes the field {dotted}, whose name has a dot: read post-images "
                "with fullDocument=required"
            )
    fields = {**(description.get("updatedFields") or {}), token_field: change.token}
    removed = dict.fromkeys(description.get("removedFields") or (), "")
    return {"$set": fields, "$unset": removed} if removed else {"$set": fields}


def _by_namespace(changes: Iterable[Change]) -> dict[tuple[str, str], list[Change]]:
    found: dict[tuple[str, str], list[Change]] = defaultdict(list)
    for change in changes:
        found[change.namespace].append(change)
    return found


def _encodable(value: Any) -> Any:
    """Return Spark's values that BSON has no type of the same name for."""
    if isinstance(value, Decimal):
        return Decimal128(value)
    if isinstance(value, date):
        return datetime.combine(value, time())
    return value


_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    type_registry=TypeRegistry(fallback_encoder=_encodable)
)


# Changes that are written together.
_BATCH_SIZE = 1000


@dataclass
class Written(WriterCommitMessage):
    """What a task has written: the number of rows with a change."""

    changes: int


class RowWriter:
    """Writes rows of a schema in a task. Raises OptionError if they cannot be written."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._options = options
        names = schema.fieldNames()
        self._has_events = "event" in names
        missing = [name for name in self._needed() if name not in names]
        if missing:
            raise OptionError(
                f"the sink requires the column {missing[0]}: write rows of the source with 'token' "
                "and 'event', or rows with a 'token' that grows with each change of a document, "
                f"and {', '.join(options.keys)}"
            )

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task. Raises StreamError."""
        writer = DocumentWriter(self._options)
        total = 0
        try:
            for batch in write_batches(self._changes(batches), _BATCH_SIZE):
                total += batch.size
                writer.write(batch)
        finally:
            writer.close()
        return Written(total)

    def _changes(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Change]:
        for batch in batches:
            wanted = self._needed() if self._has_events else batch.schema.names
            for row in batch.select(wanted).to_pylist():
                change = self._change(row)
                if change is not None:
                    yield change

    def _change(self, row: dict[str, Any]) -> Change | None:
        of = change_of_event if self._has_events else change_of_row
        return of(row, self._options)

    def _needed(self) -> Sequence[str]:
        return ["token", "event"] if self._has_events else ["token", *self._options.keys]


class _Writer:
    """Writes rows; those that are written again change nothing."""

    def __init__(self, rows: RowWriter) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task. Raises StreamError."""
        with without_traceback():
            return self._rows.write(iterator)


class MergerouterStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes micro-batches."""


class MergerouterBatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch (`df.write`)."""

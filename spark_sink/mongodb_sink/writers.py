"""The writers that Spark calls, for streams and for batches.

The token in a document makes sure that each change is written at most once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any

import bson
import pyarrow as pa
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, MongoClient, ReadPreference, ReplaceOne, UpdateOne, WriteConcern
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, PyMongoError
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_sink.errors import OptionError, StreamError, without_traceback
from spark_sink.events.apply_update import updated
from spark_sink.events.slices import document_of, elements_of, fields_of
from spark_sink.events.update_descriptions import PATHS
from spark_sink.mongodb_sink.changes import (
    CELLS,
    Change,
    WriteOptions,
    change_of_event,
    change_of_row,
    key_in,
    passes,
)
from spark_sink.stream.router_client import mongo_client, require_deployment

_Request = ReplaceOne[Any] | UpdateOne | DeleteOne
_SELECTION_TIMEOUT = 30.0
_DUPLICATE_KEY = 11000
_EMPTY_BYTES = 5
_NAMESPACE = attrgetter("namespace")
# Attempts for a document that another task inserts or changes concurrently.
_ATTEMPTS = 5
# Changes that are written together.
_BATCH_SIZE = 1000
_RAW: CodecOptions[RawBSONDocument] = CodecOptions(RawBSONDocument)


@dataclass
class DocumentWriter:
    """Writes batches of changes by the sink's options. Its owner closes it."""

    options: WriteOptions

    def __post_init__(self) -> None:
        self._client: MongoClient[dict[str, Any]]
        self._client = mongo_client(self.options.uri, _SELECTION_TIMEOUT)
        self._is_checked = False

    def write(self, batch: Iterable[Change]) -> None:
        """Write the changes. Raises StreamError, also as `require_deployment` does."""
        try:
            if not self._is_checked:
                require_deployment(self._client)
                self._is_checked = True
            for changes in passes(batch):
                for namespace, group in groupby(sorted(changes, key=_NAMESPACE), _NAMESPACE):
                    self._write(self._collection(namespace), [*group])
        except BulkWriteError as error:
            details: Mapping[str, Any] = error.details or {}
            first = next(iter(details.get("writeErrors", ())), details)
            where = first.get("op", {}).get("q", {})
            key = {name: value for name, value in where.items() if name != self.options.token_field}
            raise StreamError(
                f"the cluster refuses a write of the sink (key {key}): fix the reason, and restart "
                "the query",
                first.get("errmsg", error),
            ) from None
        except PyMongoError as error:
            raise StreamError(
                "the sink cannot write: check that the server is reachable and that the user may "
                "write, and restart the query",
                error,
            ) from None

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _collection(self, namespace: tuple[str, str]) -> Collection[dict[str, Any]]:
        database, name = namespace
        default = self._client.write_concern.is_server_default
        concern = WriteConcern("majority") if default else None
        found = self._client[database]
        return found.get_collection(name, CELLS, ReadPreference.PRIMARY, concern)

    def _write(self, collection: Collection[dict[str, Any]], changes: list[Change]) -> None:
        whole, attempt = [change for change in changes if not change.is_update], 0
        while whole:
            attempt += 1
            whole = self._write_whole(collection, whole, last=attempt == _ATTEMPTS)
        self._update(collection, [change for change in changes if change.is_update])

    def _write_whole(
        self, collection: Collection[dict[str, Any]], changes: list[Change], *, last: bool
    ) -> list[Change]:
        """Replace and delete documents; return the changes to retry (the `last` try: none)."""
        requests = [self._request(change) for change in changes]
        try:
            collection.bulk_write(requests, ordered=False)
        except BulkWriteError as error:
            failed: list[Mapping[str, Any]] = (error.details or {}).get("writeErrors", [])
            if any(failure["code"] != _DUPLICATE_KEY for failure in failed) or not failed:
                raise
            # The document exists: with this change or a later one, or by another task.
            conflicts = [changes[failure["index"]] for failure in failed]
            again = [change for change in conflicts if not self._has(collection, change)]
            if again and last:
                raise
            return again
        return []

    def _request(self, change: Change) -> _Request:
        if change.document is None:
            return DeleteOne(self._guarded(change))
        return self._replacement(self._guarded(change), change, change.document, upsert=True)

    def _replacement(
        self, where: dict[str, Any], change: Change, document: bytes, *, upsert: bool
    ) -> _Request:
        """Return the request that replaces a document by that of a change."""
        field = self.options.token_field.encode()
        fields = [part for part in elements_of(document) if part[0] != field]
        token = fields_of(bson.encode({"": change.token}))[b""]
        new = RawBSONDocument(document_of([*fields, (field, token)]))
        if any(name.startswith(b"$") for name, _ in fields):  # a replacement must not have such
            return UpdateOne(where, [{"$replaceWith": {"$literal": new}}], upsert=upsert)
        return ReplaceOne(where, new, upsert=upsert)

    def _update(self, collection: Collection[Any], changes: list[Change]) -> None:
        """Update documents: by their fields where all paths are plain, otherwise as a whole."""
        requests: list[tuple[Change, _Request]] = []
        whole = []
        for change in changes:
            assignment = self._assignment(change)
            if assignment is None:
                whole.append(change)
            else:
                requests.append((change, UpdateOne(self._guarded(change), assignment)))
        missed = self._write_updates(collection, requests)
        whole += (change for change in missed if not self._may_miss(change))
        requests = self._rewrites(collection, whole)
        for _ in range(_ATTEMPTS):
            requests = self._rewrites(collection, self._write_updates(collection, requests))
        if requests:
            raise StreamError(
                f"others change a document of {collection.full_name} at the same time: write to "
                f"it by this query alone, and restart it (key {dict(requests[0][0].key)})"
            )

    def _write_updates(
        self, collection: Collection[Any], updates: list[tuple[Change, _Request]]
    ) -> list[Change]:
        """Write updates; return all of them if one has no effect: its document has changed."""
        if not updates:
            return []
        done = collection.bulk_write([request for _, request in updates], ordered=False)
        return [] if done.matched_count == len(updates) else [change for change, _ in updates]

    def _may_miss(self, change: Change) -> bool:
        return self.options.ignores_missing or change.may_miss

    def _rewrites(
        self, collection: Collection[Any], changes: list[Change]
    ) -> list[tuple[Change, _Request]]:
        """Return requests that replace documents by the results of updates.

        What is written already needs none. Raises StreamError for a missing document, unless those
        are ignored, and if an update does not fit the document.
        """
        if not changes:
            return []
        field = self.options.token_field
        names = {tuple(change.key) for change in changes}
        copies: dict[tuple[Any, ...], bytes] = {}
        wanted = {"$or": [dict(change.key) for change in changes]}
        for raw in collection.with_options(_RAW).find(wanted):
            document = bytes(raw.raw)
            copies |= {_identifier(key_in(document, keys)): document for keys in names}
        requests = []
        for change in changes:
            copy = copies.get(_identifier(change.key))
            if copy is None:
                if self._may_miss(change):
                    continue
                raise StreamError(
                    f"{collection.full_name} does not contain a changed document: let the source "
                    "begin with snapshotMode=initial and set missing=ignore, or read post-images "
                    f"with fullDocument=required (key {dict(change.key)})"
                )
            token = key_in(copy, (field,))[field]
            if isinstance(token, type(change.token)) and token >= change.token:
                continue
            where = {**change.key, field: {"$exists": False} if token is None else token}
            try:
                document = updated(copy, change.description or b"")
            except ValueError as error:
                raise StreamError(
                    f"an update does not fit the document of {collection.full_name}: read "
                    f"post-images with fullDocument=required (key {dict(change.key)})",
                    error,
                ) from error
            requests.append((change, self._replacement(where, change, document, upsert=False)))
        return requests

    def _assignment(self, change: Change) -> dict[str, Any] | None:
        """Return an update that sets the fields of a description; None if no update expresses it.

        A path of an update has no names with dots, and none that is empty or begins with `$`.
        """
        description = fields_of(change.description or b"")
        for name in (b"removedFields", b"truncatedArrays", PATHS):
            if name in description and len(description[name].value) > _EMPTY_BYTES:
                return None
        is_exact = PATHS in description
        fields = (
            elements_of(description[b"updatedFields"].value)
            if b"updatedFields" in description
            else []
        )
        for path, _ in fields:
            parts = path.split(b".")
            if len(parts) > 1 and not is_exact:
                return None
            if any(not part or part.startswith(b"$") for part in parts):
                return None
        token = bson.encode({self.options.token_field: change.token})
        own = self.options.token_field.encode()
        others = [field for field in fields if field[0].partition(b".")[0] != own]
        return {"$set": RawBSONDocument(document_of([*others, *fields_of(token).items()]))}

    def _has(self, collection: Collection[dict[str, Any]], change: Change) -> bool:
        """Return whether the document contains the change, or a later one."""
        field = self.options.token_field
        where = {**change.key, field: {"$gte": change.token}}
        return collection.find_one(where, {"_id": 1}) is not None

    def _guarded(self, change: Change) -> dict[str, Any]:
        return {**change.key, self.options.token_field: {"$not": {"$gte": change.token}}}


def _identifier(key: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*key, bson.encode(key, codec_options=CELLS))


@dataclass
class _Deletes(WriterCommitMessage):
    """The deletes that a task has written."""

    changes: list[Change]


class RowWriter:
    """Writes rows of a schema in tasks; rows that are written again change nothing.

    A deleted document keeps no token, so an earlier change that another task, or a repeated one,
    writes after the delete restores it. Where there are several tasks, all deletes are therefore
    written once more after them.

    Raises OptionError if the rows cannot be written.
    """

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._options = options
        names = schema.fieldNames()
        self._has_events = "event" in names
        if self._has_events and "_id" not in options.keys:
            raise OptionError(
                "option 'keys' of the sink: add _id, because the event of a delete has no other "
                "field of the document than _id and the shard key"
            )
        missing = [name for name in self._needed() if name not in names]
        if missing:
            raise OptionError(
                f"the sink requires the column {missing[0]}: write rows of the source with 'token' "
                "and 'event', or rows with a 'token' that grows with each change of a document, "
                f"and {', '.join(options.keys)}"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task. Raises StreamError."""
        written = self._write(self._changes(iterator))
        return _Deletes([change for change in written if change.deletes])

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int = 0) -> None:
        """Write the deletes of all tasks once more. Raises StreamError."""
        if len(messages) > 1:
            tasks = [message.changes for message in messages if isinstance(message, _Deletes)]
            for _ in self._write(chain.from_iterable(tasks)):
                pass

    def _write(self, changes: Iterator[Change]) -> Iterator[Change]:
        """Write changes, and yield them."""
        with without_traceback(), closing(DocumentWriter(self._options)) as writer:
            while batch := list(islice(changes, _BATCH_SIZE)):
                writer.write(batch)
                yield from batch

    def _changes(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Change]:
        change_of = change_of_event if self._has_events else change_of_row
        for batch in batches:
            wanted = self._needed() if self._has_events else batch.schema.names
            maps = None if self._has_events else "strict"  # events have none, and are read faster
            rows = batch.select(wanted).to_pylist(maps_as_pydicts=maps)
            changes = (change_of(row, self._options) for row in rows)
            yield from (change for change in changes if change is not None)

    def _needed(self) -> Sequence[str]:
        return ["token", "event"] if self._has_events else ["token", *self._options.keys]


class MergerouterStreamWriter(RowWriter, DataSourceStreamArrowWriter):
    """Writes micro-batches."""


class MergerouterBatchWriter(RowWriter, DataSourceArrowWriter):
    """Writes a batch (`df.write`)."""

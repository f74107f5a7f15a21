"""Reads one chunk of a snapshot, as events of the operation type "read".

The token of a row is a high water mark: the document contains the effect of all events below it,
and events above it supersede the row by its key. A chunk is read at the snapshot's time if the
servers still have it, otherwise at the newest time. If a server does not support reads at a time,
the chunk is read as it is, and changes during the read come again as events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from spark_sink.errors import StreamError
from spark_sink.events.runs import Run
from spark_sink.events.slices import NOTHING, document_of, field_of
from spark_sink.options.stream_options import DEFAULT_RETRY_POLICY, RetryPolicy
from spark_sink.snapshot.catalog import current_name
from spark_sink.snapshot.document_events import DocumentEvents
from spark_sink.snapshot.plan import Chunk
from spark_sink.stream.raw_replies import replies
from spark_sink.stream.retries import Retries, is_transient

# The most documents of a reply: more take memory, and no less time.
_BATCH_SIZE_DOCUMENTS = 2500
# The most keys of a chunk that are kept while it is read in no order.
_MAX_KEYS = 200_000
# SnapshotTooOld, SnapshotUnavailable, StaleChunkHistory: the time is outside of the window.
_TOO_OLD = frozenset({239, 246, 250})
# InvalidOptions, FailedToParse, CommandNotSupported…: no reads at a time here.
_UNSUPPORTED = frozenset({9, 40415, 72, 115, 263})
# How often a read falls back: from the snapshot's time to the newest one, then to no time at all.
_LAST_RESORT = 2


@dataclass(frozen=True)
class ChunkRead:
    """A chunk to read, its snapshot's time, a filter on documents, and `signal` for its events.

    `keys_only` reads the fields of the keys.
    """

    chunk: Chunk
    snapshot_time: Timestamp
    condition: Mapping[str, Any] | None = None
    signal: dict[str, Any] | None = None
    keys_only: bool = False


class ChunkReader:
    """Reads a chunk's documents, each key once, through a client that returns RawBSONDocument.

    In the order of `_id`, the keys of two replies show what a reply repeats, and a read goes on
    where another one has failed. Only a sharded collection costs more in this order, because a
    mongos then merges documents instead of passing them on: it is read in no order, as long as the
    keys of a chunk are few.
    """

    def __init__(
        self,
        client: MongoClient[RawBSONDocument],
        read: ChunkRead,
        newest: Callable[[], Timestamp],
        *,
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._chunk_read = read
        self._newest = newest
        self._retries = Retries(retry_policy, clock=clock, sleep=sleep)
        self._in_order = not read.chunk.collection.key
        self._seen: set[bytes] = set()  # what was read in no order
        self._recent: set[bytes] = set()  # in the last reply in order
        self._last: bytes | None = None
        self._fallbacks = 0

    def runs(self) -> Generator[Run]:
        """Return the documents as events, one server reply at a time. Raises StreamError."""
        while True:
            read = False
            try:
                for run in self._read():
                    read = True
                    yield run
                    if len(self._seen) > _MAX_KEYS and not self._in_order:
                        self._in_order = True
                        break
                else:
                    return
            except PyMongoError as error:
                if self._fall_back(error):
                    continue
                if not is_transient(error):
                    raise _refused(self._chunk_read, error) from None
                if read:
                    self._retries.reset()
                self._retries.wait(error, f"a server with {self._chunk_read.chunk.collection}")

    def _read(self) -> Iterator[Run]:
        read = self._chunk_read
        collection = read.chunk.collection
        concern, point = self._read_concern()
        name = current_name(self._client, collection)
        if name is None:
            return  # dropped: the stream contains the event
        condition = [read.condition] if read.condition else []
        database = self._client[collection.database]
        events = DocumentEvents(replace(collection, name=name), point, read.signal)
        order: dict[str, Any] = {"sort": [("_id", 1)]} if self._in_order else {}
        rest: list[dict[str, Any]] = []
        if self._last is not None:  # of any type, so that type bracketing does not apply
            begin = document_of([(b"$literal", field_of(self._last, b"_id") or NOTHING)])
            rest = [{"$expr": {"$gte": ["$_id", RawBSONDocument(begin)]}}]
        paths = [path for path in collection.key if not path.startswith("_id.")]  # which collide
        projection = dict.fromkeys(("_id", *paths), 1) if read.keys_only else None
        is_empty = True
        source = database.get_collection(name, read_concern=_At(concern))
        cursor = source.find(
            {"$and": [read.chunk.filter(), *condition, *rest]},
            projection,
            batch_size=_BATCH_SIZE_DOCUMENTS,
            **order,
        )
        with cursor:
            for raw in replies(cursor):
                is_empty = False
                if self._in_order:
                    recent = set[bytes]()
                    run = events.run(raw, recent, self._recent, self._seen)
                    self._recent, self._last = recent, raw[-1]
                else:
                    run = events.run(raw, self._seen)
                if run.keys:
                    yield run
        if is_empty and current_name(self._client, collection) not in (name, None):
            raise AutoReconnect("the collection was renamed before the read")

    def _read_concern(self) -> tuple[dict[str, Any], Timestamp]:
        """Return a read concern, and the time of which it reads: the snapshot's, or the newest."""
        newest, begun = self._newest(), self._chunk_read.snapshot_time
        if newest < begun:
            raise AutoReconnect("this router has not reached the snapshot's time yet")
        if self._fallbacks == _LAST_RESORT:
            return {"level": "majority", "afterClusterTime": newest}, newest
        point = newest if self._fallbacks else begun
        return {"level": "snapshot", "atClusterTime": point}, point

    def _fall_back(self, error: PyMongoError) -> bool:
        """Fall back to the next read concern; return False if the error does not allow it."""
        code = error.code if isinstance(error, OperationFailure) else None
        if self._fallbacks == _LAST_RESORT or code not in (*_UNSUPPORTED, *_TOO_OLD):
            return False
        self._fallbacks = _LAST_RESORT if code in _UNSUPPORTED else self._fallbacks + 1
        return True


class _At(ReadConcern):
    """A read concern with the fields for a cluster time, which pymongo's own class lacks."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(fields["level"])
        self._fields = fields

    @property
    def document(self) -> dict[str, Any]:
        """The fields of a command's readConcern."""
        return self._fields


def _refused(read: ChunkRead, error: PyMongoError) -> StreamError:
    code = error.code if isinstance(error, OperationFailure) else None
    text = (
        f"cannot read {read.chunk.collection} for a snapshot: a router passes such reads to the "
        "mongos that it is started with (--upstream)"
    )
    if code in (13, 18):
        text = (
            f"not allowed to read {read.chunk.collection}: the user in option 'uri' needs the "
            "privilege find on what a snapshot reads"
        )
    elif read.condition and code not in (None, *_UNSUPPORTED):
        text = (
            f"cannot read {read.chunk.collection} for a snapshot with a filter: correct the filter "
            "in option 'snapshotFilters', or the documents for which it fails"
        )
        if read.signal is not None:
            remedy = "send stop-snapshot and start the query again"
            if read.signal["type"] == "blocking":
                remedy = "leave out the batch with job seek"
            text = (
                f"cannot read {read.chunk.collection} with the filter of the signal "
                f"{read.signal['id']}: {remedy}, or correct the documents for which it fails"
            )
    return StreamError(text, error)

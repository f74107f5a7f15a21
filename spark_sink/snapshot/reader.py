"""Reads one chunk of a snapshot, as events of the operation type "read".

The token of a row is a high water mark, the chunk's low mark: the document contains the effect of
all events below it. Events above it supersede the row by its key. Where the servers still have the
documents of the snapshot's mark, a chunk is read at that time; where that is too long ago, at a
time of its own; where a server cannot read at a time, the chunk is read as it is, after its low
mark, and what changes during the reading comes again as an event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from spark_sink.errors import StreamError
from spark_sink.event_runs import Run
from spark_sink.patience import DEFAULT_PATIENCE, Patience, Retries, may_pass
from spark_sink.snapshot.document_events import DocumentEvents
from spark_sink.snapshot.plan import Chunk
from spark_sink.snapshot.planner import current_name

# Documents of a reply at most: those of a reply of 16 MiB, the servers' limit, cost more each.
_PER_REPLY = 5000
# SnapshotTooOld, SnapshotUnavailable, StaleChunkHistory: the time is outside of the window.
_TOO_OLD = frozenset({239, 246, 250})
# InvalidOptions, FailedToParse, CommandNotSupported…: no reading at a time here.
_UNABLE = frozenset({9, 40415, 72, 115, 263})
# Codes after which the same read may go well: elections, shutdowns, killed and lost cursors, a
# collection that was dropped or renamed meanwhile.
_MAY_PASS = frozenset(
    {6, 7, 26, 43, 63, 89, 91, 134, 175, 189, 234, 237, 262, 9001, 10107, 11600, 11602, 13388,
     13435, 13436}
)  # fmt: skip


@dataclass(frozen=True)
class Requested:
    """The signal that has asked for a snapshot, as its rows' events tell it.

    id: the signal's; blocking: whether the stream waits; streamed: the token that the events of
    earlier batches do not go beyond.
    """

    id: str
    blocking: bool
    streamed: str

    def to_document(self) -> dict[str, Any]:
        """The field `signal` of events."""
        kind = "blocking" if self.blocking else "incremental"
        return {"id": self.id, "type": kind, "streamed": self.streamed}


@dataclass(frozen=True)
class SnapshotTask:
    """A chunk to read.

    mark: the time of the snapshot; condition: a filter on the documents; requested: by which
    signal, None for none.
    """

    chunk: Chunk
    mark: Timestamp
    condition: Mapping[str, Any] | None = None
    requested: Requested | None = None


class ChunkReader:
    """Reads a task's documents, each `_id` once.

    client: of the router, with documents as RawBSONDocument; newest: about the newest cluster time;
    patience: how long failures without progress are tried again; clock, sleep: for tests.
    """

    def __init__(
        self,
        client: MongoClient[RawBSONDocument],
        task: SnapshotTask,
        newest: Callable[[], Timestamp],
        *,
        patience: Patience = DEFAULT_PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._task = task
        self._newest = newest
        self._patience = patience
        self._retries = Retries(patience, clock=clock, sleep=sleep)
        self._seen: set[bytes] = set()
        self._ways: list[Callable[[], tuple[dict[str, Any], Timestamp]]] = [
            self._at_mark,
            self._at_newest,
            self._after_newest,
        ]

    def runs(self) -> Iterator[Run]:
        """The documents as events, a reply's at a time. Raises StreamError."""
        while True:
            before = len(self._seen)
            try:
                yield from self._read()
                return
            except PyMongoError as error:
                if self._goes_another_way(error):
                    continue
                if not _may_pass(error):
                    raise _refused(self._task.chunk, error) from None
                if len(self._seen) > before:
                    self._retries.reset()
                if not self._retries.go_on(error):
                    raise StreamError(
                        f"gave up reading {self._task.chunk.collection} after {self._patience} "
                        "without progress. See whether the router and its mongos run, and restart "
                        "the query: it goes on with this chunk",
                        error,
                    ) from error

    def _read(self) -> Iterator[Run]:
        task = self._task
        collection = task.chunk.collection
        concern, point = self._ways[0]()
        name = current_name(self._client, collection)
        if name is None:
            return  # dropped: the stream has the event
        condition = [task.condition] if task.condition else []
        database = self._client[collection.database]
        requested = task.requested
        signal = None if requested is None else requested.to_document()
        events = DocumentEvents(replace(collection, name=name), point, signal)
        # Without a sort, a mongos passes on what each shard sends instead of merging documents.
        cursor: Any = database.cursor_command(
            "find",
            name,
            read_preference=database.read_preference,
            codec_options=database.codec_options,
            filter={"$and": [task.chunk.filter(), *condition]},
            batchSize=_PER_REPLY,
            readConcern=concern,
        )
        with cursor.batch_size(_PER_REPLY):
            while cursor.alive:
                documents: list[RawBSONDocument] = []
                cursor._next_batch(documents)
                run = events.run([bytes(each.raw) for each in documents], self._seen)
                if run.keys:
                    yield run

    def _at_mark(self) -> tuple[dict[str, Any], Timestamp]:
        self._reached()
        return _snapshot_at(self._task.mark), self._task.mark

    def _at_newest(self) -> tuple[dict[str, Any], Timestamp]:
        newest = self._reached()
        return _snapshot_at(newest), newest

    def _after_newest(self) -> tuple[dict[str, Any], Timestamp]:
        newest = self._reached()
        return {"level": "majority", "afterClusterTime": newest}, newest

    def _reached(self) -> Timestamp:
        """The newest cluster time, from the mark on: the stream has nothing from before it."""
        newest = self._newest()
        if newest < self._task.mark:
            raise AutoReconnect("this router has not heard of the snapshot's time yet")
        return newest

    def _goes_another_way(self, error: PyMongoError) -> bool:
        """Give up reading at the time that was tried; False if the error is another."""
        if not isinstance(error, OperationFailure) or len(self._ways) == 1:
            return False
        if error.code in _UNABLE:
            del self._ways[:-1]
            return True
        if error.code in _TOO_OLD:
            del self._ways[0]
            return True
        return False


def _snapshot_at(point: Timestamp) -> dict[str, Any]:
    return {"level": "snapshot", "atClusterTime": point}


def _may_pass(error: PyMongoError) -> bool:
    return may_pass(error) or (isinstance(error, OperationFailure) and error.code in _MAY_PASS)


def _refused(chunk: Chunk, error: PyMongoError) -> StreamError:
    if isinstance(error, OperationFailure) and error.code in (13, 18):
        return StreamError(
            f"not allowed to read {chunk.collection}: the user in option 'uri' needs the privilege "
            "find on what a snapshot reads",
            error,
        )
    return StreamError(
        f"cannot read {chunk.collection} for a snapshot: a router passes such reads to the mongos "
        "that it is started with (--upstream)",
        error,
    )

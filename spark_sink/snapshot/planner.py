"""Plans, on Spark's driver, when a snapshot begins, which collections it reads, in which chunks.

A collection is divided by a random sample of its `_id`s, which the server sorts, so planning reads
a few `_id`s for each chunk and never the whole index.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import replace
from itertools import pairwise
from typing import Any

from bson.binary import Binary
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from spark_sink.errors import MESSAGE_LIMIT
from spark_sink.events.positions import FromNow, Position, time_of
from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import QueryStart, SnapshotOptions, SnapshotPolicy
from spark_sink.snapshot.plan import Chunk, Collection, Progress, SnapshotPlan, text_of
from spark_sink.stream.retries import is_transient

# Sampled `_id`s for each chunk, so that a chunk is rarely twice as large as another.
_SAMPLES = 20
# The most chunks of a collection, which bounds the offset's size; then chunks are larger.
MAX_CHUNKS = 4096
# The most tasks of a batch.
MAX_TASKS = 64
SYSTEM_DATABASES = ("admin", "config", "local")
_NOT_ALLOWED = 13


class SnapshotPlanner:
    """Plans a snapshot of a scope. All methods raise PyMongoError.

    A chunk has about `chunk_rows` documents. `accepts` filters the scope's collections by database
    and name.
    """

    def __init__(
        self,
        client: MongoClient[Any],
        scope: Scope,
        chunk_rows: int,
        accepts: Callable[[str, str], bool] | None = None,
    ) -> None:
        self._client = client
        self._scope = scope
        self._chunk_rows = chunk_rows
        self._accepts = accepts

    def begin(
        self, snapshot_time: Timestamp, wanted: Callable[[str], bool] | None = None
    ) -> SnapshotPlan:
        """Return a plan of the scope's collections, with no chunk planned yet.

        `snapshot_time` is a cluster time at or after all finished writes; `wanted` filters
        collections by names such as "shop.orders".
        """
        chosen = (each for each in self._collections() if wanted is None or wanted(str(each)))
        keyed = (replace(each, key=self._key(each.database, each.name)) for each in chosen)
        found = tuple(sorted(keyed, key=str))
        names = tuple((each.database, each.name) for each in found)
        only = None if self._accepts is None else names
        return SnapshotPlan(snapshot_time, found, progress=Progress(len(found)), only=only)

    def places(self) -> set[tuple[str, str]]:
        """Return the collections to read, by database and name."""
        return {(each.database, each.name) for each in self._collections()}

    def next_batch(
        self, plan: SnapshotPlan, max_rows: int | None, by_key: Mapping[str, Sized] | None = None
    ) -> SnapshotPlan:
        """Return the plan after a further batch of about `max_rows` documents; None is no limit.

        A batch has 1 to MAX_TASKS chunks; the last batch has none. For a collection in `by_key`,
        only the documents with these keys are read, in one chunk.
        """
        if plan.exhausted:
            return replace(plan, chunks=(), ended=True)
        plan = replace(plan, chunks=())
        rows = 0
        while not plan.exhausted and len(plan.chunks) < MAX_TASKS:
            if plan.current is None:
                plan = self._begin_collection(plan, by_key or {})
            if plan.chunks and max_rows is not None and rows + plan.rows > max_rows:
                break
            rows += plan.rows
            _, plan = plan.next_chunk()
        return plan

    def all_chunks(self, plan: SnapshotPlan) -> list[Chunk]:
        """Return all chunks of the plan, for one batch."""
        chunks: list[Chunk] = []
        while not plan.exhausted:
            plan = self.next_batch(plan, None)
            chunks += plan.chunks
        return chunks

    def problem(self, collection: Collection, condition: Mapping[str, Any] | None) -> str | None:
        """Return why documents of a collection cannot be read with a filter; None if they can.

        The server parses the filter and reads nothing.
        """
        wanted = [{"_id": {"$in": []}}, *([condition] if condition else [])]
        documents = self._client[collection.database][collection.name]
        try:
            documents.find_one({"$and": wanted})
        except OperationFailure as error:
            if is_transient(error):
                raise
            reason = (error.details or {}).get("errmsg", "")
            return f"cannot read {collection}: {reason}"[:MESSAGE_LIMIT]
        return None

    def name_now(self, collection: Collection) -> str | None:
        """Return the current name of a collection; None if it was dropped."""
        return current_name(self._client, collection)

    def _begin_collection(self, plan: SnapshotPlan, by_key: Mapping[str, Sized]) -> SnapshotPlan:
        collection, *others = plan.waiting
        keys = by_key.get(str(collection))
        bounds, rows = self._bounds(collection) if keys is None else ((), len(keys))
        current = Chunk(collection)
        return replace(plan, waiting=tuple(others), current=current, bounds=bounds, rows=rows)

    def _bounds(self, collection: Collection) -> tuple[tuple[str, ...], int]:
        """Return where a collection is divided, and about how many documents a chunk has."""
        documents = self._client[collection.database][collection.name]
        count = documents.estimated_document_count()
        parts = min(MAX_CHUNKS, -(-count // self._chunk_rows))
        if parts < 2:
            return (), count
        stages: list[dict[str, Any]] = [
            {"$sample": {"size": parts * _SAMPLES}},
            {"$project": {"_id": 1}},
            {"$sort": {"_id": 1}},
        ]
        sample = [each.get("_id") for each in documents.aggregate(stages)]
        return tuple(_cuts(sample, parts)), -(-count // parts)

    def _collections(self) -> Iterator[Collection]:
        """Return the collections to read, without their shard keys."""
        scope = self._scope
        if scope.database is None:
            names = self._client.list_database_names()
            databases = [name for name in names if name not in SYSTEM_DATABASES]
        else:
            databases = [scope.database]
        for database in databases:
            wanted: dict[str, Any] = {"type": "collection"}
            if scope.collections:
                wanted["name"] = {"$in": list(scope.collections)}
            for found in self._client[database].list_collections(filter=wanted):
                name = found["name"]
                if name.startswith("system.") or not scope.accepts(database, name):
                    continue
                if self._accepts is not None and not self._accepts(database, name):
                    continue
                uuid = found.get("info", {}).get("uuid", b"")
                yield Collection(database, name, bytes(uuid).hex())

    def _key(self, database: str, name: str) -> tuple[str, ...]:
        """Return the fields of a collection's shard key, by one request."""
        try:
            entry = self._client.config.collections.find_one({"_id": f"{database}.{name}"})
        except OperationFailure as error:
            if error.code != _NOT_ALLOWED:  # without the privilege, keys are `_id` alone
                raise
            return ()
        return () if entry is None else tuple(entry.get("key", ()))


def current_name(client: MongoClient[Any], collection: Collection) -> str | None:
    """Return the current name of a collection; None if it was dropped. Raises PyMongoError."""
    wanted: dict[str, Any] = {"name": collection.name}
    if collection.uuid:
        wanted = {"info.uuid": Binary(bytes.fromhex(collection.uuid), 4)}
    for found in client[collection.database].list_collections(filter=wanted):
        return str(found["name"])
    return None


def _cuts(sample: list[Any], parts: int) -> list[str]:
    """Return the quantiles of the sorted sample among the `_id`s of the most common type."""
    if not sample:
        return []
    kinds = Counter(map(_kind, sample))
    common = kinds.most_common(1)[0][0]
    values = [text_of(value) for value in sample if _kind(value) == common]
    cuts = [values[len(values) * part // parts] for part in range(1, parts)]
    return [cut for previous, cut in pairwise([values[0], *cuts]) if cut != previous]


def _kind(value: Any) -> str:
    """Return the name of the types that compare with a value; NaN has a name of its own."""
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "bytes" if isinstance(value, bytes) else type(value).__name__


# Seconds that one call waits for the end of the delay: Spark stops a query between two calls.
_POLL_SECONDS = 0.5


class SnapshotDecision:
    """Decides for one start of a query, which continues from a position and a snapshot's plan.

    Raises OptionError if a custom mode fails.
    """

    def __init__(
        self,
        options: SnapshotOptions,
        position: Position,
        plan: SnapshotPlan | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        in_progress = plan is not None and not plan.ended
        self.policy: SnapshotPolicy = options.policy_for(QueryStart(time_of(position), in_progress))
        """When this start reads documents, and whether events follow."""
        self._is_due = self.policy.at_every_start and not in_progress
        self._earliest = clock() + options.delay
        self._clock = clock
        self._sleep = sleep

    def is_due(self, position: Position) -> bool:
        """Return whether a snapshot begins at this position."""
        return self.policy.at_first if isinstance(position, FromNow) else self._is_due

    def wait_for_delay(self, *, block: bool) -> bool:
        """Return whether the delay is over; the caller then begins the snapshot.

        Without `block` the call takes half a second at most.
        """
        remaining = self._earliest - self._clock()
        if remaining > 0:
            self._sleep(remaining if block else min(remaining, _POLL_SECONDS))
        if remaining > _POLL_SECONDS and not block:
            return False
        self._is_due = False
        return True

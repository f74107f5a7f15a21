"""Decides, on Spark's driver, which collections a snapshot reads, and in which chunks.

A collection is cut by a random sample of its `_id`s, sorted by the server, so planning reads a few
`_id`s for each chunk and never the whole index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from bson.binary import Binary
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from spark_sink.errors import MESSAGE_LIMIT
from spark_sink.patience import may_pass
from spark_sink.scope import Scope
from spark_sink.snapshot.plan import Chunk, Collection, SnapshotPlan, text_of

# `_id`s that are sampled for each chunk: with so many a chunk is rarely twice as large as another.
_SAMPLES = 20
# Chunks of a collection at most; those of a larger collection are larger. Bounds the offset's size.
MOST_CHUNKS = 4096
# Tasks of a batch at most.
MOST_TASKS = 64
_OF_THE_SERVERS = ("admin", "config", "local")
_NOT_ALLOWED = 13


class SnapshotPlanner:
    """Plans a snapshot of a scope.

    client: of the router, decoding documents as dicts; scope: what is read; chunk_rows: about how
    many documents a chunk has; accepts: whether a collection of the scope, given by its database
    and its name, is read, None for all of them. All methods raise PyMongoError.
    """

    def __init__(
        self,
        client: MongoClient[dict[str, Any]],
        scope: Scope,
        chunk_rows: int,
        accepts: Callable[[str, str], bool] | None = None,
    ) -> None:
        self._client = client
        self._scope = scope
        self._chunk_rows = chunk_rows
        self._accepts = accepts

    def begin(self, mark: Timestamp, wanted: Callable[[str], bool] | None = None) -> SnapshotPlan:
        """A plan of the scope's collections, with no chunk planned yet.

        mark: a cluster time that no finished write lies behind; wanted: chooses among the scope's
        collections by their names, such as "shop.orders"; None: all.
        """
        chosen = (each for each in self._collections() if wanted is None or wanted(str(each)))
        keyed = (replace(each, key=self._key(each.database, each.name)) for each in chosen)
        found = tuple(sorted(keyed, key=str))
        names = tuple((each.database, each.name) for each in found)
        only = None if self._accepts is None else names
        return SnapshotPlan(mark, waiting=found, collections=len(found), only=only)

    def next_batch(self, plan: SnapshotPlan, max_rows: int | None) -> SnapshotPlan:
        """The plan after a further batch of about so many documents; None: as many as tasks take.

        A batch has at least one chunk, and at most MOST_TASKS; the last one has none.
        """
        if plan.exhausted:
            return replace(plan, chunks=(), ended=True)
        plan = replace(plan, chunks=())
        rows = 0
        while not plan.exhausted and len(plan.chunks) < MOST_TASKS:
            if plan.current is None:
                plan = self._begin_collection(plan)
            if plan.chunks and max_rows is not None and rows + plan.rows > max_rows:
                break
            rows += plan.rows
            _, plan = plan.next_chunk()
        return plan

    def all_chunks(self, plan: SnapshotPlan) -> list[Chunk]:
        """All chunks of the plan, for one batch."""
        chunks: list[Chunk] = []
        while not plan.exhausted:
            plan = self.next_batch(plan, None)
            chunks += plan.chunks
        return chunks

    def problem(self, collection: Collection, condition: Mapping[str, Any] | None) -> str | None:
        """Why documents of a collection cannot be read with a filter; None if they can.

        The server parses the filter and reads nothing.
        """
        wanted = [{"_id": {"$in": []}}, *([condition] if condition else [])]
        documents = self._client[collection.database][collection.name]
        try:
            documents.find_one({"$and": wanted})
        except OperationFailure as error:
            if may_pass(error):
                raise
            reason = (error.details or {}).get("errmsg", "")
            return f"cannot read {collection}: {reason}"[:MESSAGE_LIMIT]
        return None

    def name_now(self, collection: Collection) -> str | None:
        """What the collection is called now; None if it is gone."""
        return current_name(self._client, collection)

    def _begin_collection(self, plan: SnapshotPlan) -> SnapshotPlan:
        collection, *others = plan.waiting
        bounds, rows = self._bounds(collection)
        current = Chunk(collection)
        return replace(plan, waiting=tuple(others), current=current, bounds=bounds, rows=rows)

    def _bounds(self, collection: Collection) -> tuple[tuple[str, ...], int]:
        """Where a collection is cut, and about how many documents lie between two cuts."""
        documents = self._client[collection.database][collection.name]
        count = documents.estimated_document_count()
        parts = min(MOST_CHUNKS, -(-count // self._chunk_rows))
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
        """The collections that the planner may read, without their shard keys."""
        scope = self._scope
        if scope.database is None:
            names = self._client.list_database_names()
            databases = [name for name in names if name not in _OF_THE_SERVERS]
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
        """The fields of a collection's shard key, which cost a request."""
        try:
            entry = self._client.config.collections.find_one({"_id": f"{database}.{name}"})
        except OperationFailure as error:
            if error.code != _NOT_ALLOWED:  # without the right to ask, keys are `_id` alone
                raise
            return ()
        return () if entry is None else tuple(entry.get("key", ()))


def current_name(client: MongoClient[Any], collection: Collection) -> str | None:
    """What the collection is called now; None if it is gone. Raises PyMongoError."""
    wanted: dict[str, Any] = {"name": collection.name}
    if collection.uuid:
        wanted = {"info.uuid": Binary(bytes.fromhex(collection.uuid), 4)}
    for found in client[collection.database].list_collections(filter=wanted):
        return str(found["name"])
    return None


def _cuts(sample: list[Any], parts: int) -> list[str]:
    """The sorted sample's quantiles among the `_id`s of the commonest type, in extended JSON."""
    if not sample:
        return []
    kinds = Counter(map(_kind, sample))
    common = kinds.most_common(1)[0][0]
    values = [text_of(value) for value in sample if _kind(value) == common]
    cuts = [values[len(values) * part // parts] for part in range(1, parts)]
    return [cut for previous, cut in pairwise([values[0], *cuts]) if cut != previous]


def _kind(value: Any) -> str:
    """A name for the types that a value is compared with; NaN is compared with none."""
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "bytes" if isinstance(value, bytes) else type(value).__name__

"""Plans, on Spark's driver, how far a snapshot goes in a batch, and divides a batch into tasks.

A collection is divided by a random sample of its `_id`s, which the server sorts, so planning reads
a few `_id`s for each task and never the whole index. The samples are kept in memory only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import bson
from bson import Code, DBRef
from bson.errors import BSONError
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from shard_client.bson.values import DECIMAL, DOUBLE, INT32, INT64, STRING, SYMBOL
from spark_sink.errors import within_limit
from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import SnapshotOptions
from spark_sink.snapshot.catalog import NOT_ALLOWED, current_name, list_collections
from spark_sink.snapshot.plan import (
    Chunk,
    Mark,
    Progress,
    SnapshotCollection,
    SnapshotPlan,
    bound_text,
    value_of,
)
from spark_sink.snapshot.selections import EVERYTHING, Namespace, Selection
from spark_sink.stream.retries import is_transient

CHUNK_BYTES = 64 << 20
"""The bytes of documents that a task reads where there are many."""
# The least bytes for which a task starts.
_LEAST_BYTES = 1 << 20
# What reading a collection costs in addition, as bytes.
_COLLECTION_BYTES = 64 << 10
# Sampled `_id`s for each task, so that a task is rarely twice as large as another.
_SAMPLES = 20
# The most of one sample, which is in memory.
_MAX_SAMPLE = 200_000
# The most characters of a bound: fewer if its text in an offset has more than _MAX_TEXT. Escaped, a
# character takes up to twelve.
_KEY_LENGTHS = (100, 50)
_MAX_TEXT = 700
# BSON's types that compare with each other, by one of them; NaN is below all other numbers.
_COMPARED_AS = {DOUBLE: INT32, INT64: INT32, DECIMAL: INT32, SYMBOL: STRING}
_NAN = -1
# Unauthorized, NamespaceNotFound, CommandNotFound, CommandNotSupported, …OnView: a collection was
# replaced by a view of its name.
_NO_STATS = (NOT_ALLOWED, 26, 59, 115, 166)
# The servers' random cursor has found one document too often; asked again, it finds others.
_NO_NEW_DOCUMENT = 28799
_SAMPLE_ATTEMPTS = 10
# The largest part of a task that one sampled document may stand for. If it stands for more, the
# documents of the batch alone are sampled, and _FINER times as many.
_COARSE = 0.3
_FINER = 5
# A sampled document counts as this many average ones at most: a single large one in a sample does
# not stand for many.
_LARGE = 16
# The least weight of a part: one that has no sampled document may still have documents.
_NOTHING = 1e-9
# The bytes of a document where the server does not tell them.
_UNKNOWN_SIZE = 1024


class _Piece(NamedTuple):
    """A part of a collection: its share of it, its weight in full tasks, and its documents."""

    chunk: Chunk
    share: float
    weight: float
    rows: float


class ChunkPlanner:
    """Plans snapshots of a scope. All methods raise PyMongoError.

    `options` say how many tasks a batch has, and how many documents a task reads: otherwise
    CHUNK_BYTES of them, or less if there are too few for all tasks of a batch.
    """

    def __init__(self, client: MongoClient[Any], scope: Scope, options: SnapshotOptions) -> None:
        self._client = client
        self._scope = scope
        self._tasks = options.tasks
        self._rows = options.chunk_rows
        self._listed: dict[str, SnapshotCollection] = {}
        self._names: dict[str, set[Namespace]] = {}
        # The pieces of collections that are being read, from one of them on up to the end.
        self._sampled: dict[str, list[_Piece]] = {}

    def begin(self, snapshot_time: Timestamp, selection: Selection = EVERYTHING) -> SnapshotPlan:
        """Return the plan of a snapshot of which nothing is read yet.

        `snapshot_time` is a cluster time at or after all finished writes.
        """
        for cache in (self._listed, self._names, self._sampled):
            cache.clear()
        return SnapshotPlan(snapshot_time, progress=Progress(len(self.collections(selection))))

    def collections(
        self, selection: Selection = EVERYTHING, plan: SnapshotPlan | None = None
    ) -> list[SnapshotCollection]:
        """Return the collections of a snapshot in the order in which it reads them.

        `plan` is the snapshot's; without it, the servers are asked again. A collection that got
        another UUID after its beginning, because it was resharded, comes last: the snapshot may
        have passed it before a restart.
        """
        if plan is None or not self._listed:
            self._list()
        chosen = [
            collection for collection in self._listed.values() if selection.wants(str(collection))
        ]
        if plan is not None:
            time = plan.snapshot_time
            chosen = [
                replace(collection, is_late=collection.created > time) for collection in chosen
            ]
        return sorted(chosen, key=lambda each: each.id)

    def names(self, selection: Selection) -> list[Namespace]:
        """Return the collections that a snapshot reads whole, by database and name, now and before.

        A collection that was renamed has both names.
        """
        return sorted(
            {
                name
                for collection in self.collections(selection)
                if selection.condition(str(collection)) is None
                for name in self._names[collection.id]
            }
        )

    def next_batch(self, plan: SnapshotPlan, selection: Selection = EVERYTHING) -> SnapshotPlan:
        """Return the plan after a further batch; the last one reads nothing."""
        weight = rows = 0.0
        ids = [collection.id for collection in self.collections(selection, plan)]
        begin, end = plan.end, None
        if begin is None or not ids or ids[-1] < begin.collection:
            return replace(plan, start=Mark(), end=None, ended=True)
        for before in [sampled for sampled in self._sampled if sampled < begin.collection]:
            del self._sampled[before]
        for piece in self._pieces(replace(plan, start=begin, end=None), selection, fine=False):
            if weight >= self._tasks * (1 - 0.5 / _SAMPLES):
                end = Mark(piece.chunk.collection.id, piece.chunk.lower)
                break
            weight += piece.weight
            rows += piece.rows
        done = plan.progress
        planned = len(ids) if end is None else bisect_left(ids, end.collection)
        share = 0.0
        if end is not None and end.key is not None:
            pieces = self._sampled[end.collection]
            share = 1 - sum(piece.share for piece in pieces[_index_at(pieces, end.key) :])
        progress = Progress(
            len(ids),
            planned,
            done.chunks_planned + self._task_count(weight),
            done.rows_planned + round(rows),
            round(share, 3),
        )
        return replace(plan, start=begin, end=end, progress=progress)

    def tasks(self, plan: SnapshotPlan, selection: Selection = EVERYTHING) -> list[list[Chunk]]:
        """Return what the tasks of the batch that ends with a plan read, each about as much."""
        if plan.ended:
            return []
        pieces = list(self._pieces(plan, selection, fine=True))
        weight = sum(piece.weight for piece in pieces)
        size = weight / self._task_count(weight)
        tasks: list[list[Chunk]] = []
        done = 0.0
        for piece in pieces:
            # A piece belongs to the task in which most of it lies.
            number = int((done + piece.weight / 2) / size)
            done += piece.weight
            while len(tasks) <= number:
                tasks.append([])
            last = tasks[number][-1] if tasks[number] else None
            if last is not None and last.collection == piece.chunk.collection:
                tasks[number][-1] = replace(last, upper=piece.chunk.upper)
            else:
                tasks[number].append(piece.chunk)
        return [task for task in tasks if task]

    def _task_count(self, weight: float) -> int:
        """Return how many tasks read documents of a weight."""
        small = 0 if self._rows else min(self._tasks, int(weight * CHUNK_BYTES / _LEAST_BYTES))
        return max(1, round(weight), small)

    def _pieces(self, plan: SnapshotPlan, selection: Selection, *, fine: bool) -> Iterator[_Piece]:
        """Return the parts of all collections from a plan's start up to its end, in order.

        With `fine` a batch is divided once more where a sample stands for too much of a task.
        """
        for collection in self.collections(selection, plan):
            bounds = plan.bounds(collection)
            if bounds is None:
                continue
            keys = selection.key_count(str(collection))
            if keys is not None:
                yield _Piece(Chunk(collection), 1.0, keys * _UNKNOWN_SIZE / CHUNK_BYTES, keys)
                continue
            pieces = self._between(collection, *bounds)
            is_coarse = max(piece.weight for piece in pieces) > _COARSE
            if fine and is_coarse and sum(piece.weight for piece in pieces) < 2 * self._tasks:
                within = sum(piece.share for piece in pieces)
                pieces = self._sample(collection, *bounds, within)
            yield from pieces

    def _between(
        self, collection: SnapshotCollection, lower: str | None, upper: str | None
    ) -> list[_Piece]:
        """Return the pieces of a collection from a key up to another one."""
        pieces = self._sampled.get(collection.id, [])
        first = _index_at(pieces, lower)
        if first is None:
            pieces = self._sampled[collection.id] = self._sample(collection, lower)
        last = None if upper is None else _index_at(pieces, upper)
        if upper is not None and last is None:  # planned before a restart
            return self._sample(collection, lower, upper)
        return pieces[first:last]

    def _sample(
        self,
        collection: SnapshotCollection,
        lower: str | None,
        upper: str | None = None,
        within: float | None = None,
    ) -> list[_Piece]:
        """Return the pieces into which a sample divides a collection from a key up to another one.

        The sample is of all documents, at random, and the server takes those of the range; or only
        of the range, if that is `within`, this part of the collection, and many times smaller.
        """
        name = collection.name
        rows, size = self._stats(collection.database, name)
        if not rows:  # it may have another name now
            name = current_name(self._client, collection) or name
            rows, size = self._stats(collection.database, name)
        weight = rows / self._rows if self._rows is not None else size / CHUNK_BYTES
        keys: list[str] = []
        shares = [1.0]
        parts = self._task_count(weight * (within or 1))
        if parts > 1:
            number = min(_MAX_SAMPLE, parts * _SAMPLES)
            chosen = Chunk(collection, lower, upper).filter()
            stages = self._sample_stages(chosen, number, of_range=within is not None)
            average = size / rows if self._rows is None and rows else 1
            taken = self._taken(collection.database, name, stages)
            sample = [(key, min(its_size, average * _LARGE)) for key, its_size in taken]
            bound = lower or upper
            kind = None if bound is None else _kind(value_of(bound))
            keys, sizes = _divided(sample, lower, kind, cut=not collection.has_collation)
            total = sum(sizes) / (within or 1)
            if chosen and within is None:
                total = min(number, rows) * average
            shares = [part / total for part in sizes] if total else shares
        weight = max(weight, _COLLECTION_BYTES / CHUNK_BYTES)
        return [
            _Piece(Chunk(collection, *bounds), share, share * weight + _NOTHING, share * rows)
            for bounds, share in zip(pairwise([lower, *keys, upper]), shares, strict=True)
        ]

    def _sample_stages(
        self, chosen: Mapping[str, Any], number: int, *, of_range: bool
    ) -> list[Mapping[str, Any]]:
        """Return the stages that sample `number` documents, of which those `chosen` are taken.

        With `of_range`, many times as many are sampled, of the range alone: the server goes through
        all of it, because no index has a sample of a range.
        """
        by_bytes = {} if self._rows is not None else {"size": {"$bsonSize": "$$ROOT"}}
        fields: Mapping[str, Any] = {"$project": {"_id": 1, **by_bytes}}
        size = min(_MAX_SAMPLE, number * _FINER) if of_range else number
        sample: Mapping[str, Any] = {"$sample": {"size": size}}
        within = [{"$match": chosen}] if chosen else []
        order = [*within, fields, sample] if of_range else [sample, *within, fields]
        return [*order, {"$sort": {"_id": 1}}]

    def _taken(
        self, database: str, name: str, stages: list[Mapping[str, Any]]
    ) -> list[tuple[Any, float]]:
        """Return the `_id`s of a sample of a collection, and the sizes of the documents or 1."""
        for attempt in range(_SAMPLE_ATTEMPTS):
            try:
                documents = self._client[database][name].aggregate(stages, allowDiskUse=True)
                return [(document.get("_id"), document.get("size", 1)) for document in documents]
            except OperationFailure as error:
                if error.code != _NO_NEW_DOCUMENT or attempt == _SAMPLE_ATTEMPTS - 1:
                    raise
        raise AssertionError

    def _stats(self, database: str, name: str) -> tuple[int, int]:
        """Return about how many documents a collection has, and their bytes."""
        try:
            stats = self._client[database].command("collStats", name)
        except OperationFailure as error:
            if error.code not in _NO_STATS:
                raise
            rows = self._client[database][name].estimated_document_count()
            return rows, rows * _UNKNOWN_SIZE
        return int(stats["count"]), int(stats["size"])

    def problem(
        self, collection: SnapshotCollection, condition: Mapping[str, Any] | None
    ) -> str | None:
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
            return within_limit(f"cannot read {collection}: {reason}")
        return None

    def _list(self) -> None:
        """Find the collections of the scope, and add them to those that are known."""
        for collection in list_collections(self._client, self._scope):
            self._listed.setdefault(collection.id, collection)
            names = self._names.setdefault(collection.id, set())
            names.add((collection.database, collection.name))


def _index_at(pieces: Sequence[_Piece], key: str | None) -> int | None:
    """Return the index of the piece that begins at a key; None if none does."""
    return next((n for n, piece in enumerate(pieces) if piece.chunk.lower == key), None)


def _divided(
    sample: Iterable[tuple[Any, float]], lower: str | None, kind: int | None, *, cut: bool
) -> tuple[list[str], list[float]]:
    """Return the keys among a sorted sample, and the sizes from `lower` to the first, and so on.

    The keys have one kind: the most common one, if none is given. Values of other kinds lie before
    the first key (`plan`). With `cut`, the beginning of a long text is a key.
    """
    sample = list(sample)
    kinds = [_kind(value) for value, _ in sample]
    if kind is None and sample:
        kind = Counter(kinds).most_common(1)[0][0]
    keys: list[str] = []
    sizes, previous = [0.0], lower
    for (value, size), its_kind in zip(sample, kinds, strict=True):
        text = _bound(value, cut=cut) if its_kind == kind else None
        if text is None:
            sizes[0] += size
            continue
        if previous is not None and text != previous:
            keys.append(text)
            sizes.append(0.0)
        previous = text
        sizes[-1] += size
    return keys, sizes


def _bound(value: Any, *, cut: bool) -> str | None:
    """Return a value as a bound, of a text its beginning; None if it cannot be one.

    The bounds of a collection must be in order, otherwise chunks would overlap. So the beginnings
    of texts are bounds only where texts are compared byte by byte, without a collation.
    """
    for most in _KEY_LENGTHS if cut and isinstance(value, str) else (None,):
        key = value if most is None else value[:most]
        text = bound_text(key)
        if len(text) <= _MAX_TEXT:
            return text if _is_same(key, text) else None
    return None


def _is_same(value: Any, text: str) -> bool:
    """Return whether JSON shows exactly this value; it may be a text that is not UTF-8."""
    if isinstance(value, str):
        return "\ufffd" not in value
    if not isinstance(value, Mapping | DBRef | Code):
        return True
    try:
        return bson.encode({"": value_of(text)}) == bson.encode({"": value})
    except (BSONError, ValueError, TypeError, ArithmeticError):
        return False


def _kind(value: Any) -> int:
    """Return the number of the types that compare with a value; NaN has a number of its own."""
    kind = bson.encode({"": value})[4]
    kind = _COMPARED_AS.get(kind, kind)
    return _NAN if kind == INT32 and "nan" in str(value).lower() else kind

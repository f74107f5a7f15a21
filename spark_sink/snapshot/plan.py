"""Where a snapshot stands: its mark, the collections that remain, and the chunks of one batch.

The plan is part of an offset of Spark, so a snapshot that is killed goes on where it was. A chunk
is a range of `_id`. MongoDB compares values of one type with `$gte` and `$lt` (type bracketing), so
all bounds of a collection have the same type: the first chunk takes everything that is not at or
above the first bound, values of other types included. The chunks of a collection are disjoint and
complete whatever its `_id`s are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bson import json_util
from bson.timestamp import Timestamp

from spark_sink.positions import AtTime, time_document, time_from


@dataclass(frozen=True)
class Collection:
    """A collection of a snapshot.

    uuid: its UUID in hexadecimal digits, by which it is found if it is renamed; "" where unknown;
    key: its shard key's fields, empty for an unsharded collection.
    """

    database: str
    name: str
    uuid: str = ""
    key: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


@dataclass(frozen=True)
class Chunk:
    """A range of a collection's `_id`s. lower: included, in extended JSON; upper: excluded.

    None is the range's open end.
    """

    collection: Collection
    lower: str | None = None
    upper: str | None = None

    def filter(self) -> dict[str, Any]:
        """The range as a filter for `find`."""
        upper = {} if self.upper is None else {"$lt": value_of(self.upper)}
        if self.lower is not None:
            return {"_id": {"$gte": value_of(self.lower), **upper}}
        if self.upper is not None:
            return {"_id": {"$not": {"$gte": value_of(self.upper)}}}
        return {}


@dataclass(frozen=True)
class SnapshotPlan:
    """What is left of a snapshot after a batch, and what the batch reads.

    mark: the cluster time that was pinned before anything was read: the stream goes on from there;
    waiting: collections of which nothing has been planned; current: the rest of the collection that
    is being read, None between collections; bounds: where that rest is cut, in extended JSON;
    rows: about how many documents a chunk of it has; chunks: of the batch that ends here;
    collections, planned: how many collections and chunks the snapshot has so far; planned_rows:
    about how many documents these chunks have; ended: whether the batch that ends here is the
    snapshot's last, which has no chunks; only: the databases and names of the collections that are
    read, None for all of the scope.
    """

    mark: Timestamp
    waiting: tuple[Collection, ...] = ()
    current: Chunk | None = None
    bounds: tuple[str, ...] = ()
    rows: int = 0
    chunks: tuple[Chunk, ...] = ()
    collections: int = 0
    planned: int = 0
    planned_rows: int = 0
    ended: bool = False
    only: tuple[tuple[str, str], ...] | None = None

    @property
    def exhausted(self) -> bool:
        """Whether all chunks have been planned, those of this batch included."""
        return self.current is None and not self.waiting

    @property
    def handover(self) -> AtTime:
        """Where the stream goes on."""
        return after(self.mark)

    def next_chunk(self) -> tuple[Chunk, SnapshotPlan]:
        """Cut the next chunk off the current collection."""
        assert self.current is not None
        chunk, bounds = self.current, self.bounds
        rest: Chunk | None = None
        if bounds:
            rest = replace(chunk, lower=bounds[0])
            chunk = replace(chunk, upper=bounds[0])
        left = replace(
            self,
            current=rest,
            bounds=bounds[1:],
            chunks=(*self.chunks, chunk),
            planned=self.planned + 1,
            planned_rows=self.planned_rows + self.rows,
        )
        return chunk, left

    def to_document(self) -> dict[str, Any]:
        """The plan as part of an offset."""
        done = self.collections - len(self.waiting) - (self.current is not None)
        document: dict[str, Any] = {
            "mark": time_document(self.mark),
            "chunks": [chunk_document(chunk) for chunk in self.chunks],
            "progress": {
                "collections": self.collections,
                "collectionsPlanned": done,
                "chunksPlanned": self.planned,
                "rowsPlanned": self.planned_rows,
            },
        }
        if self.ended:
            document["ended"] = True
        if self.only is not None:
            document["only"] = [list(each) for each in self.only]
        if self.waiting:
            document["waiting"] = [collection_document(each) for each in self.waiting]
        if self.current is not None:
            document["current"] = chunk_document(self.current)
            document["bounds"] = list(self.bounds)
            document["rows"] = self.rows
        return document


def plan_from(document: Mapping[str, Any]) -> SnapshotPlan:
    """The plan that `to_document` wrote. Raises KeyError or TypeError for anything else."""
    current = document.get("current")
    progress = document["progress"]
    return SnapshotPlan(
        mark=time_from(document["mark"]),
        waiting=tuple(collection_from(each) for each in document.get("waiting", ())),
        current=None if current is None else chunk_from(current),
        bounds=tuple(document.get("bounds", ())),
        rows=document.get("rows", 0),
        chunks=tuple(chunk_from(each) for each in document["chunks"]),
        collections=progress["collections"],
        planned=progress["chunksPlanned"],
        planned_rows=progress.get("rowsPlanned", 0),  # older offsets have none
        ended=document.get("ended", False),
        only=_names(document.get("only")),
    )


def after(time: Timestamp) -> AtTime:
    """The position behind all events of a cluster time."""
    return AtTime(Timestamp(time.time, time.inc + 1))


def text_of(value: Any) -> str:
    """A bound as canonical extended JSON, from which `value_of` makes it again."""
    return json_util.dumps({"v": value}, json_options=json_util.CANONICAL_JSON_OPTIONS)


def value_of(text: str) -> Any:
    """The bound that `text_of` wrote."""
    return json_util.loads(text, json_options=json_util.CANONICAL_JSON_OPTIONS)["v"]


def _names(document: list[list[str]] | None) -> tuple[tuple[str, str], ...] | None:
    return None if document is None else tuple((database, name) for database, name in document)


def collection_document(collection: Collection) -> list[Any]:
    """The collection as part of an offset."""
    return [collection.database, collection.name, collection.uuid, list(collection.key)]


def collection_from(document: list[Any]) -> Collection:
    """The collection that `collection_document` wrote."""
    database, name, uuid, key = document
    return Collection(database, name, uuid, tuple(key))


def chunk_document(chunk: Chunk) -> dict[str, Any]:
    """The chunk as part of an offset."""
    document: dict[str, Any] = {"of": collection_document(chunk.collection)}
    if chunk.lower is not None:
        document["from"] = json.loads(chunk.lower)
    if chunk.upper is not None:
        document["to"] = json.loads(chunk.upper)
    return document


def chunk_from(document: Mapping[str, Any]) -> Chunk:
    """The chunk that `chunk_document` wrote."""
    lower, upper = document.get("from"), document.get("to")
    return Chunk(
        collection_from(document["of"]),
        None if lower is None else json.dumps(lower),
        None if upper is None else json.dumps(upper),
    )

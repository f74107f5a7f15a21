"""The plan of a snapshot: its time, the remaining collections, and the chunks of one batch.

The plan is part of Spark's offset, so a killed snapshot continues where it was. A chunk is a range
of `_id`. MongoDB compares values of one type with `$gte` and `$lt` (type bracketing), so all bounds
of a collection have the same type: the first chunk has everything that is not at or above the first
bound, including values of other types. So the chunks of a collection are disjoint and complete for
all values of `_id`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bson import json_util
from bson.timestamp import Timestamp

from spark_sink.events.positions import AtTime, after, time_document, time_from


@dataclass(frozen=True)
class Collection:
    """A collection of a snapshot.

    Its UUID, in hexadecimal digits or "", finds it after a rename. `key` has the fields of its
    shard key, none for an unsharded collection.
    """

    database: str
    name: str
    uuid: str = ""
    key: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


@dataclass(frozen=True)
class Chunk:
    """A range of a collection's `_id`s, from `lower` up to but not including `upper`.

    The bounds are extended JSON; None is an open end.
    """

    collection: Collection
    lower: str | None = None
    upper: str | None = None

    def filter(self) -> dict[str, Any]:
        """Return the range as a filter for `find`."""
        upper = {} if self.upper is None else {"$lt": value_of(self.upper)}
        if self.lower is not None:
            return {"_id": {"$gte": value_of(self.lower), **upper}}
        if self.upper is not None:
            return {"_id": {"$not": {"$gte": value_of(self.upper)}}}
        return {}


@dataclass(frozen=True)
class SnapshotPlan:
    """The rest of a snapshot after a batch, and what the batch reads.

    Args:
        snapshot_time: the cluster time from before all reads, where the stream continues.
        waiting: collections with no chunk planned.
        current, bounds: the rest of the collection in progress, and where it is divided.
        rows: about how many documents a chunk of it has.
        chunks: of the batch that ends here.
        collections, planned, planned_rows: of the snapshot so far.
        ended: whether the batch that ends here is the last one, which has no chunks.
        only: the databases and names of the collections; None for all of the scope.
    """

    snapshot_time: Timestamp
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
        """Whether all chunks were planned, including those of this batch."""
        return self.current is None and not self.waiting

    @property
    def handover(self) -> AtTime:
        """Where the stream continues."""
        return after(self.snapshot_time)

    def next_chunk(self) -> tuple[Chunk, SnapshotPlan]:
        """Return the next chunk of the current collection, and the plan without it."""
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
        """Return the plan as part of an offset."""
        done = self.collections - len(self.waiting) - (self.current is not None)
        document: dict[str, Any] = {
            "mark": time_document(self.snapshot_time),
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
    """Return the plan that `to_document` wrote. Raises KeyError or TypeError for anything else."""
    current = document.get("current")
    progress = document["progress"]
    return SnapshotPlan(
        snapshot_time=time_from(document["mark"]),
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


def text_of(value: Any) -> str:
    """Return a bound as canonical extended JSON, for `value_of`."""
    return json_util.dumps({"v": value}, json_options=json_util.CANONICAL_JSON_OPTIONS)


def value_of(text: str) -> Any:
    """Return the bound that `text_of` wrote."""
    return json_util.loads(text, json_options=json_util.CANONICAL_JSON_OPTIONS)["v"]


def _names(document: list[list[str]] | None) -> tuple[tuple[str, str], ...] | None:
    return None if document is None else tuple((database, name) for database, name in document)


def collection_document(collection: Collection) -> list[Any]:
    """Return the collection as part of an offset."""
    return [collection.database, collection.name, collection.uuid, list(collection.key)]


def collection_from(document: list[Any]) -> Collection:
    """Return the collection that `collection_document` wrote."""
    database, name, uuid, key = document
    return Collection(database, name, uuid, tuple(key))


def chunk_document(chunk: Chunk) -> dict[str, Any]:
    """Return the chunk as part of an offset."""
    document: dict[str, Any] = {"of": collection_document(chunk.collection)}
    if chunk.lower is not None:
        document["from"] = json.loads(chunk.lower)
    if chunk.upper is not None:
        document["to"] = json.loads(chunk.upper)
    return document


def chunk_from(document: Mapping[str, Any]) -> Chunk:
    """Return the chunk that `chunk_document` wrote."""
    lower, upper = document.get("from"), document.get("to")
    return Chunk(
        collection_from(document["of"]),
        None if lower is None else json.dumps(lower),
        None if upper is None else json.dumps(upper),
    )

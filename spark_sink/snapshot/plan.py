"""The plan of a snapshot: its time, the remaining collections, and the chunks of one batch.

The plan is part of Spark's offset, so a killed snapshot continues where it was. A chunk is a range
of `_id`. MongoDB compares values of one type with `$gte` and `$lt` (type bracketing), so all bounds
of a collection have the same type: the first chunk has everything that is not at or above the first
bound, including values of other types. So the chunks of a collection are disjoint and complete for
all values of `_id`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from bson import json_util
from bson.codec_options import DatetimeConversion
from bson.timestamp import Timestamp

from spark_sink.events.documents import stored
from spark_sink.events.positions import AtTime, after

_ANY_DATE = json_util.CANONICAL_JSON_OPTIONS.with_options(
    datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


@dataclass(frozen=True)
class Collection:
    """A collection of a snapshot.

    Its UUID, in hexadecimal digits or "", finds it after a rename. `key` has the fields of its
    shard key, none for an unsharded collection.
    """

    AS_LIST: ClassVar = True
    database: str
    name: str
    uuid: str = ""
    key: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


@dataclass(frozen=True)
class LostDocument:
    """A document that a table lacks, because an event's update could not be applied to it.

    `key` is its `_id` as canonical extended JSON, `token` the event's.
    """

    AS_LIST: ClassVar = True
    database: str
    collection: str
    key: str
    token: str


@dataclass(frozen=True)
class Chunk:
    """A range of a collection's `_id`s, from `lower` up to but not including `upper`.

    The bounds are extended JSON; None is an open end.
    """

    collection: Collection = field(metadata=stored("of"))
    lower: str | None = field(default=None, metadata=stored("from", json.loads, json.dumps))
    upper: str | None = field(default=None, metadata=stored("to", json.loads, json.dumps))

    def filter(self) -> dict[str, Any]:
        """Return the range as a filter for `find`."""
        upper = {} if self.upper is None else {"$lt": value_of(self.upper)}
        if self.lower is not None:
            return {"_id": {"$gte": value_of(self.lower), **upper}}
        if self.upper is not None:
            return {"_id": {"$not": {"$gte": value_of(self.upper)}}}
        return {}


@dataclass(frozen=True)
class Progress:
    """How far a snapshot is planned: its collections, its chunks, about how many rows."""

    collections: int = 0
    collections_planned: int = 0
    chunks_planned: int = 0
    rows_planned: int = 0


@dataclass(frozen=True)
class SnapshotPlan:
    """The rest of a snapshot after a batch, and what the batch reads.

    Args:
        snapshot_time: the cluster time from before all reads, where the stream continues.
        waiting: collections with no chunk planned.
        current, bounds: the rest of the collection in progress, and where it is divided.
        rows: about how many documents a chunk of it has.
        chunks: of the batch that ends here.
        progress: of the snapshot so far.
        ended: whether the batch that ends here is the last one, which has no chunks.
        only: the databases and names of the collections; None for all of the scope.
    """

    snapshot_time: Timestamp = field(metadata=stored("mark"))
    waiting: tuple[Collection, ...] = ()
    current: Chunk | None = None
    bounds: tuple[str, ...] = ()
    rows: int = 0
    chunks: tuple[Chunk, ...] = ()
    progress: Progress = Progress()
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
        done = self.progress
        progress = Progress(
            done.collections,
            done.collections_planned + (rest is None),
            done.chunks_planned + 1,
            done.rows_planned + self.rows,
        )
        chunks = (*self.chunks, chunk)
        left = replace(self, current=rest, bounds=bounds[1:], chunks=chunks, progress=progress)
        return chunk, left


def text_of(value: Any) -> str:
    """Return a bound as canonical extended JSON, for `value_of`."""
    return json_util.dumps({"v": value}, json_options=json_util.CANONICAL_JSON_OPTIONS)


def value_of(text: str) -> Any:
    """Return the bound that `text_of` wrote."""
    return json_util.loads(text, json_options=_ANY_DATE)["v"]


def filter_of(keys: Iterable[str]) -> dict[str, Any]:
    """Return the filter on documents whose `_id`s are given as canonical extended JSON."""
    return {"_id": {"$in": [value_of(f'{{"v": {key}}}') for key in keys]}}

"""The position of a snapshot, and the chunks that its tasks read.

A snapshot goes through its collections in the order of their ids, and through each in the order of
`_id`. So two marks say what a batch reads, and Spark's offset holds these alone. The servers are
asked for the bounds of the tasks when the batch is read: a batch that is repeated may be divided
otherwise, but has the same documents.

MongoDB compares values of one type with `$gte` and `$lt` (type bracketing), so all bounds
of a collection have the same type: the first chunk has everything that is not at or above the first
bound, including values of other types. So the chunks of a collection are disjoint and complete for
all values of `_id`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bson import json_util
from bson.codec_options import DatetimeConversion
from bson.timestamp import Timestamp

from spark_sink.dataclass_json import stored
from spark_sink.events.positions import AtTime, after

ANY_DATE = json_util.CANONICAL_JSON_OPTIONS.with_options(
    datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
"""Extended JSON with dates of all years."""
_NEVER = Timestamp(0, 0)


@dataclass(frozen=True)
class SnapshotCollection:
    """A collection of a snapshot.

    Its UUID, in hexadecimal digits or "", finds it after a rename. `key` has the fields of its
    shard key, none for an unsharded collection, and `created` is the cluster time of its latest
    sharding or resharding. A collection that `is_late` is read after all others.
    """

    database: str
    name: str
    uuid: str = ""
    key: tuple[str, ...] = ()
    has_collation: bool = False
    created: Timestamp = _NEVER
    is_late: bool = False

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def id(self) -> str:
        """What stays when the collection is renamed, and gives the order of collections."""
        return ("~" if self.is_late else "") + (self.uuid or str(self))


@dataclass(frozen=True)
class Chunk:
    """A range of a collection's `_id`s, from `lower` up to but not including `upper`.

    The bounds are extended JSON; None is an open end.
    """

    collection: SnapshotCollection
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
class Mark:
    """Where a part of a snapshot begins: the id of a collection, and an `_id` as in Chunk."""

    collection: str = ""
    key: str | None = field(default=None, metadata=stored(json.loads, json.dumps))


@dataclass(frozen=True)
class Progress:
    """How far a snapshot is planned: its collections, its tasks, about how many rows.

    `share` is that of the current collection, from 0 to 1.
    """

    collections: int = 0
    collections_planned: int = 0
    chunks_planned: int = 0
    rows_planned: int = 0
    share: float = 0.0


@dataclass(frozen=True)
class SnapshotPlan:
    """How far a snapshot is, and what the batch reads that ends here.

    Args:
        snapshot_time: the cluster time from before all reads, where the stream continues.
        start, end: the batch reads from one mark up to the other; None is the end of everything.
        progress: of the snapshot so far.
        ended: whether the batch that ends here is the last one, which reads no documents.
    """

    snapshot_time: Timestamp
    start: Mark = Mark()
    end: Mark | None = Mark()
    progress: Progress = Progress()
    ended: bool = False

    @property
    def handover(self) -> AtTime:
        """Where the stream continues."""
        return after(self.snapshot_time)

    def bounds(self, collection: SnapshotCollection) -> tuple[str | None, str | None] | None:
        """Return the bounds, as in Chunk, of what the batch reads of a collection, or None."""
        own, start, end = collection.id, self.start, self.end
        lower = start.key if own == start.collection else None
        if own < start.collection or end is None or own < end.collection:
            return None if own < start.collection else (lower, None)
        return None if own > end.collection or end.key is None else (lower, end.key)


def bound_text(value: Any) -> str:
    """Return a bound, or another value, as canonical extended JSON for `value_of`."""
    return json_util.dumps({"v": value}, json_options=json_util.CANONICAL_JSON_OPTIONS)


def value_of(text: str) -> Any:
    """Return the value that `bound_text` wrote."""
    return json_util.loads(text, json_options=ANY_DATE)["v"]


def filter_of(keys: Iterable[str]) -> dict[str, Any]:
    """Return the filter on documents whose keys are given as canonical extended JSON.

    A key is an `_id`, or an array of it and of other fields, for no `_id` is an array.
    """
    values = (value_of(f'{{"v": {key}}}') for key in keys)
    return {"_id": {"$in": [key[0] if isinstance(key, list) else key for key in values]}}

"""The events that streams must deliver, read from the shards inside the process."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import bson

from embedded.change_streams.cursor import open_change_stream
from embedded.logical_clock import as_timestamp
from embedded.mongod import Mongod
from tests.simulation.segments import Event, key_of
from tests.simulation.watcher import Watch


class History(NamedTuple):
    """The events of a stream, and the sort keys at which its incarnations end.

    An invalidate is among the events unless the stream's own stages leave it out.
    """

    events: list[Event]
    ends: list[str]


async def history_of(
    shard: Mongod, watch: Watch, start: Mapping[str, Any] | None = None, *, ends: int | None = None
) -> History:
    """Return a shard's history of the stream; read up to so many ``ends``.

    ``start`` are the options that tell where it begins, by default at the oplog's start.
    """
    start = start or {"startAtOperationTime": shard.oplog.first_ts}
    found = History([], [])
    while ends is None or len(found.ends) < ends:
        stage = {**watch.stage, **start}
        cursor = open_change_stream(
            shard,
            watch.database,
            {
                "aggregate": watch.target,
                "pipeline": [{"$changeStream": stage}, *watch.pipeline],
                "cursor": {},
            },
        )
        while True:
            batch = await cursor.next_batch(1000, 0.0)
            events = [_decoded(event) for event in batch.documents]
            found.events.extend(events)
            if batch.is_last or not events:
                break
        if not batch.is_last:
            return found
        token = batch.fields["postBatchResumeToken"]
        found.ends.append(token["_data"])
        start = {"startAfter": token}
    return found


async def whole_history(shards: Iterable[Mongod], watch: Watch) -> History:
    """Return the history of all shards in the order of the tokens, without invalidates."""
    each = [await history_of(shard, watch) for shard in shards]
    events = [e for found in each for e in found.events if e["operationType"] != "invalidate"]
    return History(sorted(events, key=key_of), sorted(end for found in each for end in found.ends))


async def end_after(shards: Iterable[Mongod], watch: Watch, key: str) -> str:
    """Return the sort key at which a stream that starts after the invalidate ``key`` ends, or "".

    Each shard starts at the invalidate's time. It passes over an invalidate while that is the first
    thing that its cursor sees: an event before it ends that (docs/protocol.md#events).
    """
    whole = replace(watch, pipeline=())
    start = {"startAtOperationTime": as_timestamp(int(key[2:18], 16))}
    ends: list[str] = []
    for shard in shards:
        found = await history_of(shard, whole, start, ends=2)
        at_once = [event["operationType"] for event in found.events[1:2]] == ["invalidate"]
        ends += found.ends[at_once:]
    return min((end for end in ends if end > key), default="")


async def tokens_of(shards: Iterable[Mongod], watch: Watch) -> set[str]:
    """Return the sort keys that can be resumed from, including those of filtered events.

    The end of the stream has such a key even if its event is filtered out.
    """
    whole = replace(watch, pipeline=())
    each = [await history_of(shard, whole) for shard in shards]
    return {key_of(event) for found in each for event in found.events}


def _decoded(raw: Any) -> Event:
    return dict(bson.decode(raw.raw))

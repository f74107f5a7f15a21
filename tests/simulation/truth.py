"""The events that streams must deliver, read from the shards inside the process."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import bson

from embedded.change_streams.cursor import open_change_stream
from embedded.mongod import Mongod
from tests.simulation.watcher import Watch

Event = dict[str, Any]


async def events_of(shard: Mongod, watch: Watch) -> list[Event]:
    """Return all events of the stream in the shard's oplog, including invalidates."""
    first = shard.oplog.first_ts
    start: dict[str, Any] = {"startAtOperationTime": first}
    found: list[Event] = []
    while True:
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
            events = [_decoded(event) for event in batch.events]
            found += events
            if batch.closed or not events:
                break
        if not batch.closed:
            cursor.close()
            return found
        start = {"startAfter": batch.pbrt}


async def whole_history(shards: Iterable[Mongod], watch: Watch) -> list[Event]:
    """Return the events of all shards in the order of their tokens, without invalidates."""
    events = [event for shard in shards for event in await events_of(shard, watch)]
    return sorted((e for e in events if e["operationType"] != "invalidate"), key=key_of)


async def tokens_of(shards: Iterable[Mongod], watch: Watch) -> set[str]:
    """Return the sort keys that can be resumed from, including those of filtered events.

    The end of the stream has such a key even if its event is filtered out.
    """
    whole = replace(watch, pipeline=())
    return {key_of(event) for shard in shards for event in await events_of(shard, whole)}


def key_of(event: Event) -> str:
    """Return an event's sort key."""
    data: str = event["_id"]["_data"]
    return data


def _decoded(raw: Any) -> Event:
    return dict(bson.decode(raw.raw))

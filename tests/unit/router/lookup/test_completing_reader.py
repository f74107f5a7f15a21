"""Events are completed as the client asks for them; an interruption ends that."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import bson
import pytest
from bson import Timestamp

from router.limits.memory import Memory
from router.lookup.completing_reader import CompletingReader
from router.lookup.pushdown import LookupPlan
from router.lookup.upstream_reads import UpstreamReads
from router.lookup.user_stages import Transformed
from router.request.stream_request import parse_request
from router.stream.log_reader import Batch
from router.stream_settings import StreamSettings
from shard_client.cluster_clock import ClusterClock
from shard_client.errors import CommandError
from tests.harness.until import PATIENCE
from tests.unit.router.made_tokens import data_of

KILLED = CommandError(237, "operation was interrupted")


def event(number: int, kind: str = "insert") -> bytes:
    token = {"_data": data_of(100, number)}
    document = {"_id": token, "operationType": kind, "clusterTime": Timestamp(100, 1)}
    place = {"ns": {"db": "db", "coll": "c"}, "documentKey": {"_id": number}}
    return bson.encode({**document, **place, "number": number})


class Events:
    """Replaces the client reader: it has all its events at once."""

    def __init__(self, *events: bytes) -> None:
        self.events = list(events)
        self.interrupted: CommandError | None = None
        self.reply_bytes = 1 << 20

    def prepare(self) -> bool:
        return bool(self.events)

    async def until_ready(self, deadline: float) -> None:
        pass

    def take(self, most: int | None) -> Batch:
        taken, self.events = self.events[:most], self.events[most or len(self.events) :]
        token = bson.encode({"_data": data_of(200, 0)})
        return Batch(taken, sum(map(len, taken)), token, closed=False)

    def interrupt(self, reason: CommandError) -> None:
        self.interrupted = reason

    def close(self) -> None:
        self.events = []


class NoAnswer:
    """An upstream that never lends a connection."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    @asynccontextmanager
    async def lend(self) -> Any:
        self.asked.set()
        await asyncio.Event().wait()
        yield


def reader_of(upstream: NoAnswer, memory: Memory, *events: bytes) -> CompletingReader:
    stage = {"$changeStream": {"fullDocument": "updateLookup"}}
    request = parse_request("db", {"aggregate": "c", "pipeline": [stage], "cursor": {}})
    plan = LookupPlan.of(request)
    assert plan is not None
    untyped: Any = upstream.lend
    reads = UpstreamReads(untyped, ClusterClock(), StreamSettings())
    reader = CompletingReader(plan, reads, memory)
    reader.client_reader = Events(*events)  # type: ignore[assignment]
    return reader


async def test_a_batch_is_handed_out_in_parts_and_its_memory_is_given_back() -> None:
    memory, events = Memory(1 << 20), [event(number) for number in range(5)]
    reader = reader_of(NoAnswer(), memory, *events)
    assert memory.lookups == 1
    got: list[bytes] = []
    while len(got) < len(events):
        batch = await reader.next_batch(2, 0.0)
        assert batch.size == sum(map(len, batch.events))
        got += batch.events
    assert got == events
    assert memory.held == 0
    reader.close()
    reader.close()
    assert memory.lookups == 0


async def test_an_interruption_ends_a_lookup_and_all_later_calls() -> None:
    upstream, memory = NoAnswer(), Memory(1 << 20)
    update = event(1, "update")
    reader = reader_of(upstream, memory, update)
    reading = asyncio.create_task(reader.next_batch(None, 1.0))
    await upstream.asked.wait()
    assert memory.held >= len(update)
    reader.interrupt(KILLED)
    with pytest.raises(CommandError, match="interrupted"):
        await reading
    with pytest.raises(CommandError, match="interrupted"):
        await reader.next_batch(None, 1.0)
    reader.close()
    assert memory.held == 0


async def test_a_cancelled_call_keeps_its_events_for_the_next_one() -> None:
    upstream = NoAnswer()
    reader = reader_of(upstream, Memory(1 << 20), event(1, "update"))
    reading = asyncio.create_task(reader.next_batch(None, 1.0))
    await upstream.asked.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    upstream.asked.clear()
    again = asyncio.create_task(reader.next_batch(None, 1.0))
    await upstream.asked.wait()
    again.cancel()


async def test_a_batch_ends_in_time_though_the_stages_drop_all_of_many_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def drop(events: list[bytes]) -> Transformed:
        await asyncio.sleep(0)
        return Transformed(len(events), [])

    memory = Memory(1 << 20)
    reader = reader_of(NoAnswer(), memory)
    source: Any = reader.client_reader
    monkeypatch.setattr(source, "take", lambda _most: Events(event(1)).take(1))
    monkeypatch.setattr(reader, "complete", drop)
    async with asyncio.timeout(PATIENCE):
        batch = await reader.next_batch(None, 0.01)
    assert batch.events == []
    assert batch.pbrt == bson.encode({"_data": data_of(200, 0)})
    assert memory.held == 0

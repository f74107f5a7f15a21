"""The router's memory stays within its settings, whatever shards and clients do."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from bson import Int64, Timestamp

from bench.events import END, FIRST_SECOND, START, event, token
from bench.kernel import memory
from tests.doubles.replay import ReplayMember, cursor_body
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess, start_router

MIB = 1024 * 1024
EVENTS, SIZE = 12_000, 8_000
"""About 90 MiB of events, of which the router may buffer a small part."""

SETTINGS = {
    "remoteBufferBytes": 4 * MIB,
    "streamBufferBytes": 8 * MIB,
    "shareLogBytes": 4 * MIB,
    "repliesBytes": 16 * MIB,
}
BOUND = 32 * MIB
"""The sum of the settings above, as the allowed growth of the process."""

IDS = itertools.count(1)


class LongTape:
    """Generates events; its watermark stays at the start until ``low_watermark`` is set."""

    def __init__(self, events: int, low_watermark: asyncio.Event) -> None:
        self.id = next(IDS)
        self._events = events
        self._low_watermark = low_watermark
        self._at = 0

    def open(self, command: dict[str, object]) -> bytes:
        return cursor_body(self.id, "admin.$cmd.aggregate", [], START, first=True)

    def more(self, batch_size: int) -> tuple[bytes, bool]:
        stop = min(self._events, self._at + min(batch_size, 1000))
        batch = [event(number, SIZE) for number in range(self._at, stop)]
        self._at = stop
        if not self._low_watermark.is_set():
            watermark = START
        else:
            watermark = END if stop == self._events else token(stop - 1)
        return cursor_body(self.id, "admin.$cmd.aggregate", batch, watermark), not batch


@dataclass
class Scene:
    """A router on a shard with many events, a shard without a watermark, and a config server."""

    router: RouterProcess
    members: list[ReplayMember]
    low_watermark: asyncio.Event
    clients: AsyncExitStack

    @property
    def cursors(self) -> int:
        """The number of cursors open on the shard with many events."""
        return len(self.members[0].tapes)

    @property
    def pid(self) -> int:
        return self.router.process.pid

    async def client(self) -> "Client":
        connection = await RawClient.connect(self.router.port)
        await self.clients.enter_async_context(connection)
        stage = {"allChangesForCluster": True, "startAtOperationTime": Timestamp(FIRST_SECOND, 1)}
        opening = {"aggregate": 1, "pipeline": [{"$changeStream": stage}], "cursor": {}}
        reply = await connection.command("admin", opening)
        return Client(connection, reply["cursor"]["id"])


@dataclass
class Client:
    """A client that checks that its events arrive without gaps."""

    connection: RawClient
    cursor: int
    at: int = 0

    async def read(self, batch_size: int, wait: int = 2000) -> int:
        more = {"getMore": Int64(self.cursor), "collection": "$cmd.aggregate", "maxTimeMS": wait}
        reply = await self.connection.command("admin", {**more, "batchSize": batch_size})
        batch = reply["cursor"]["nextBatch"]
        numbers = [each["fullDocument"]["n"] for each in batch]
        assert numbers == [*range(self.at, self.at + len(batch))]
        self.at += len(batch)
        return len(batch)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    opened = asyncio.Event()
    opened.set()
    low_watermark = asyncio.Event()
    far = ReplayMember("far", lambda _: LongTape(EVENTS, opened))
    silent = ReplayMember("silent", lambda _: LongTape(0, low_watermark))
    config = ReplayMember("cfg", lambda _: LongTape(0, opened))
    members = [far, silent, config]
    hosts = [await member.start() for member in members]
    config.documents["shards"] = [
        {"_id": name, "host": host, "state": 1, "topologyTime": Timestamp(1, 1)}
        for name, host in zip(("far", "silent"), hosts, strict=False)
    ]
    router = await asyncio.to_thread(start_router, hosts[2], set_parameter=SETTINGS)
    async with AsyncExitStack() as clients:
        try:
            yield Scene(router, members, low_watermark, clients)
        finally:
            await asyncio.to_thread(router.stop)
            for member in members:
                await member.stop()


async def test_a_shard_far_ahead_of_a_silent_one_is_read_within_the_budget(scene: Scene):
    before = memory(scene.pid)
    client = await scene.client()
    for _ in range(5):
        assert await client.read(100, 100) == 0
    assert memory(scene.pid) - before < BOUND
    scene.low_watermark.set()
    while client.at < EVENTS:
        await client.read(2000)
    assert memory(scene.pid, peak=True) - before < BOUND


async def test_slow_clients_share_memory_beside_a_fast_one(scene: Scene):
    scene.low_watermark.set()
    before = memory(scene.pid)
    slow = [await scene.client() for _ in range(20)]
    fast = await scene.client()
    for client in slow:
        await client.read(50)
    while fast.at < EVENTS:
        await fast.read(2000)
    assert scene.cursors == 1, "no client was held up, and none has read further yet"
    assert memory(scene.pid, peak=True) - before < BOUND
    for _ in range(4):
        for client in slow:
            assert await client.read(50) > 0
    assert scene.cursors == 2, "clients that fell behind together share a stream"
    assert memory(scene.pid, peak=True) - before < 2 * BOUND

"""A stream without events for an hour causes little load and delivers the next one quickly."""

import asyncio
from contextlib import suppress

import pytest

from embedded.clients import Client
from shard_client.errors import NetworkError
from tests.simulation.driver import DriverCursor
from tests.simulation.world import World, counted_get_mores, visit

HOUR = 3600.0
MOST_LATE = 0.005
"""Virtual seconds for the network, a note and a getMore of one millisecond."""
MOST_GET_MORES = 2.2 * 3
"""Commands a second, on two shards and the config server together."""


class Reader:
    """Reads a stream continuously and records when each document's event arrives."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cursor = DriverCursor(world.router.address, "db", 1, b"q" * 16)
        self._arrived: dict[int, asyncio.Future[float]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._cursor.open({}, [], None)
        self._task = self._world.loop.create_task(self._read())

    async def _read(self) -> None:
        with suppress(NetworkError):
            while self._cursor.cursor_id:
                batch = await self._cursor.more(None, 10_000)
                for event in batch.events:
                    number = event["fullDocument"]["_id"]
                    self._arrived[number].set_result(self._world.loop.time())

    async def latency_of(self, number: int) -> float:
        """Write a document; return the virtual seconds until its event arrives."""
        loop = self._world.loop
        self._arrived[number] = loop.create_future()
        begun = loop.time()
        insert = {"insert": "c", "documents": [{"_id": number}]}
        await self._world.cluster.mongos.run_command("db", insert, Client())
        return await self._arrived[number] - begun

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        self._cursor.vanish()


@pytest.mark.timeout(60)
def test_an_event_after_a_quiet_hour_is_delivered_as_quickly() -> None:
    async def body(world: World) -> None:
        reader = Reader(world)
        await reader.start()
        busy = []
        for number in range(24):
            busy.append(await reader.latency_of(number))
            await asyncio.sleep(0.02)
        del busy[:4]  # the first documents open connections
        asked.clear()
        await asyncio.sleep(HOUR)
        meanwhile = asked.total()
        late = await reader.latency_of(100)
        await reader.stop()
        assert late <= MOST_LATE
        assert late <= max(busy), "a quiet stream is as quick as a busy one"
        assert meanwhile <= MOST_GET_MORES * HOUR

    with counted_get_mores() as asked:
        assert visit(body, noop_interval=10.0) == []

"""What streams cost their members, and how late their events are: dense ones and quiet ones."""

import asyncio
from contextlib import suppress

import pytest

from embedded.client import Client
from shard_client.errors import NetworkError
from tests.simulation.driver import DriverCursor
from tests.simulation.world import World, counted_get_mores, visit

RATE = 200
"""Events a second of a dense stream; every member has some in each round."""
SETTLED, SECONDS = 8, 4
"""Virtual seconds until bursts are spent, and virtual seconds that are measured."""
MOST_LATE = 0.075
"""Virtual seconds from a write to the arrival of its event."""
MOST_LATE_AT_FIRST = 0.125
"""The same while the stream becomes dense, which may cost an event one round more."""
GET_MORES_A_ROUND, ROUNDS_A_SECOND = 2, 20
"""Of each member: one that collects events, and one for its watermark after a note."""


def most_get_mores(seconds: float) -> float:
    """The getMores that may reach a member within a time.

    It may begin and end within a round, so that it touches one round more than fit into it, and
    one getMore may have been sent before it begins.
    """
    return GET_MORES_A_ROUND * (ROUNDS_A_SECOND * seconds + 1) + 1


HOUR = 3600.0
MOST_LATE_WHEN_QUIET = 0.005
"""Virtual seconds for the network, a note and a getMore of one millisecond."""
MOST_GET_MORES_WHEN_QUIET = 2.2 * 3
"""Commands a second, on two shards and the config server together."""


class TimedStream:
    """Writes documents and watches them; ``late`` has the virtual seconds to each one's event."""

    def __init__(self, world: World) -> None:
        self.late: dict[int, float] = {}
        self._world = world
        self._cursor = DriverCursor(world.router.address, "db", 1, b"q" * 16)
        self._written: dict[int, float] = {}

    async def start(self) -> None:
        await self._cursor.open({}, [], None)
        self._task = self._world.loop.create_task(self._read())

    async def _read(self) -> None:
        with suppress(NetworkError):
            while self._cursor.cursor_id:
                batch = await self._cursor.more(None, 10_000)
                now = self._world.loop.time()
                for event in batch.events:
                    number = event["fullDocument"]["_id"]
                    self.late[number] = now - self._written[number]

    async def write(self, number: int) -> None:
        self._written[number] = self._world.loop.time()
        insert = {"insert": "c", "documents": [{"_id": number, "k": number // 2 % 2}]}
        await self._world.cluster.mongos.run_command("db", insert, Client())

    async def all_arrived(self) -> None:
        while len(self.late) < len(self._written):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        self._cursor.vanish()


@pytest.mark.parametrize("sharded", [True, False])
def test_a_dense_stream_reads_its_members_in_rounds(sharded: bool) -> None:
    async def write(stream: TimedStream, numbers: range) -> None:
        for number in numbers:
            await stream.write(number)
            await asyncio.sleep(1 / RATE)

    async def body(world: World) -> None:
        if sharded:  # so that both shards have events
            for command in (
                {"enableSharding": "db", "primaryShard": "shard0"},
                {"shardCollection": "db.c", "key": {"k": 1}},
                {"split": "db.c", "middle": {"k": 1}},
                {"moveChunk": "db.c", "find": {"k": 1}, "to": "shard1"},
            ):
                await world.cluster.mongos.run_command("admin", command, Client())
        stream, settled = TimedStream(world), SETTLED * RATE
        await stream.start()
        await write(stream, range(settled))  # becomes dense on the way
        asked.clear()
        begun = world.loop.time()
        await write(stream, range(settled, settled + SECONDS * RATE))
        took, get_mores = world.loop.time() - begun, dict(asked)
        await stream.all_arrived()
        await stream.stop()
        assert max(stream.late.values()) <= MOST_LATE_AT_FIRST
        assert max(late for number, late in stream.late.items() if number >= settled) <= MOST_LATE
        assert max(get_mores.values()) <= most_get_mores(took)

    with counted_get_mores() as asked:
        assert visit(body, noop_interval=10.0) == []


def test_an_event_after_a_quiet_hour_is_delivered_as_quickly() -> None:
    async def body(world: World) -> None:
        stream = TimedStream(world)
        await stream.start()
        for number in range(24):
            await stream.write(number)
            await stream.all_arrived()
            await asyncio.sleep(0.02)
        asked.clear()
        await asyncio.sleep(HOUR)
        meanwhile = asked.total()
        await stream.write(100)
        await stream.all_arrived()
        await stream.stop()
        busy = max(late for number, late in stream.late.items() if 4 <= number < 24)
        assert stream.late[100] <= MOST_LATE_WHEN_QUIET
        # A hello, of one millisecond, checks a connection that was idle.
        assert stream.late[100] <= busy + 0.0015, "a quiet stream is as quick as a busy one"
        assert meanwhile <= MOST_GET_MORES_WHEN_QUIET * HOUR

    with counted_get_mores() as asked:
        assert visit(body, noop_interval=10.0, chop=0.0) == []

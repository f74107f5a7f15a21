"""A stream with many events costs each member a bounded number of getMores, and none is late."""

import asyncio

import pytest

from embedded.clients import Client
from tests.simulation.driver import DriverCursor
from tests.simulation.world import World, counted_get_mores, visit

RATE = 200
"""Events a second; every member has some in each round."""
SETTLED, SECONDS = 8, 4
"""Virtual seconds until bursts are spent, and virtual seconds that are measured."""
MOST_LATE = 0.075
"""Virtual seconds from a write to the arrival of its event."""
MOST_LATE_AT_FIRST = 0.125
"""The same while the stream becomes dense, which may cost an event one round more."""
MOST_GET_MORES = 2 * 20
"""For each member and second: one that collects events, and one for its watermark after a note."""


async def _write(world: World, first: int, count: int, written: dict[int, float]) -> None:
    for number in range(first, first + count):
        insert = {"insert": "c", "documents": [{"_id": number}]}
        await world.cluster.mongos.run_command("db", insert, Client())
        written[number] = world.loop.time()
        await asyncio.sleep(1 / RATE)


async def _read(world: World, cursor: DriverCursor, arrived: dict[int, float]) -> None:
    while len(arrived) < (SETTLED + SECONDS) * RATE:
        batch = await cursor.more(None, 10_000)
        now = world.loop.time()
        arrived.update((event["fullDocument"]["_id"], now) for event in batch.events)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("sharded", [True, False])
def test_a_dense_stream_reads_its_members_in_rounds(sharded: bool) -> None:
    async def body(world: World) -> None:
        if sharded:
            await _spread(world)
        cursor = DriverCursor(world.router.address, "db", 1, b"d" * 16)
        await cursor.open({}, [], None)
        written: dict[int, float] = {}
        arrived: dict[int, float] = {}
        reading = world.loop.create_task(_read(world, cursor, arrived))
        await _write(world, 0, SETTLED * RATE, written)  # becomes dense on the way
        asked.clear()
        begun = world.loop.time()
        await _write(world, SETTLED * RATE, SECONDS * RATE, written)
        took, get_mores = world.loop.time() - begun, dict(asked)
        await reading
        late = {number: arrived[number] - at for number, at in written.items()}
        assert max(late.values()) <= MOST_LATE_AT_FIRST
        assert max(late[number] for number in range(SETTLED * RATE, len(late))) <= MOST_LATE
        assert max(get_mores.values()) <= MOST_GET_MORES * took
        cursor.vanish()

    with counted_get_mores() as asked:
        assert visit(body, noop_interval=10.0) == []


async def _spread(world: World) -> None:
    """Shard the collection by the hashed ``_id``, so that both shards have events."""
    mongos = world.cluster.mongos
    for command in (
        {"enableSharding": "db"},
        {"shardCollection": "db.c", "key": {"_id": "hashed"}},
    ):
        await mongos.run_command("admin", command, Client())

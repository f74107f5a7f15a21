"""Cursors of clients: their lookups, the places of those that have left, least parameters."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import bson
import pytest
from bson import Timestamp

from router.config.settings import Parameters, settings_of_streams
from router.cursors.registry import CursorRegistry, DepartedClients
from router.parameter import parameters_of
from router.stream.readers.log_reader import Batch
from router.stream_settings import StreamSettings
from shard_client.bson.resume_token import first_key
from shard_client.errors import CommandError
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, read_until, stream
from tests.doubles.scripted_member import event_token, mark_token
from tests.doubles.scripted_mongos import ScriptedMongos, scripted_mongos
from tests.harness.until import PATIENCE, until

LOOKUP = {"fullDocument": "updateLookup", "startAtOperationTime": Timestamp(100, 1)}


@pytest.fixture
async def mongos() -> AsyncIterator[ScriptedMongos]:
    async with scripted_mongos(c=[{"_id": n, "v": n} for n in range(200)]) as running:
        yield running


def lookup(*stages: dict[str, Any], **fields: Any) -> Any:
    return stream(pipeline=[{"$changeStream": LOOKUP}, *stages], **fields)


def shown(batch: Batch) -> list[Any]:
    return [bson.decode(event).get("fullDocument") for event in batch.events]


def update(cluster: ScriptedCluster, *numbers: int) -> None:
    """Write updates of documents, a second each; then all members advance past them."""
    for n in numbers:
        cluster.shards["s0"].update(101 + n, n)
    cluster.noop(102 + numbers[-1])


async def opened(registry: CursorRegistry, *stages: dict[str, Any]) -> Any:
    cursor, first = await registry.open(lookup(*stages), OWNER)
    assert first.events == []
    assert bson.decode(first.pbrt) == {"_data": mark_token(Timestamp(100, 1))}
    return cursor


async def read(cursor: Any, count: int, batch_size: int | None = None) -> list[Batch]:
    """Read batches until ``count`` events have arrived."""
    batches: list[Batch] = []
    while sum(len(batch.events) for batch in batches) < count:
        batches.append(await cursor.next_batch(batch_size, PATIENCE))
        assert batches[-1].events
    return batches


async def test_lookups_wait_until_the_client_reads(
    cluster: ScriptedCluster, mongos: ScriptedMongos
):
    cursor = await opened(cluster.registry(mongos=mongos.upstream.lend))
    waiting = asyncio.create_task(cursor.next_batch(None, PATIENCE))
    update(cluster, 1)
    assert shown(await waiting) == [{"_id": 1, "v": 1}]
    asked = len(mongos.commands)
    update(cluster, 2, 3, 4)
    await until(lambda: cursor._reader.client_reader.prepare())
    mongos.documents["c"] = [{"_id": 2, "v": "new"}]
    assert len(mongos.commands) == asked
    batches = await read(cursor, 3)
    assert [each for batch in batches for each in shown(batch)] == [
        {"_id": 2, "v": "new"},
        None,
        None,
    ]


async def test_a_batch_is_filled_even_if_stages_drop_events(
    cluster: ScriptedCluster, mongos: ScriptedMongos
):
    update(cluster, *range(9))
    mongos.stage = lambda event: event if event["fullDocument"]["v"] % 3 == 0 else None
    cursor = await opened(
        cluster.registry(mongos=mongos.upstream.lend), {"$match": {"fullDocument.v": 0}}
    )
    batch = await cursor.next_batch(2, PATIENCE)
    assert shown(batch) == [{"_id": 0, "v": 0}, {"_id": 3, "v": 3}]
    assert bson.decode(batch.pbrt) == {"_data": event_token(Timestamp(104, 1), 3)}
    assert shown(await cursor.next_batch(2, PATIENCE)) == [{"_id": 6, "v": 6}]


async def test_documents_count_in_the_memory_of_the_process(
    cluster: ScriptedCluster, mongos: ScriptedMongos
):
    """While a reply is on its way, while a rest is kept, and no longer than that."""
    mongos.documents["c"] = [{"_id": n, "x": "a" * 10_000} for n in range(10)]
    mongos.per_batch = 4
    update(cluster, *range(10))
    registry = cluster.registry(mongos=mongos.upstream.lend, reply_bytes=35_000)
    memory = registry.streams.resources.memory
    cursor = await opened(registry)
    await until(lambda: cursor._reader.client_reader.prepare())
    before = memory.held
    mongos.holds_back = "getMore"
    mongos.released.clear()
    reading = asyncio.create_task(cursor.next_batch(None, PATIENCE))
    await until(lambda: len(mongos.commands) == 2)
    assert memory.held - before > 4 * 10_000
    mongos.released.set()
    assert len((await reading).events) == 3
    assert 7 * 10_000 < memory.held - before < 8 * 10_000
    assert len((await cursor.next_batch(None, PATIENCE)).events) == 3
    assert 4 * 10_000 < memory.held - before < 5 * 10_000
    assert memory.lookups == 1
    registry.kill([cursor.cursor_id])
    assert memory.held <= before
    assert memory.lookups == 0


async def test_beyond_the_limit_events_are_completed_one_by_one(
    cluster: ScriptedCluster, mongos: ScriptedMongos
):
    update(cluster, *range(4))
    registry = cluster.registry(mongos=mongos.upstream.lend)
    memory = registry.streams.resources.memory
    cursor = await opened(registry)
    memory.held += memory.limit + 1
    await read(cursor, 4)
    assert mongos.finds() == [{"_id": n} for n in range(4)]


async def test_a_kill_ends_a_lookup(cluster: ScriptedCluster, mongos: ScriptedMongos):
    update(cluster, 1)
    registry = cluster.registry(mongos=mongos.upstream.lend)
    cursor = await opened(registry)
    mongos.released.clear()
    waiting = asyncio.create_task(cursor.next_batch(None, PATIENCE))
    await until(lambda: mongos.commands)
    assert registry.kill([cursor.cursor_id]) == ([cursor.cursor_id], [])
    with pytest.raises(CommandError) as error:
        async with asyncio.timeout(PATIENCE / 2):  # the lookup's own limit is PATIENCE
            await waiting
    assert error.value.code == 237
    mongos.released.set()
    again = await opened(registry)
    assert shown(await again.next_batch(None, PATIENCE)) == [{"_id": 1, "v": 1}]
    first, second = mongos.server.asked
    assert first.writer is not second.writer, "the connection of a lookup that has ended is cut"


async def test_a_cancelled_lookup_keeps_its_event_for_the_next_one(
    cluster: ScriptedCluster, mongos: ScriptedMongos
):
    update(cluster, 1)
    cursor = await opened(cluster.registry(mongos=mongos.upstream.lend))
    mongos.released.clear()
    waiting = asyncio.create_task(cursor.next_batch(None, PATIENCE))
    await until(lambda: mongos.commands)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    mongos.released.set()
    assert shown(await cursor.next_batch(None, PATIENCE)) == [{"_id": 1, "v": 1}]


async def test_a_batch_ends_in_time_though_the_stages_drop_all_of_many_events(
    cluster: ScriptedCluster, mongos: ScriptedMongos
):
    update(cluster, *range(50))
    mongos.stage = lambda _: None
    registry = cluster.registry(mongos=mongos.upstream.lend)
    memory = registry.streams.resources.memory
    cursor = await opened(registry, {"$match": {"fullDocument.v": 0}})
    memory.held += memory.limit + 1  # they are completed one by one
    await until(lambda: cursor._reader.client_reader.prepare())
    before = memory.held
    assert (await cursor.next_batch(None, 0.0)).events == []
    assert len(mongos.finds()) < 50
    assert memory.held <= before


async def test_the_error_without_an_upstream_names_the_remedy(cluster: ScriptedCluster):
    with pytest.raises(CommandError) as error:
        await cluster.registry().open(lookup(), OWNER)
    assert error.value.code == 72
    assert "--upstream" in error.value.message


DAY = 24 * 60 * 60.0


def test_the_earliest_place_not_returned_counts() -> None:
    places = DepartedClients()
    assert places.earliest(0.0) is None
    places.record_left("a", "db.c", first_key(Timestamp(10, 1)), now=0.0)
    places.record_left("b", "db.c", first_key(Timestamp(20, 1)), now=0.0)
    places.record_left("a", "db.c", first_key(Timestamp(30, 1)), now=1.0)  # its other cursor
    assert places.earliest(1.0) == Timestamp(10, 1)
    places.record_back("a", "db.c")
    assert places.earliest(1.0) == Timestamp(20, 1)


def test_a_location_is_forgotten_after_a_day() -> None:
    places = DepartedClients()
    places.record_left("a", "db.c", first_key(Timestamp(10, 1)), now=0.0)
    places.record_left("b", "db.c", first_key(Timestamp(20, 1)), now=DAY / 2)
    assert places.earliest(DAY) == Timestamp(20, 1)
    places.record_left("b", "db.c", first_key(Timestamp(50, 1)), now=2 * DAY)
    assert places.earliest(2 * DAY) == Timestamp(50, 1)


def test_a_thousand_locations_are_remembered() -> None:
    places = DepartedClients()
    for number in range(1001):
        places.record_left(f"10.0.0.{number}", "db.c", first_key(Timestamp(number + 1, 1)), now=0.0)
    assert places.earliest(0.0) == Timestamp(2, 1)


DECLARED = parameters_of(StreamSettings).values()
OF_STREAMS = [each.name for each in DECLARED if not isinstance(each.field.default, str)]


# Time limits so short may pass on a busy machine.
@pytest.mark.parametrize("name", [each for each in OF_STREAMS if not each.endswith("TimeoutMs")])
async def test_a_stream_works_with_each_parameter_at_its_minimum(
    cluster: ScriptedCluster, name: str
):
    bounds = Parameters.model_fields[name].metadata
    least = next((each.ge for each in bounds if hasattr(each, "ge")), False)
    limits = settings_of_streams(Parameters(**{name: least}).model_dump())
    registry = cluster.registry(limits)
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.shards["s0"].insert(105, 1)
    cluster.noop(106)
    with registry.checkout(cursor.cursor_id, OWNER):
        assert await read_until(cursor, 1) == [1]
    for member in cluster.members:
        member.commands.clear()
    if cursor.cursor_id in registry:
        with registry.checkout(cursor.cursor_id, OWNER):
            assert (await cursor.next_batch(None, 0.3)).events == []
    asked = sum(member.commands.total() for member in cluster.members)
    assert asked < 4 * (0.3 / 0.05 + 10), "a quiet stream does not spin"


@pytest.mark.parametrize("name", OF_STREAMS)
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e300"])
def test_a_parameter_out_of_bounds_is_refused(name: str, value: str):
    with pytest.raises(ValueError, match=name):
        Parameters(**{name: value})

"""Merged cursors on a cluster lose no event when shards join."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import bson
import pytest
from pymongo import AsyncMongoClient

from router.catalog.cluster import Cluster
from router.cursors.cursor import MergedCursor
from router.cursors.owner import Owner
from router.cursors.registry import CursorRegistry
from router.request.stream_request import parse_request
from tests.harness.clusters import TestCluster, start_cluster
from tests.harness.until import PATIENCE

OWNER = Owner()


@pytest.fixture(scope="module")
def servers() -> Iterator[TestCluster]:
    with start_cluster(shards=2) as started:
        yield started


@dataclass
class Engine:
    """A cursor registry on the cluster, and a client of its mongos."""

    servers: TestCluster
    registry: CursorRegistry
    client: AsyncMongoClient[dict[str, Any]]

    async def watch(self, database: str, **options: Any) -> MergedCursor:
        command = {"aggregate": 1, "pipeline": [{"$changeStream": options}], "cursor": {}}
        cursor, _ = await self.registry.open(parse_request(database, command), OWNER)
        return cursor


@pytest.fixture
async def engine(servers: TestCluster) -> AsyncIterator[Engine]:
    cluster = Cluster(servers.configdb)
    registry = CursorRegistry(cluster)
    async with AsyncMongoClient(servers.mongos_uri) as client:
        yield Engine(servers, registry, client)
    await registry.close()
    await cluster.close()


async def read(cursor: MergedCursor, count: int) -> list[dict[str, Any]]:
    """Read ``count`` events."""
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE):
        while len(events) < count:
            batch = await cursor.next_batch(count - len(events), 1)
            events += [bson.decode(event) for event in batch.events]
    assert len(events) == count
    return events


async def test_a_stream_from_now_shows_no_earlier_writes(engine: Engine):
    for n in range(5):
        await engine.client["before"].c.insert_one({"_id": n})
        cursor = await engine.watch("before")
        await engine.client["before"].c.insert_one({"_id": -n - 1})
        events = await read(cursor, 1)
        assert events[0]["documentKey"]["_id"] == -n - 1
        cursor.close()


async def test_a_shard_that_joins_under_load_loses_no_event(engine: Engine):
    cursor = await engine.watch("grow")
    stop = asyncio.Event()
    written: list[int] = []

    async def write() -> None:
        number = 0
        while not stop.is_set():
            await engine.client["grow"][f"c{number % 7}"].insert_one({"_id": number})
            written.append(number)
            number += 1

    async def reach(count: int) -> None:
        while len(written) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        first = await read(cursor, 50)
        name, _ = await asyncio.to_thread(engine.servers.add_shard)
        await engine.client.admin.command("enableSharding", "aside", primaryShard=name)
        await engine.client["aside"].c.insert_one({"_id": 0})
        await asyncio.wait_for(reach(len(written) + 50), PATIENCE)
        stop.set()
    rest = await read(cursor, len(written) - len(first))
    assert [event["documentKey"]["_id"] for event in first + rest] == written


async def test_a_joining_shard_is_read_from_its_first_event(engine: Engine):
    command = {"allChangesForCluster": True}
    request = parse_request(
        "admin", {"aggregate": 1, "pipeline": [{"$changeStream": command}], "cursor": {}}
    )
    cursor, _ = await engine.registry.open(request, OWNER)
    name, _ = await asyncio.to_thread(engine.servers.add_shard)
    await engine.client.admin.command("enableSharding", "fresh", primaryShard=name)
    for n in range(10):
        await engine.client["fresh"].c.insert_one({"_id": n})
    found: list[int] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < 10:
            for event in (await cursor.next_batch(None, 1)).events:
                document = bson.decode(event)
                if document["ns"]["db"] == "fresh":
                    found.append(document["documentKey"]["_id"])
    assert found == list(range(10))

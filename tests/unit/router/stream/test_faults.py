"""A seeded sequence of faults: every event arrives exactly once, in order, without leaks."""

import asyncio
import random

import bson
import pytest

from router.cursors.cursor import MergedCursor
from router.cursors.registry import CursorRegistry
from router.request.stream_request import parse_request
from shard_client.errors import RESUMABLE_LABEL, CommandError
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, stream
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import PATIENCE, until

EVENTS = 150


async def storm(cluster: ScriptedCluster, chance: random.Random) -> None:
    """Write numbered events on all shards, with faults in between."""
    members = cluster.members
    second = 101
    for number in range(EVENTS):
        chance.choice(list(cluster.shards.values())).insert(second, number)
        second += chance.choice((1, 1, 2))
        if chance.random() < 0.5:
            for member in chance.sample(members, 2):
                member.noop(second)
            second += 1
        if chance.random() < 0.12:
            fault(chance.choice(members), chance)
        if chance.random() < 0.7:
            await asyncio.sleep(chance.random() * 0.01)
    cluster.noop(second + 1)


def fault(member: ScriptedMember, chance: random.Random) -> None:
    match chance.randrange(5):
        case 0:
            member.cut()
        case 1:
            member.cursors.clear()
        case 2:
            member.fail("getMore", chance.choice((10107, 189, 237, 43, 11602)))
        case 3:
            member.fail("aggregate", 91, times=2)
        case 4:
            member.fail("getMore", 262)
            member.cut()


@pytest.mark.parametrize("seed", range(6))
async def test_every_event_arrives_once_and_in_order(cluster: ScriptedCluster, seed: int):
    chance = random.Random(seed)
    registry = cluster.registry()
    cursor, first = await registry.open(stream(), OWNER)
    found: list[int] = []
    marks = [bson.decode(first.pbrt)["_data"]]
    async with asyncio.timeout(2 * PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(storm(cluster, chance))
        while len(found) < EVENTS:
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() * 0.02)
            batch = await cursor.next_batch(chance.choice((None, 1, 7)), chance.random() * 0.1)
            found += [bson.decode(event)["fullDocument"]["_id"] for event in batch.events]
            marks.append(bson.decode(batch.pbrt)["_data"])
    assert found == list(range(EVENTS))
    assert marks == sorted(marks), "a resume token never goes backwards"
    await registry.close()
    # An opening whose reply was lost leaves an unread cursor, which the shard's timeout ends.
    await until(
        lambda: not [c for member in cluster.members for c in member.cursors.values() if c.read]
    )


@pytest.mark.parametrize("seed", range(4))
async def test_resuming_at_any_token_gives_the_rest(cluster: ScriptedCluster, seed: int):
    """A client loses its router again and again, and resumes as drivers do."""
    chance = random.Random(seed)
    found: list[int] = []
    token: dict[str, str] | None = None
    async with asyncio.timeout(2 * PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(storm(cluster, chance))
        while len(found) < EVENTS:
            registry = cluster.registry()
            cursor = await resume(registry, token)
            for _ in range(chance.randrange(1, 12)):
                try:
                    batch = await cursor.next_batch(chance.choice((None, 5)), 0.05)
                except CommandError as error:
                    if RESUMABLE_LABEL not in error.labels:
                        raise
                    break
                events = [bson.decode(event) for event in batch.events]
                found += [event["fullDocument"]["_id"] for event in events]
                token = bson.decode(batch.pbrt)
                if events and chance.random() < 0.3:
                    token = events[-1]["_id"]
                    break
            await registry.close()
    assert found == list(range(EVENTS))


async def resume(registry: CursorRegistry, token: dict[str, str] | None) -> MergedCursor:
    if token is None:
        cursor, _ = await registry.open(stream(), OWNER)
        return cursor
    command = {"aggregate": 1, "pipeline": [{"$changeStream": {"resumeAfter": token}}]}
    cursor, _ = await registry.open(parse_request("db", {**command, "cursor": {}}), OWNER)
    return cursor

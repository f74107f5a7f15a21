"""Clients of identical streams share remotes, and each starts at its own point of the log."""

import asyncio
from typing import Any

import bson
import pytest
from bson import Timestamp

from router.cursors.cursor import MergedCursor
from shard_client.errors import CommandError
from tests.doubles.scripted_cluster import (
    OWNER,
    REMOTES,
    ScriptedCluster,
    numbers,
    read_until,
    stream,
)
from tests.doubles.scripted_member import invalidate, mark_token
from tests.harness.until import PATIENCE, until
from tests.unit.router.stream.clients import BIG, opened, write


async def test_clients_of_one_stream_share_remotes_and_get_all_events(cluster: ScriptedCluster):
    registry = cluster.registry()
    cursors = await opened(registry, 20)
    assert cluster.open_cursors == REMOTES
    write(cluster, 101, 103, 105)
    for cursor in cursors:
        assert await read_until(cursor, 3) == [101, 103, 105]
    reading = [asyncio.create_task(read_until(cursor, 1)) for cursor in cursors]
    await asyncio.sleep(0)
    write(cluster, 110)
    assert await asyncio.gather(*reading) == [[110]] * 20
    assert cluster.open_cursors == REMOTES
    assert [len(each["cursorIds"]) for each in registry.describe()] == [20]


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        ({"comment": "somebody else's"}, True),
        ({"cursor": {"batchSize": 3}}, True),
        ({"collation": {"locale": "de"}}, False),
        ({"let": {"x": 1}}, False),
        ({"$readPreference": {"mode": "secondaryPreferred"}}, False),
        ({"pipeline": [{"$changeStream": {}}, {"$match": {"a": 1}}]}, False),
        ({"pipeline": [{"$changeStream": {"fullDocument": "whenAvailable"}}]}, False),
        ({"aggregate": "c"}, False),
    ],
)
async def test_only_identical_streams_share(
    cluster: ScriptedCluster, other: dict[str, Any], shared: bool
):
    registry = cluster.registry()
    await registry.open(stream(None), OWNER)
    await registry.open(stream(None, **other), OWNER)
    assert len(registry.describe()) == (1 if shared else 2)


async def test_sharing_can_be_turned_off(cluster: ScriptedCluster):
    registry = cluster.registry(share=False)
    cursors = await opened(registry, 3)
    assert cluster.open_cursors == 3 * REMOTES
    registry.kill([cursors[0].cursor_id], OWNER)
    await until(lambda: cluster.open_cursors == 2 * REMOTES)


async def test_a_client_from_now_gets_no_earlier_events(cluster: ScriptedCluster):
    registry = cluster.registry()
    first, _ = await registry.open(stream(None), OWNER)
    write(cluster, 101, 103)
    second, batch = await registry.open(stream(None), OWNER)
    assert bson.decode(batch.pbrt) == {"_data": mark_token(Timestamp(104, 2))}
    write(cluster, 105)
    assert await read_until(second, 1) == [105]
    assert await read_until(first, 3) == [101, 103, 105]
    assert cluster.open_cursors == REMOTES


async def test_clients_can_resume_and_start_inside_the_log(cluster: ScriptedCluster):
    registry = cluster.registry()
    ahead, _ = await registry.open(stream(), OWNER)
    write(cluster, *range(101, 111))
    assert len(await read_until(ahead, 10)) == 10
    entries = [event for shard in cluster.shards.values() for _, event in shard.entries if event]
    tokens = {event["fullDocument"]["_id"]: event["_id"] for event in entries}
    for start, expected in [
        ({"resumeAfter": tokens[104]}, [*range(105, 111)]),
        ({"startAfter": tokens[109]}, [110]),
        ({"startAtOperationTime": Timestamp(108, 1)}, [108, 109, 110]),
        ({"resumeAfter": {"_data": mark_token(Timestamp(107, 1))}}, [107, 108, 109, 110]),
    ]:
        request = stream(pipeline=[{"$changeStream": start}])
        cursor, batch = await registry.open(request, OWNER)
        assert batch.events == []
        wanted = start.get("resumeAfter") or start.get("startAfter")
        assert bson.decode(batch.pbrt) == (wanted or {"_data": mark_token(Timestamp(108, 1))})
        assert await read_until(cursor, len(expected)) == expected
    request = stream(pipeline=[{"$changeStream": {"resumeAfter": tokens[110]}}])
    cursor, batch = await registry.open(request, OWNER)
    assert bson.decode(batch.pbrt) == tokens[110]
    batch = await cursor.next_batch(None, 0.01)
    assert bson.decode(batch.pbrt) == {"_data": mark_token(Timestamp(111, 1))}
    unknown = tokens[104]["_data"].replace("0000006800000001", "0000006800000002")
    request = stream(pipeline=[{"$changeStream": {"resumeAfter": {"_data": unknown}}}])
    cursor, _ = await registry.open(request, OWNER)
    with pytest.raises(CommandError, match="the resume token was not found") as failure:
        await cursor.next_batch(None, PATIENCE)
    assert failure.value.code == 280
    assert cluster.open_cursors == REMOTES


async def test_clients_that_start_after_an_invalidate_share_a_stream(cluster: ScriptedCluster):
    registry = cluster.registry()
    token = {"_data": invalidate(cluster.shards["s0"], 102)}
    later = {"_data": invalidate(cluster.shards["s1"], 103)}
    write(cluster, 105, 106, 107)
    after = [{"$changeStream": {"startAfter": token}}]
    cursors = await opened(registry, 3, pipeline=after)
    for cursor in cursors:
        assert await read_until(cursor, 3) == [105, 106, 107]
    (latecomer,) = await opened(registry, 1, pipeline=after)
    assert await read_until(latecomer, 3) == [105, 106, 107]
    assert cluster.open_cursors == REMOTES
    # An invalidate that these skipped ends a stream that starts before it.
    (other,) = await opened(registry, 1, 103)
    assert await read_until(other, 1) == [2]
    ended = await other.next_batch(None, PATIENCE)
    assert (ended.closed, bson.decode(ended.pbrt)) == (True, later)
    write(cluster, 120)
    for cursor in (*cursors, latecomer):
        assert await read_until(cursor, 1) == [120]


async def test_random_clients_get_their_own_events(cluster: ScriptedCluster):
    """Twenty clients read at their own paces from a log that keeps a few events."""
    registry = cluster.registry(share_log_bytes=4 * BIG, share_linger=0.01)
    last = 160

    async def client(number: int) -> None:
        start = 100 + 2 * number
        cursor: MergedCursor
        cursor, _ = await registry.open(stream(start), OWNER)
        found: list[int] = []
        async with asyncio.timeout(2 * PATIENCE):
            while not found or found[-1] < last:
                found += numbers(await cursor.next_batch(number % 4 or None, 0.5))
                await asyncio.sleep(0.002 * (number % 5))
                if number % 6 == 1 and len(found) % 7 == 3:
                    registry.kill([cursor.cursor_id], OWNER)
                    again = {"startAtOperationTime": Timestamp(found[-1] + 1, 0)}
                    request = stream(pipeline=[{"$changeStream": again}])
                    cursor, _ = await registry.open(request, OWNER)
        assert found == [*range(max(start, 101), last + 1)]
        registry.kill([cursor.cursor_id], OWNER)

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(client(number))
        for second in range(101, last + 1):
            write(cluster, second, size=BIG // 2)
            await asyncio.sleep(0.003)
    await until(lambda: cluster.open_cursors == 0)

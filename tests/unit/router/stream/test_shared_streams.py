"""Clients of identical streams share remotes, and each starts at its own point of the log."""

import asyncio
from typing import Any

import bson
import pytest
from bson import Timestamp

from router.cursors.registry import CursorRegistry
from router.limits.cursor_admission import NOBODY
from shard_client.errors import RESUMABLE_LABEL, CommandError
from tests.doubles.scripted_cluster import (
    BIG,
    OWNER,
    REMOTES,
    ScriptedCluster,
    numbers,
    read_until,
    stream,
)
from tests.doubles.scripted_member import event_token
from tests.harness.until import PATIENCE, until


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
    assert len(list(registry.describe_streams())) == (1 if shared else 2)


async def test_a_single_slow_client_pauses_the_remotes(cluster: ScriptedCluster):
    registry = cluster.registry(
        remote_buffer_bytes=BIG, stream_buffer_bytes=BIG, batch_target_bytes=BIG // 10
    )
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.insert(*range(101, 1301), size=BIG // 100)
    for _ in range(3):
        assert len((await cursor.next_batch(1, PATIENCE)).events) == 1
        await until(lambda: paused(registry))
        (description,) = registry.describe_streams()
        assert sum(remote["events"] for remote in description["remotes"]) < 800


def paused(registry: CursorRegistry) -> bool:
    """Return whether every shard's remote has paused until a client reads."""
    (description,) = registry.describe_streams()
    shards = [each for each in description["remotes"] if each["target"] != "config"]
    return all(each["state"] == "paused" for each in shards)


async def test_a_client_that_comes_as_a_stream_is_located_shares_it(cluster: ScriptedCluster):
    registry = cluster.registry()
    first = asyncio.create_task(registry.open(stream(), OWNER))
    located = None
    while located is None or not located.done():
        await asyncio.sleep(0)
        named = (each for each in asyncio.all_tasks() if each.get_name() == "locate a stream")
        located = located or next(named, None)
    await registry.open(stream(), OWNER)
    await first
    assert all(len(member.opened) == 1 for member in cluster.members)


@pytest.mark.parametrize(("newest", "joins"), [(1310, True), (9000, False)])
async def test_in_a_backlog_a_client_does_not_join_an_unread_stream_before_its_start(
    cluster: ScriptedCluster, newest: int, joins: bool
):
    registry = cluster.registry(
        remote_buffer_bytes=BIG, stream_buffer_bytes=BIG, batch_target_bytes=BIG // 10,
        share_linger=60.0, share_behind=2000.0,
    )  # fmt: skip
    cluster.insert(*range(101, 1301), size=BIG // 100)
    cluster.noop(newest)
    first, _ = await registry.open(stream(101), OWNER)
    assert numbers(await first.next_batch(1, PATIENCE)) == [101]
    lingering = first.running_stream
    registry.kill([first.cursor_id])
    then, _ = await registry.open(stream(1299), OWNER)
    assert (then.running_stream is lingering) == joins
    assert await read_until(then, 2) == [1299, 1300]
    cluster.insert(newest + 10)
    assert await read_until(then, 1) == [newest + 10]
    assert (then.running_stream is lingering) == joins


async def test_remotes_linger_after_their_last_client(cluster: ScriptedCluster):
    registry = cluster.registry(share_linger=1.5)
    first, _ = await registry.open(stream(), OWNER)
    cluster.insert(101, 103)
    batch = await first.next_batch(1, PATIENCE)
    registry.kill([first.cursor_id])
    resumed = {"resumeAfter": bson.decode(batch.pbrt)}
    again, _ = await registry.open(stream(pipeline=[{"$changeStream": resumed}]), OWNER)
    assert await read_until(again, 1) == [103]
    assert all(len(member.opened) == 1 for member in cluster.members)
    registry.kill([again.cursor_id])
    await until(lambda: cluster.open_cursors == 0)


@pytest.mark.parametrize("away", ["config server", "shards"])
async def test_unreachable_servers_fail_all_openings_in_time(cluster: ScriptedCluster, away: str):
    """One after another, the openings would take twice as long as the test waits."""
    registry = cluster.registry(open_timeout=0.6)
    members = [cluster.config] if away == "config server" else list(cluster.shards.values())
    for member in members:
        await member.stop()
    opening = [registry.open(stream(second), OWNER) for second in range(100, 200)]
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*opening, return_exceptions=True)
    for result in results:
        assert isinstance(result, CommandError)
        assert (result.code, RESUMABLE_LABEL in result.labels) == (133, True)
    await registry.close()
    assert cluster.open_cursors == 0


async def test_closing_fails_pending_openings(cluster: ScriptedCluster):
    registry = cluster.registry(close_timeout=0.5)
    cluster.shards["s1"].hang.add("aggregate")
    opening = [asyncio.create_task(registry.open(stream(), OWNER)) for _ in range(3)]
    await until(lambda: cluster.shards["s1"].commands["aggregate"])
    await registry.close()
    for result in await asyncio.gather(*opening, return_exceptions=True):
        assert isinstance(result, CommandError)
        assert result.labels == {"ResumableChangeStreamError"}


async def test_a_cancelled_opening_does_not_affect_others(cluster: ScriptedCluster):
    registry = cluster.registry(share_linger=0.01)
    first, second = (asyncio.create_task(registry.open(stream(), OWNER)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    cursor, _ = await second
    cluster.insert(101)
    assert await read_until(cursor, 1) == [101]
    for turns in range(0, 80, 3):
        opening = asyncio.create_task(registry.open(stream(None, let={"a": turns}), OWNER))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        (result,) = await asyncio.gather(opening, return_exceptions=True)
        if isinstance(result, tuple):
            registry.kill([result[0].cursor_id])
    await until(lambda: cluster.open_cursors == REMOTES)
    admission = registry.streams.admission
    await until(lambda: (admission._cursors[NOBODY], admission.streams) == (1, 1))


async def test_skipped_events_free_the_budget(cluster: ScriptedCluster):
    """Events up to the token fill the budget and are dropped, so that the next one fits."""
    registry = cluster.registry(
        remote_buffer_bytes=2000, stream_buffer_bytes=4000, batch_target_bytes=500
    )
    time = Timestamp(101, 1)
    for number in range(1, 301):
        cluster.shards["s1"].insert(time, number, fullDocument={"_id": number, "pad": "x" * 40})
    cluster.noop(102)
    options = {"resumeAfter": {"_data": event_token(time, 299)}}
    cursor, _ = await registry.open(stream(pipeline=[{"$changeStream": options}]), OWNER)
    assert await read_until(cursor, 1) == [300]


async def test_a_get_more_that_fails_during_the_opening_fails_it(cluster: ScriptedCluster):
    registry = cluster.registry(open_timeout=2 * PATIENCE, close_timeout=0.5)
    cluster.shards["s0"].hang.add("aggregate")
    cluster.shards["s2"].fail("getMore", 286, "resume point lost")
    async with asyncio.timeout(PATIENCE):
        cursor, first = await registry.open(stream(), OWNER)
        assert not first.closed
        assert first.events == []
        with pytest.raises(CommandError) as failure:
            await cursor.next_batch(None, PATIENCE)
    assert failure.value.code == 286
    assert failure.value.message.startswith("Error on remote shard 127.0.0.1:")

"""Clients of identical streams share remotes, without a visible difference."""

import asyncio
from typing import Any

import bson
import pytest
from bson import Timestamp

from router.cursors.merged_cursor import MergedCursor
from router.cursors.registry import CursorRegistry
from shard_client.errors import CommandError
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, numbers, read_until, stream
from tests.doubles.scripted_member import mark_token
from tests.harness.until import PATIENCE, until
from tests.unit.router.cursors.test_registry import invalidate

REMOTES = 4
"""Three shards and the config server."""

BIG = 70_000
"""The size of an event that fills one block of the log."""


async def opened(registry: CursorRegistry, count: int, *start: Any, **more: Any) -> list[Any]:
    """Open the same stream ``count`` times concurrently."""
    opening = [registry.open(stream(*start, **more), OWNER) for _ in range(count)]
    return [cursor for cursor, _ in await asyncio.gather(*opening)]


def write(cluster: ScriptedCluster, *seconds: int, size: int = 0) -> None:
    """Write one event a second, on the shards in turn; then all members advance past it."""
    for second in seconds:
        shard = cluster.shards[f"s{second % 3}"]
        shard.insert(second, second, filler="x" * size)
        cluster.noop(second + 1)


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
    assert [len(each.cursor_ids) for each in registry.describe()] == [20]


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


async def test_a_client_before_the_log_reads_alone_until_it_catches_up(
    cluster: ScriptedCluster,
):
    registry = cluster.registry(share_linger=0.01)
    write(cluster, *range(101, 111))
    ahead, _ = await registry.open(stream(106), OWNER)
    assert len(await read_until(ahead, 5)) == 5
    behind, _ = await registry.open(stream(101), OWNER)
    assert cluster.open_cursors == 2 * REMOTES
    assert await read_until(behind, 10) == [*range(101, 111)]
    await behind.next_batch(None, 0.01)
    await until(lambda: cluster.open_cursors == REMOTES)
    write(cluster, 120)
    assert await read_until(ahead, 1) == await read_until(behind, 1) == [120]


async def test_a_slow_client_delays_no_other_and_loses_no_events(cluster: ScriptedCluster):
    registry = cluster.registry(share_log_bytes=3 * BIG, share_linger=0.01)
    slow, fast = await opened(registry, 2)
    for second in range(101, 131):
        write(cluster, second, size=BIG)
        assert await read_until(fast, 1) == [second]
        assert cluster.open_cursors == REMOTES
    found: list[int] = []
    while len(found) < 30:
        found += numbers(await slow.next_batch(4, PATIENCE))
        assert cluster.open_cursors <= 2 * REMOTES
    assert found == [*range(101, 131)]
    await slow.next_batch(None, 0.01)
    await until(lambda: cluster.open_cursors == REMOTES)
    write(cluster, 140)
    assert await read_until(slow, 1) == await read_until(fast, 1) == [140]


async def test_a_client_that_never_waits_gets_all_events(cluster: ScriptedCluster):
    registry = cluster.registry(share_log_bytes=2 * BIG)
    impatient, fast = await opened(registry, 2)
    write(cluster, *range(101, 111), size=BIG)
    assert len(await read_until(fast, 10)) == 10
    found: list[int] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < 10:
            found += numbers(await impatient.next_batch(None, 0))
            await asyncio.sleep(0.001)
    assert found == [*range(101, 111)]


async def test_a_single_slow_client_pauses_the_remotes(
    cluster: ScriptedCluster,
):
    registry = cluster.registry(
        remote_buffer_bytes=BIG, stream_buffer_bytes=BIG, batch_target_bytes=BIG // 10
    )
    cursor, _ = await registry.open(stream(), OWNER)
    write(cluster, *range(101, 1301), size=BIG // 100)
    for _ in range(3):
        assert len((await cursor.next_batch(1, PATIENCE)).events) == 1
        await until(lambda: paused(registry))
        (description,) = registry.describe()
        assert sum(remote.events for remote in description.remotes) < 800


def paused(registry: CursorRegistry) -> bool:
    """Return whether every shard's remote has paused until a client reads."""
    (description,) = registry.describe()
    shards = [remote for remote in description.remotes if remote.target != "config"]
    return all(remote.state == "paused" for remote in shards)


async def test_a_client_far_behind_does_not_delay_new_clients(
    cluster: ScriptedCluster,
):
    registry = cluster.registry(
        remote_buffer_bytes=BIG, stream_buffer_bytes=BIG, batch_target_bytes=BIG // 10
    )
    old, _ = await registry.open(stream(), OWNER)
    write(cluster, *range(101, 1301), size=BIG // 100)
    found = numbers(await old.next_batch(1, PATIENCE))
    await until(lambda: paused(registry))
    new, _ = await registry.open(stream(None), OWNER)
    assert len(registry.describe()) == 2
    write(cluster, 1310)
    assert await read_until(new, 1) == [1310]
    while found[-1] != 1310:
        found += numbers(await old.next_batch(None, PATIENCE))
    assert found == [*range(101, 1301), 1310]
    await old.next_batch(None, 0.01)
    assert len(registry.describe()) == 1


async def test_killing_a_cursor_does_not_affect_other_clients(cluster: ScriptedCluster):
    registry = cluster.registry(share_linger=0.02)
    first, second, third = await opened(registry, 3)
    waiting = [asyncio.create_task(each.next_batch(None, PATIENCE)) for each in (first, second)]
    await asyncio.sleep(0)
    registry.kill([first.cursor_id], OWNER)
    with pytest.raises(CommandError, match="interrupted"):
        await waiting[0]
    write(cluster, 101)
    assert numbers(await waiting[1]) == await read_until(third, 1) == [101]
    registry.kill([second.cursor_id, third.cursor_id], OWNER)
    await until(lambda: cluster.open_cursors == 0)


async def test_remotes_linger_after_their_last_client(cluster: ScriptedCluster):
    registry = cluster.registry(share_linger=1.5)
    first, _ = await registry.open(stream(), OWNER)
    write(cluster, 101, 103)
    batch = await first.next_batch(1, PATIENCE)
    registry.kill([first.cursor_id], OWNER)
    resumed = {"resumeAfter": bson.decode(batch.pbrt)}
    again, _ = await registry.open(stream(pipeline=[{"$changeStream": resumed}]), OWNER)
    assert await read_until(again, 1) == [103]
    assert all(len(member.opened) == 1 for member in cluster.members)
    registry.kill([again.cursor_id], OWNER)
    await until(lambda: cluster.open_cursors == 0)


async def test_nothing_is_read_ahead_for_clients_that_have_left(cluster: ScriptedCluster):
    registry = cluster.registry(share_linger=60.0, await_quiet=0.02)
    cursor, _ = await registry.open(stream(), OWNER)
    write(cluster, 101)
    assert await read_until(cursor, 1) == [101]
    shared = cursor.shared
    assert shared is not None
    remotes = shared.runner._remotes.values()
    registry.kill([cursor.cursor_id], OWNER)
    await until(lambda: all(each.cursor is not None and each.cursor.paused for each in remotes))
    write(cluster, 103)
    again, _ = await registry.open(stream(102), OWNER)
    assert again.shared is shared
    assert await read_until(again, 1) == [103]


@pytest.mark.parametrize(("newest", "joins"), [(1310, True), (9000, False)])
async def test_in_a_backlog_no_client_joins_a_stream_before_its_start_that_nobody_reads(
    cluster: ScriptedCluster, newest: int, joins: bool
):
    registry = cluster.registry(
        remote_buffer_bytes=BIG, stream_buffer_bytes=BIG, batch_target_bytes=BIG // 10,
        share_linger=60.0, share_behind=2000.0,
    )  # fmt: skip
    write(cluster, *range(101, 1301), size=BIG // 100)
    cluster.noop(newest)
    first, _ = await registry.open(stream(101), OWNER)
    assert numbers(await first.next_batch(1, PATIENCE)) == [101]
    lingering = first.shared
    registry.kill([first.cursor_id], OWNER)
    then, _ = await registry.open(stream(1299), OWNER)
    assert (then.shared is lingering) == joins
    assert await read_until(then, 2) == [1299, 1300]
    write(cluster, newest + 10)
    assert await read_until(then, 1) == [newest + 10]
    assert (then.shared is lingering) == joins


async def test_an_error_reaches_every_client_after_earlier_events(cluster: ScriptedCluster):
    registry = cluster.registry()
    cursors = await opened(registry, 3)
    waiting = asyncio.create_task(cursors[0].next_batch(None, PATIENCE))
    await asyncio.sleep(0)
    write(cluster, 101)
    assert numbers(await waiting) == [101]
    cluster.shards["s2"].fail("getMore", 286, "resume point lost")
    with pytest.raises(CommandError, match="resume point lost"):
        await cursors[0].next_batch(None, PATIENCE)
    for cursor in cursors[1:]:
        assert await read_until(cursor, 1) == [101]
        with pytest.raises(CommandError, match="resume point lost") as failure:
            await cursor.next_batch(None, PATIENCE)
        assert failure.value.labels == {"NonResumableChangeStreamError"}
    assert await read_until((await registry.open(stream(), OWNER))[0], 1) == [101]


async def test_an_invalidate_ends_the_stream_when_a_client_reaches_it(
    cluster: ScriptedCluster,
):
    registry = cluster.registry(share_linger=0.01)
    first, second = await opened(registry, 2)
    write(cluster, 101)
    token = {"_data": invalidate(cluster.shards["s1"], 103)}
    cluster.shards["s0"].insert(105, 105)
    cluster.noop(110)
    assert await read_until(first, 2) == [101, 2]
    ended = await first.next_batch(None, PATIENCE)
    assert (ended.closed, bson.decode(ended.pbrt)) == (True, token)
    # Clients before the invalidate continue to read; later openings get a new stream.
    third, _ = await registry.open(stream(104), OWNER)
    assert await read_until(third, 1) == [105]
    assert numbers(await second.next_batch(1, PATIENCE)) == [101]
    assert numbers(await second.next_batch(1, PATIENCE)) == [2]
    assert (await second.next_batch(1, PATIENCE)).closed


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


async def test_a_refusal_fails_all_concurrent_openings(cluster: ScriptedCluster):
    registry = cluster.registry()
    cluster.shards["s1"].fail("aggregate", 40324, "Unrecognized pipeline stage name: '$nope'")
    opening = [registry.open(stream(), OWNER) for _ in range(3)]
    for result in await asyncio.gather(*opening, return_exceptions=True):
        assert isinstance(result, CommandError)
        assert result.code == 40324
    await registry.open(stream(), OWNER)


async def test_an_unreachable_config_server_fails_all_openings_in_time(
    cluster: ScriptedCluster,
):
    """One after another, the openings would take twice as long as the test waits."""
    registry = cluster.registry(open_timeout=0.6)
    await cluster.config.stop()
    opening = [registry.open(stream(second), OWNER) for second in range(100, 200)]
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*opening, return_exceptions=True)
    assert all(isinstance(result, CommandError) for result in results)


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
    write(cluster, 101)
    assert await read_until(cursor, 1) == [101]
    for turns in range(0, 80, 3):
        opening = asyncio.create_task(registry.open(stream(None, let={"a": turns}), OWNER))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        (result,) = await asyncio.gather(opening, return_exceptions=True)
        if isinstance(result, tuple):
            registry.kill([result[0].cursor_id], OWNER)
    await until(lambda: cluster.open_cursors == REMOTES)


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

"""Filters that the router evaluates: streams that differ only in their filter share remotes."""

import asyncio
from random import Random
from typing import Any

import bson
import pytest
from bson import Timestamp

from router.filters.index import FilterIndex
from router.request.stream_request import StreamRequest, parse_request
from router.stream.client_reader import ClientReader
from shard_client.errors import RESUMABLE_LABEL, CommandError
from tests.doubles.scripted_cluster import (
    OWNER,
    REMOTES,
    ScriptedCluster,
    is_tenant,
    numbers,
    read_nothing_until,
    read_through_move,
    read_until,
    read_until_shared,
)
from tests.doubles.scripted_member import invalidate
from tests.filters.chance import document
from tests.harness.until import PATIENCE, until
from tests.unit.router.stream.clients import fail_remote
from tests.unit.router.stream.narrow_clients import explained_by
from tests.unit.router.stream.tenants import matching, opened, tenant, write


@pytest.fixture
def cluster(cluster: ScriptedCluster) -> ScriptedCluster:
    """The scripted cluster, whose shards evaluate the tenants' filters."""
    for shard in cluster.shards.values():
        shard.matches = is_tenant
    return cluster


async def test_tenants_share_remotes_and_each_gets_its_own(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_filters="always")
    cursors = await opened(registry, *range(20))
    assert cluster.open_cursors == REMOTES
    for second in range(101, 161, 2):
        write(cluster, second, of=second % 20)
    for number, cursor in enumerate(cursors):
        own = [second for second in range(101, 161, 2) if second % 20 == number]
        if own:
            assert await read_until(cursor, len(own)) == own
    (description,) = registry.describe()
    filtered = description["filtered"]
    assert (filtered["filters"], filtered["matches"]) == (20, 30)


async def test_an_event_wakes_only_its_own_readers(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_filters="always")
    first, second = await opened(registry, 1, 2)
    waiting = asyncio.create_task(first.next_batch(None, PATIENCE))
    reading = asyncio.create_task(read_until(second, 1))
    await asyncio.sleep(0)
    write(cluster, 101, of=2)
    assert await reading == [101]
    assert not waiting.done()
    write(cluster, 103, of=1)
    assert numbers(await waiting) == [103]


async def test_the_high_water_mark_advances_without_matches(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_filters="always")
    (cursor,) = await opened(registry, 1)
    for second in (101, 103, 105):
        write(cluster, second, of=2)
    place = bson.encode({"_data": ""})

    async def moved() -> bool:
        nonlocal place
        batch = await cursor.next_batch(None, 0.01)
        assert batch.events == []
        place = batch.pbrt
        return bson.decode(place)["_data"][:10] == f"82{106:08X}"

    async with asyncio.timeout(PATIENCE):
        while not await moved():
            pass
    write(cluster, 107, of=1)
    resumed, _ = await registry.open(tenant(1, {"resumeAfter": bson.decode(place)}), OWNER)
    assert await read_until(resumed, 1) == [107]


async def test_a_token_between_batches_is_never_of_an_event_left_out(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(share_filters="always")
    whole, _ = await registry.open(
        parse_request("db", {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}}),
        OWNER,
    )
    (cursor,) = await opened(registry, 1, start={})
    tokens = set()
    for second in range(101, 131):
        write(cluster, second, of=2)
        batch = await cursor.next_batch(None, 0.005)
        assert batch.events == []
        tokens.add(bson.decode(batch.pbrt)["_data"])
    assert all(token.endswith("2B0229296E04") for token in tokens), tokens
    whole.close()


async def test_few_filters_stay_on_the_shards_and_many_move_over(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(share_filters_from=3, share_filters_hold=0.0, share_linger=0.0)
    cursors = await opened(registry, 0, 1)
    assert cluster.open_cursors == 2 * REMOTES
    assert "filtered" not in registry.describe()[0]
    cursors += await opened(registry, 2)
    for second in range(101, 107):
        write(cluster, second, of=second % 3)
    got = await read_until_shared(cluster, cursors, 2)
    assert got == [[102, 105], [103, 106], [101, 104]]
    # With a single one left, its filter goes back to the shards.
    for cursor in cursors[1:]:
        registry.kill([cursor.cursor_id], OWNER)

    def on_shards() -> bool:
        return registry.describe() != [] and "filtered" not in registry.describe()[0]

    await read_nothing_until(cursors[0], on_shards)
    write(cluster, 111, of=0)
    assert await read_until(cursors[0], 1) == [111]
    await until(lambda: cluster.open_cursors == REMOTES)


@pytest.mark.parametrize(
    ("mode", "comment", "streams"),
    [
        ("never", None, 2),
        ("always", None, 1),
        ("never", "reporting; shareFilters=always", 2),
        ("never", {"shareFilters": "auto"}, 2),
        ("auto", "reporting; shareFilters=always", 1),
        ("always", {"shareFilters": "never"}, 2),
        ("always", {"shareFilters": "perhaps"}, 1),
    ],
)
async def test_the_mode_is_a_parameter_or_in_the_comment(
    cluster: ScriptedCluster, mode: str, comment: Any, streams: int
) -> None:
    registry = cluster.registry(share_filters=mode)
    more = {} if comment is None else {"comment": comment}
    await opened(registry, 1, 2, **more)
    assert cluster.open_cursors == streams * REMOTES
    explained = explained_by(registry, tenant(1, **more))["filter"]
    assert explained["evaluatedBy"] == ("router" if streams == 1 else "shards")


async def test_the_conditions_tried_on_every_event_are_bounded(cluster: ScriptedCluster) -> None:
    """Filters that together have more than 200 of them are not shared, identical ones are."""

    def ranges(count: int, least: int) -> StreamRequest:
        return matching({f"fullDocument.f{n}": {"$gte": least} for n in range(count)})

    def evaluated_by(request: StreamRequest) -> str:
        return str(explained_by(registry, request)["filter"]["evaluatedBy"])

    registry = cluster.registry(share_filters="always", share_linger=0.0)
    first, _ = await registry.open(ranges(100, 1), OWNER)
    await registry.open(ranges(60, 2), OWNER)
    assert evaluated_by(ranges(40, 3)) == "router"
    assert evaluated_by(ranges(41, 3)) == "shards"
    assert evaluated_by(ranges(101, 3)) == "shards"
    assert evaluated_by(ranges(100, 1)) == "router"
    assert evaluated_by(tenant(1)) == "router"
    reason = explained_by(registry, ranges(41, 3))["filter"]["reason"]
    assert "160 conditions" in reason
    assert "200" in reason
    again, _ = await registry.open(ranges(100, 1), OWNER)
    registry.kill([first.cursor_id], OWNER)
    assert evaluated_by(ranges(41, 3)) == "shards"
    registry.kill([again.cursor_id], OWNER)
    await until(lambda: evaluated_by(ranges(41, 3)) == "router")


async def test_null_follows_the_servers_version(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_filters="always")
    request = matching({"fullDocument.a": None})
    await registry.open(request, OWNER)
    undefined = document(b"\x03fullDocument\0" + document(b"\x06a\0"))
    for version, met in ((17, True), (24, True), (25, False)):
        for target in cluster.clusters[0]._wire_versions:
            cluster.clusters[0]._wire_versions[target] = version
        (source,) = registry._streams.policy.candidates(request).filters.sources
        assert source.filter is not None
        index: FilterIndex[int] = FilterIndex()
        index.add(0, source.filter)
        assert bool(index.route([undefined])) is met


async def test_a_slow_reader_delays_no_other_and_loses_nothing(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(
        share_filters="always", share_filter_bytes=0, share_log_bytes=0, share_alone_bytes=0
    )
    slow, fast = await opened(registry, 1, 2)
    expected = []
    for second in range(101, 121, 2):
        write(cluster, second, of=1, size=70_000)
        expected.append(second)
        write(cluster, second + 1, of=2)
        assert await read_until(fast, 1) == [second + 1]
    assert slow._client_reader.log_reader.lost, "its share of the memory is exceeded"
    assert await read_until(slow, 10) == expected


async def test_an_error_in_another_event_moves_a_filter_to_the_shards(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(share_filters="always")
    (cursor,) = await opened(registry, 1)
    write(cluster, 101, of=1)
    assert await read_until(cursor, 1) == [101]
    too_large = CommandError(10334, "BSONObj size is invalid")
    fail_remote(cursor, too_large)
    write(cluster, 103, of=1)
    assert await read_through_move(cursor, 1) == [103]
    assert "filtered" not in registry.describe()[0]
    # Further filters are evaluated by the shards too, for a while.
    await opened(registry, 2)
    assert ["filtered" in each for each in registry.describe()] == [False, False]
    explained = explained_by(registry, tenant(2))["filter"]
    assert explained["evaluatedBy"] == "shards"
    assert explained["reason"].startswith("the shared stream failed and is not read for")


async def test_invalidates_end_filtered_streams(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(share_filters="always")
    (cursor,) = await opened(registry, 1)
    write(cluster, 101, of=1)
    invalidate(cluster.shards["s1"], 103)
    cluster.noop(105)
    assert await read_until(cursor, 1) == [101]
    async with asyncio.timeout(PATIENCE):
        while not (batch := await cursor.next_batch(None, PATIENCE)).closed:
            assert batch.events == []


async def test_random_readers_get_the_events_of_their_filters(cluster: ScriptedCluster) -> None:
    random = Random(7)
    registry = cluster.registry(share_filters="always", share_log_bytes=300_000)
    written: dict[int, int] = {}
    results: list[tuple[int, list[int]]] = []

    async def client(number: int) -> None:
        wanted = number % 4
        request = tenant(wanted)
        got: list[int] = []
        for _ in range(4):
            cursor, _ = await registry.open(request, OWNER)
            for _ in range(random.randrange(1, 6)):
                batch = await cursor.next_batch(random.choice((None, 1, 3)), 0.02)
                got += numbers(batch)
                request = tenant(wanted, {"resumeAfter": bson.decode(batch.pbrt)})
            registry.kill([cursor.cursor_id], OWNER)
        cursor, _ = await registry.open(request, OWNER)
        async with asyncio.timeout(PATIENCE):
            while 600 not in got:
                got += numbers(await cursor.next_batch(None, 0.05))
        results.append((wanted, got))

    clients = [asyncio.create_task(client(number)) for number in range(12)]
    for second in range(101, 401):
        written[second] = random.randrange(6)
        write(cluster, second, of=written[second], size=random.choice((0, 0, 5000)))
        if random.random() < 0.2:
            await asyncio.sleep(0.002)
    for wanted in range(4):
        contents = {"_id": 600, "tenant": wanted}
        cluster.shards["s0"].insert(Timestamp(600, wanted + 1), 600, fullDocument=contents)
    cluster.noop(601)
    await asyncio.gather(*clients)
    for wanted, got in results:
        assert got == [s for s, of in written.items() if of == wanted] + [600]


@pytest.mark.parametrize("at_opening", [True, False])
async def test_a_shared_stream_that_cannot_be_opened_leaves_a_client_on_its_own(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, at_opening: bool
) -> None:
    registry = cluster.registry(share_filters_from=2, share_linger=0.0)
    open_streams = registry._streams
    enter, refused = open_streams.find_or_open, []

    async def refuse(request: StreamRequest, *args: Any) -> Any:
        if not request.stages:
            refused.append(request)
            raise CommandError(133, "no answer from s1", labels=(RESUMABLE_LABEL,))
        return await enter(request, *args)

    monkeypatch.setattr(open_streams, "find_or_open", refuse)
    # The second one begins the sharing: at its opening, and by a move of the first one.
    cursors = await opened(registry, 1, 2)
    read = cursors[at_opening]
    async with asyncio.timeout(PATIENCE):
        while not refused:
            assert (await read.next_batch(None, 0.01)).events == []
    for second in (101, 103):
        write(cluster, second, of=1 + at_opening)
    assert await read_through_move(read, 2) == [101, 103]
    assert len(refused) == 1, "it is not tried again for a while"


async def test_a_shard_s_outage_does_not_keep_clients_from_sharing(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(share_filters="always", open_timeout=0.3)
    port = cluster.shards["s1"].port
    await cluster.shards["s1"].stop()
    with pytest.raises(CommandError) as outage:
        await registry.open(tenant(1, {}), OWNER)
    assert RESUMABLE_LABEL in outage.value.labels
    await cluster.shards["s1"].start(port)
    assert explained_by(registry, tenant(1, {}))["filter"]["reason"] == "shareFilters is always"
    cursor, _ = await registry.open(tenant(1, {}), OWNER)
    assert cursor.running_stream is not None
    assert "filtered" in cursor.running_stream.describe(())


async def test_an_unexpected_error_of_a_move_ends_the_cursor(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = cluster.registry(share_filters="always")
    (cursor,) = await opened(registry, 1)

    async def fail(*args: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(ClientReader, "_migrate", fail)
    too_large = CommandError(10334, "BSONObj size is invalid")
    fail_remote(cursor, too_large)
    with pytest.raises(CommandError) as caught:
        await read_through_move(cursor, 1)
    assert RESUMABLE_LABEL in caught.value.labels
    assert cursor.finished

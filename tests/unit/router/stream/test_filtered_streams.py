"""Filters that the router evaluates: streams that differ only in their filter share remotes."""

import asyncio
from typing import Any

import bson
import pytest

from router.cursors.cursor import MergedCursor
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


async def read_on(cursors: list[MergedCursor], times: int) -> None:
    for _ in range(times):
        for cursor in cursors:
            assert (await cursor.next_batch(None, 0.01)).events == []


async def test_readers_stay_on_the_shared_stream_if_the_limit_of_streams_is_reached(
    cluster: ScriptedCluster,
) -> None:
    registry = cluster.registry(
        share_filters_from=3, share_filters_hold=60.0, share_linger=0.0, max_streams=4
    )
    cursors = await opened(registry, *range(8))
    for second in range(101, 109):
        write(cluster, second, of=second - 101)
    assert await read_until_shared(cluster, cursors, 1) == [[n] for n in range(101, 109)]
    # The planner finds own streams cheaper from now on; nothing is wrong with the shared one.
    write(cluster, 110, of=99, size=1 << 24)
    await read_on(cursors, 20)
    for second in range(111, 119):
        write(cluster, second, of=second - 111)
    got = [await read_through_move(cursor, 1) for cursor in cursors]
    assert got == [[n] for n in range(111, 119)]

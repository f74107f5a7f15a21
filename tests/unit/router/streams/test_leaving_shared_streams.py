"""Readers that leave a shared stream which has not failed: what follows for them and for others."""

import asyncio

import pytest

from router.change_stream.fan_out import FanOut
from router.cursors.merged_cursor import MergedCursor
from tests.doubles.scripted_cluster import (
    OWNER,
    ScriptedCluster,
    is_tenant,
    read_through_move,
    read_until,
    read_until_shared,
    stream,
)
from tests.unit.router.streams.test_filtered_streams import opened, tenant, write


@pytest.fixture
def cluster(cluster: ScriptedCluster) -> ScriptedCluster:
    """The scripted cluster, whose shards evaluate the tenants' filters."""
    for shard in cluster.shards.values():
        shard.matches = is_tenant
    return cluster


async def test_new_filters_are_shared_after_one_was_too_slow(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = cluster.registry(share_filters="always", share_log_bytes=0, share_alone_bytes=0)
    (slow,) = await opened(registry, 1)
    plain, _ = await registry.open(stream(start=101), OWNER)
    seconds = range(101, 113)
    with monkeypatch.context() as patch:
        patch.setattr(FanOut, "step", lambda *_: None)  # other views have all the time
        for second in seconds:
            write(cluster, second, of=second % 2, size=70_000)
            assert await read_until(plain, 1) == [second]
            await asyncio.sleep(0)
    odd = [each for each in seconds if each % 2]
    assert await read_through_move(slow, len(odd)) == odd
    explained = registry._streams.explain(tenant(2))["filter"]
    assert explained["evaluatedBy"] == "router", explained["reason"]


async def read_on(cursors: list[MergedCursor], times: int) -> None:
    for _ in range(times):
        for cursor in cursors:
            assert (await cursor.next_batch(None, 0.01)).events == []


async def test_readers_beyond_the_limit_of_streams_stay_where_they_can_be_served(
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

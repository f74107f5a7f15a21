"""A reader that would rather read its own stream stays on the shared one if it may not have one."""

import pytest

from router.cursors.merged_cursor import MergedCursor
from tests.doubles.scripted_cluster import (
    ScriptedCluster,
    is_tenant,
    read_through_move,
    read_until_shared,
)
from tests.unit.router.streams.test_filtered_streams import opened, write


@pytest.fixture
def cluster(cluster: ScriptedCluster) -> ScriptedCluster:
    """The scripted cluster, whose shards evaluate the tenants' filters."""
    for shard in cluster.shards.values():
        shard.matches = is_tenant
    return cluster


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

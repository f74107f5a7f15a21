"""Readers that leave a shared stream which has not failed: what follows for them and for others."""

import asyncio

import pytest
from structlog.testing import capture_logs

from router.cursors.cursor import MergedCursor
from router.stream.fan_out import FanOut
from tests.doubles.scripted_cluster import (
    OWNER,
    ScriptedCluster,
    is_tenant,
    read_nothing_until,
    read_through_move,
    read_until,
    read_until_shared,
    stream,
)
from tests.unit.router.stream.narrow_clients import explained_by
from tests.unit.router.stream.tenants import opened, tenant, write


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
    explained = explained_by(registry, tenant(2))["filter"]
    assert explained["evaluatedBy"] == "router", explained["reason"]


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


async def test_a_move_waits_for_the_config_server(cluster: ScriptedCluster) -> None:
    registry = cluster.registry(
        share_filters_from=4, share_filters_hold=0.0, share_linger=0.0, open_timeout=0.2
    )
    cursors = await opened(registry, *range(4))
    for number in range(4):
        write(cluster, 101 + number, of=number)
    assert await read_until_shared(cluster, cursors, 1) == [[101], [102], [103], [104]]
    port = cluster.config.port
    await cluster.config.stop()
    first, *others = cursors
    for cursor in others:
        cursor.close()  # which ends the sharing
    with capture_logs() as logs:
        await read_nothing_until(
            first, lambda: "a client waits for the shard list" in [each["event"] for each in logs]
        )
    await cluster.config.start(port)
    write(cluster, 111, of=0)
    assert await read_through_move(first, 1) == [111]
    assert registry.moves == (3, 1)

"""Filters that an unfiltered reader has overtaken: the stream that they share has not failed."""

import asyncio

import pytest

from router.change_stream.fan_out import FanOut
from tests.doubles.scripted_cluster import (
    OWNER,
    ScriptedCluster,
    is_tenant,
    read_through_move,
    read_until,
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

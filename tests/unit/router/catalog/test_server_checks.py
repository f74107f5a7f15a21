"""Checks of the replica sets do not delay requests for their results."""

import asyncio
from typing import cast

from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.catalog.server_checks import ServerChecks
from shard_client.errors import CommandError
from tests.doubles.fake_clusters import AnsweringCluster
from tests.harness.until import PATIENCE


async def test_a_hanging_shard_does_not_delay_the_results() -> None:
    cluster = AnsweringCluster()
    checks = ServerChecks(cast(Cluster, cluster), keep=0.0)
    try:
        async with asyncio.timeout(PATIENCE):
            assert not await checks.results(timeout=0.0)
            cluster.answering.set()
            found = await checks.results(timeout=None)
            assert [each.target for each in found] == ["config", "a"]
            assert all(each.answers and each.complete for each in found)
            cluster.answering.clear()
            assert (await checks.results(timeout=0.0)) == found
    finally:
        await checks.close()


async def test_the_oldest_entry_is_found_and_a_missing_config_server_named() -> None:
    cluster = AnsweringCluster()
    cluster.answering.set()
    cluster.entry = {"ts": Timestamp(100, 1)}
    cluster.failure = CommandError(133, "no primary")
    checks = ServerChecks(cast(Cluster, cluster))
    try:
        found = {each.target: each for each in await checks.results(timeout=None)}
    finally:
        await checks.close()
    assert found["a"].oldest == Timestamp(100, 1)
    assert not found["a"].complete
    assert not found["config"].answers
    assert "no primary" in str(found["config"].problem)

"""Checks of the replica sets do not delay requests for their results."""

import asyncio
from typing import cast

from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.catalog.replica_set_checks import ReplicaSetChecks
from shard_client.errors import CommandError
from tests.doubles.fake_clusters import AnsweringCluster
from tests.harness.until import PATIENCE


async def test_a_hanging_shard_does_not_delay_the_results() -> None:
    cluster = AnsweringCluster()
    checks = ReplicaSetChecks(cast(Cluster, cluster), keep=0.0)
    try:
        async with asyncio.timeout(PATIENCE):
            assert await checks.results(patience=0.0) == {}
            cluster.answering.set()
            found = await checks.results(patience=None)
            assert found["a"].answers
            assert found["a"].complete
            cluster.answering.clear()
            assert (await checks.results(patience=0.0)) == found
    finally:
        await checks.close()


async def test_the_oldest_entry_is_found_and_a_missing_config_server_named() -> None:
    cluster = AnsweringCluster()
    cluster.answering.set()
    cluster.entry = {"ts": Timestamp(100, 1)}
    cluster.failure = CommandError(133, "no primary")
    checks = ReplicaSetChecks(cast(Cluster, cluster))
    try:
        found = await checks.results(patience=None)
    finally:
        await checks.close()
    assert found["a"].oldest == Timestamp(100, 1)
    assert not found["a"].complete
    assert not found["config"].answers
    assert "no primary" in str(found["config"].error)

"""Checks of the replica sets do not delay requests for their results."""

import asyncio
from typing import cast

import pytest
from bson.timestamp import Timestamp
from structlog.testing import capture_logs

from router.catalog import server_checks
from router.catalog.cluster import Cluster
from router.catalog.server_checks import Check, ServerChecks
from shard_client.errors import CommandError
from shard_client.wire.authentication import Access, Credentials
from tests.doubles.fake_clusters import AnsweringCluster
from tests.harness.until import PATIENCE


async def test_a_hanging_shard_does_not_delay_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = AnsweringCluster()
    cluster.answering.clear()
    checks = ServerChecks(cast(Cluster, cluster), keep=0.0)
    try:
        async with asyncio.timeout(PATIENCE):
            monkeypatch.setattr(server_checks, "_TIMEOUT_OF_FIRST", 0.0)
            assert not await checks.results()
            cluster.answering.set()
            monkeypatch.setattr(server_checks, "_TIMEOUT_OF_FIRST", 10 * PATIENCE)
            found = await checks.results(whole=True)
            assert [each.target for each in found] == ["config", "a"]
            assert all(each.complete and not each.is_problem for each in found)
            cluster.answering.clear()
            assert (await checks.results()) == found
    finally:
        await checks.close()


async def test_the_oldest_entry_is_found_and_a_missing_config_server_named() -> None:
    cluster = AnsweringCluster()
    cluster.entry = {"ts": Timestamp(100, 1)}
    cluster.failure = CommandError(133, "no primary")
    found = await found_by(cluster)
    assert found["a"].oldest == Timestamp(100, 1)
    assert not found["a"].complete
    assert found["config"].severity == "error"
    assert "no primary" in found["config"].text


_DIRECT = "You are connecting to a sharded cluster improperly by connecting directly to a shard."


@pytest.mark.parametrize(
    ("code", "message", "said"),
    [
        (13, _DIRECT, "refuses the router: You are connecting"),
        (18, "cannot log in to cfg as least@admin: no", "Check security.user, authSource"),
    ],
)
async def test_a_refusal_is_not_called_a_silence(code: int, message: str, said: str) -> None:
    cluster = AnsweringCluster()
    cluster.failure = CommandError(code, message)
    found = await found_by(cluster)
    assert found["config"].severity == "error"
    assert said in found["config"].text
    assert "does not answer" not in found["config"].text
    assert not found["a"].is_problem


_ALL = {"resource": {"anyResource": True}, "actions": ["find", "changeStream", "viewUser"]}
_CONFIG = {"resource": {"db": "config", "collection": ""}, "actions": ["find", "changeStream"]}
_WRITES = {"resource": {"cluster": True}, "actions": ["appendOplogNote"]}
_SIZE = {"resource": {"db": "local", "collection": "oplog.rs"}, "actions": ["collStats", "find"]}


def logged_in() -> AnsweringCluster:
    """Return a cluster whose servers answer a user with the privileges that the test sets."""
    cluster = AnsweringCluster()
    cluster.access = Access(Credentials("least", "admin", ("secret",)))
    return cluster


async def test_from_8_0_on_the_role_of_direct_operations_is_missed() -> None:
    cluster = logged_in()
    cluster.privileges = [_ALL, _WRITES, _SIZE]
    assert not [each for each in (await found_by(cluster)).values() if each.is_problem]
    cluster.wire_version = 25
    for place in (await found_by(cluster)).values():
        # A cluster of one shard works without it.
        assert place.severity == "warning"
        assert "lacks issueDirectShardOperations on the cluster" in place.text
        assert "least@admin" in place.text
    cluster.failure = CommandError(13, _DIRECT)
    config = (await found_by(cluster))["config"]
    assert config.severity == "error"
    assert "lacks issueDirectShardOperations" in config.text


@pytest.mark.parametrize(
    ("hosts", "problem"),
    [
        ({"config": "config/host:1"}, "lacks changeStream and find on all databases"),
        ({}, "lists no"),
    ],
)
async def test_the_config_server_may_be_the_only_shard(hosts: dict[str, str], problem: str) -> None:
    cluster = logged_in()
    cluster.privileges = [_WRITES, _SIZE, _CONFIG, {**_ALL, "actions": ["viewUser"]}]
    cluster.hosts = hosts
    found = await found_by(cluster)
    config = found["config"]
    assert problem in (config if hosts else found[None]).text
    assert (None in found and found[None].severity == "fatal") == (not hosts)
    assert (config.oldest is None) == (not hosts), "only a shard's oplog has what clients read"


async def test_streams_on_some_databases_may_be_all_that_is_wanted() -> None:
    cluster = logged_in()
    shop = {"resource": {"db": "shop", "collection": ""}}
    for actions in (["changeStream", "find"], ["changeStream"]):
        cluster.privileges = [{**shop, "actions": actions}, _WRITES, _SIZE]
        assert (await found_by(cluster))["a"].is_problem != ("find" in actions)


async def test_an_unexpected_exception_is_a_problem() -> None:
    cluster = AnsweringCluster()
    cluster.failure = cast(CommandError, RuntimeError("planted"))
    checks = ServerChecks(cast(Cluster, cluster))
    with capture_logs() as logs:
        for _ in range(2):  # the second caller is told of the first one's exception
            (found,) = await checks.results(whole=True)
            assert "planted" in found.text
    assert len(logs) == 1


async def found_by(cluster: AnsweringCluster) -> dict[str | None, Check]:
    checks = ServerChecks(cast(Cluster, cluster))
    try:
        return {each.target: each for each in await checks.results(whole=True)}
    finally:
        await checks.close()

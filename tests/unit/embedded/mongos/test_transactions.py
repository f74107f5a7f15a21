"""Transactions over shards, in process: the order of commits, and the oplogs' entries."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from bson import Binary, Timestamp

from embedded.clients import Client
from embedded.cluster import EmbeddedCluster

LSID = {"id": Binary(b"s" * 16, 4)}


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(3, noop_interval=0) as running:
        await run(running, "admin", {"enableSharding": "a", "primaryShard": "shard0"})
        await run(running, "admin", {"shardCollection": "a.b", "key": {"_id": 1}})
        for at, shard in ((10, "shard1"), (20, "shard2")):
            await run(running, "admin", {"split": "a.b", "middle": {"_id": at}})
            await run(running, "admin", {"moveChunk": "a.b", "find": {"_id": at}, "to": shard})
        yield running


async def run(cluster: EmbeddedCluster, database: str, command: dict[str, Any]) -> dict[str, Any]:
    reply = await cluster.mongos.run_command(database, command, Client())
    assert reply["ok"] == 1.0, reply
    return reply


async def statement(
    cluster: EmbeddedCluster, number: int, command: dict[str, Any], *, first: bool = False
) -> dict[str, Any]:
    extra: dict[str, Any] = {"lsid": LSID, "txnNumber": number, "autocommit": False}
    if first:
        extra["startTransaction"] = True
    return await cluster.mongos.run_command("a", {**command, **extra}, Client())


async def end(cluster: EmbeddedCluster, number: int, how: str) -> dict[str, Any]:
    command = {how: 1, "lsid": LSID, "txnNumber": number, "autocommit": False}
    return await cluster.mongos.run_command("admin", command, Client())


def entries(cluster: EmbeddedCluster, shard: str, after: Timestamp) -> list[dict[str, Any]]:
    return [dict(entry) for entry in cluster.shard(shard).oplog.since(after)]


def insert(*ids: int) -> dict[str, Any]:
    return {"insert": "b", "documents": [{"_id": i} for i in ids]}


def now(cluster: EmbeddedCluster) -> Timestamp:
    return max(cluster.shard(f"shard{i}").clock.time for i in range(3))


async def test_coordinator_commits_first_and_the_others_at_one_time(
    cluster: EmbeddedCluster,
) -> None:
    before = now(cluster)
    await statement(cluster, 1, insert(1), first=True)
    await statement(cluster, 1, insert(11, 21))
    assert (await end(cluster, 1, "commitTransaction"))["ok"] == 1.0
    commits = {}
    for shard in ("shard0", "shard1", "shard2"):
        prepare, commit = entries(cluster, shard, before)
        assert prepare["o"]["prepare"] is True
        assert "commitTransaction" in commit["o"]
        commits[shard] = commit["ts"]
    assert commits["shard0"] < commits["shard1"] == commits["shard2"]
    assert (await end(cluster, 1, "commitTransaction"))["ok"] == 1.0  # a second time succeeds too


async def test_a_retried_write_is_applied_once(cluster: EmbeddedCluster) -> None:
    command = {**insert(1, 11, 21), "lsid": LSID, "txnNumber": 1}
    assert (await run(cluster, "a", command))["n"] == 3
    assert (await run(cluster, "a", command))["n"] == 3
    assert (await run(cluster, "a", {"count": "b"}))["n"] == 3


async def test_a_retried_shard_key_change_is_applied_once(cluster: EmbeddedCluster) -> None:
    await run(cluster, "admin", {"shardCollection": "a.k", "key": {"k": 1}})
    await run(cluster, "admin", {"split": "a.k", "middle": {"k": 10}})
    await run(cluster, "admin", {"moveChunk": "a.k", "find": {"k": 10}, "to": "shard1"})
    await run(cluster, "a", {"insert": "k", "documents": [{"_id": 1, "k": 1}]})
    where, change = {"_id": 1, "k": 1}, {"$set": {"k": 20}}
    command: dict[str, Any] = {"update": "k", "updates": [{"q": where, "u": change}]}
    command |= {"lsid": LSID, "txnNumber": 1}
    before = now(cluster)
    first = await run(cluster, "a", command)
    again = await run(cluster, "a", command)
    assert {k: v for k, v in first.items() if k[0] not in "$o"} == {
        k: v for k, v in again.items() if k[0] not in "$o"
    }
    found = (await run(cluster, "a", {"find": "k"}))["cursor"]["firstBatch"]
    assert found == [{"_id": 1, "k": 20}]
    commits = [
        entry for entry in entries(cluster, "shard1", before) if "commitTransaction" in entry["o"]
    ]
    assert len(commits) == 1

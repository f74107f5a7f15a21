"""Where the embedded mongos sends commands while collections and chunks change."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Int64, Timestamp

from embedded.client import Client
from embedded.cluster import EmbeddedCluster

LSID = {"id": Binary.from_uuid(UUID(int=1))}
MANY = [{"_id": i} for i in range(1_500)]
"""Documents that a move copies in several steps, so that other commands run in between."""
AFTER_MOVE: list[dict[str, Any]] = [
    {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$set": {"v": 1}}}]},
    {"delete": "orders", "deletes": [{"q": {"_id": 1}, "limit": 1}]},
    {"count": "orders"},
]


async def run(cluster: EmbeddedCluster, command: dict[str, Any], database: str = "shop") -> Any:
    reply = await cluster.mongos.run_command(database, command, Client())
    assert reply["ok"] == 1, reply
    return reply


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """Return a cluster of two shards; the database shop is on the first one."""
    async with EmbeddedCluster(2, oplog_size=2_000) as started:
        await run(started, {"enableSharding": "shop", "primaryShard": "shard0"}, "admin")
        yield started


async def shard_orders(cluster: EmbeddedCluster, key: str) -> None:
    await run(cluster, {"shardCollection": "shop.orders", "key": {key: 1}}, "admin")


@pytest.mark.parametrize("command", AFTER_MOVE, ids=lambda command: next(iter(command)))
async def test_a_command_that_waits_for_move_primary_finds_the_document(
    cluster: EmbeddedCluster, command: dict[str, Any]
) -> None:
    await run(cluster, {"insert": "orders", "documents": [{"_id": 1}]})
    transaction = {"lsid": LSID, "txnNumber": Int64(1), "autocommit": False}
    await run(cluster, {"find": "orders", "startTransaction": True, **transaction})
    async with asyncio.TaskGroup() as group:
        move = group.create_task(run(cluster, {"movePrimary": "shop", "to": "shard1"}, "admin"))
        await asyncio.sleep(0)
        waiting = group.create_task(run(cluster, command))
        await asyncio.sleep(0)
        assert not move.done()
        assert not waiting.done()
        await run(cluster, {"commitTransaction": 1, **transaction}, "admin")
    reply = await waiting
    assert reply["n"] == 1


@pytest.mark.parametrize(("id_", "codes"), [(1, [11000, 217]), (2, [None, 217])])
async def test_an_update_of_a_shard_key_moves_a_document_unless_its_id_is_there(
    cluster: EmbeddedCluster, id_: int, codes: list[int | None]
) -> None:
    await shard_orders(cluster, "region")
    await run(cluster, {"split": "shop.orders", "middle": {"region": "m"}}, "admin")
    move = {"moveChunk": "shop.orders", "find": {"region": "z"}, "to": "shard1"}
    await run(cluster, move, "admin")
    stored = [{"_id": 1, "region": "z"}, {"_id": id_, "region": "a"}]
    await run(cluster, {"insert": "orders", "documents": stored})
    change = {"q": {"_id": id_, "region": "a"}, "u": {"$set": {"region": "y"}}}
    update = {"update": "orders", "updates": [change], "lsid": LSID, "txnNumber": Int64(1)}
    for code in codes:  # of the update and of its retry
        errors = (await run(cluster, dict(update))).get("writeErrors", [{"code": None}])
        assert [error["code"] for error in errors] == [code]
    found = (await run(cluster, {"find": "orders"}))["cursor"]["firstBatch"]
    assert sorted(d["region"] for d in found) == (["a", "z"] if id_ == 1 else ["y", "z"])


async def test_a_chunk_that_follows_its_database_keeps_its_shard_key(
    cluster: EmbeddedCluster,
) -> None:
    await shard_orders(cluster, "region")
    await run(cluster, {"movePrimary": "shop", "to": "shard1"}, "admin")
    move = {"moveChunk": "shop.orders", "find": {"region": "a"}, "to": "shard1"}
    await run(cluster, move, "admin")
    await run(cluster, {"insert": "orders", "documents": [{"_id": 1, "region": "a"}]})
    oplog = cluster.shard("shard1").oplog
    [insert] = [entry for entry in oplog.since(Timestamp(0, 0)) if entry["op"] == "i"]
    assert insert["o2"] == {"region": "a", "_id": 1}


async def test_a_shard_that_leaves_gets_no_chunk(cluster: EmbeddedCluster) -> None:
    await shard_orders(cluster, "_id")
    transaction = {"lsid": LSID, "txnNumber": Int64(1), "autocommit": False}
    await run(cluster, {"find": "orders", "startTransaction": True, **transaction})
    remove = {"removeShard": "shard1"}
    await run(cluster, dict(remove), "admin")
    move = {"moveChunk": "shop.orders", "find": {"_id": 1}, "to": "shard1"}
    removing = asyncio.create_task(run(cluster, remove, "admin"))
    await asyncio.sleep(0)
    moving = asyncio.create_task(cluster.mongos.run_command("admin", move, Client()))
    await asyncio.sleep(0)
    await run(cluster, {"commitTransaction": 1, **transaction}, "admin")
    states = [(await removing)["state"], (await moving).get("codeName")]
    assert states in (["completed", "ShardNotFound"], ["ongoing", None])
    assert (await run(cluster, {"find": "orders"}))["cursor"]["firstBatch"] == []


@pytest.mark.parametrize(
    ("command", "database", "counted"),
    [
        ({"insert": "items", "documents": MANY}, "shop", "items"),
        ({"shardCollection": "shop.orders", "key": {"_id": 1}}, "admin", "orders"),
    ],
)
async def test_a_command_on_a_collection_waits_until_its_database_has_moved(
    cluster: EmbeddedCluster, command: dict[str, Any], database: str, counted: str
) -> None:
    await run(cluster, {"insert": "orders", "documents": MANY})
    async with asyncio.TaskGroup() as group:
        group.create_task(run(cluster, {"movePrimary": "shop", "to": "shard1"}, "admin"))
        await asyncio.sleep(0)
        group.create_task(run(cluster, command, database))
    assert (await run(cluster, {"count": counted}))["n"] == len(MANY)

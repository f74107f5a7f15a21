"""Where the embedded mongos sends a command that waits while its collection changes."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Int64

from embedded.clients import Client
from embedded.cluster import EmbeddedCluster

LSID = {"id": Binary.from_uuid(UUID(int=1))}
AFTER_MOVE: list[dict[str, Any]] = [
    {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$set": {"v": 1}}}]},
    {"delete": "orders", "deletes": [{"q": {"_id": 1}, "limit": 1}]},
    {"findAndModify": "orders", "query": {"_id": 1}, "update": {"$set": {"v": 1}}},
    {"count": "orders"},
]


async def run(cluster: EmbeddedCluster, command: dict[str, Any], database: str = "shop") -> Any:
    reply = await cluster.mongos.run_command(database, command, Client())
    assert reply["ok"] == 1, reply
    return reply


@pytest.mark.parametrize("command", AFTER_MOVE, ids=lambda command: next(iter(command)))
async def test_a_command_that_waits_for_move_primary_finds_the_document(
    command: dict[str, Any],
) -> None:
    async with EmbeddedCluster(2) as cluster:
        await run(cluster, {"enableSharding": "shop", "primaryShard": "shard0"}, "admin")
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
        assert reply.get("n", reply.get("lastErrorObject", {}).get("n")) == 1


async def test_a_document_that_is_gone_when_its_key_changes_is_not_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with EmbeddedCluster(1) as cluster:
        await run(cluster, {"shardCollection": "shop.orders", "key": {"region": 1}}, "admin")
        await run(cluster, {"insert": "orders", "documents": [{"_id": 1, "region": "a"}]})
        shard = cluster.shard("shard0")
        execute = shard.execute

        async def delete_after_update(database: str, command: Any, client: Client) -> Any:
            reply = await execute(database, command, client)
            if "update" in command:
                delete = {"delete": "orders", "deletes": [{"q": {"_id": 1}, "limit": 1}]}
                await execute(database, delete, client)
            return reply

        monkeypatch.setattr(shard, "execute", delete_after_update)
        change = {"q": {"_id": 1, "region": "a"}, "u": {"$set": {"region": "b"}}}
        update = {"update": "orders", "updates": [change], "lsid": LSID, "txnNumber": Int64(1)}
        reply = await run(cluster, update)
        assert (reply["n"], reply["nModified"], reply.get("writeErrors")) == (0, 0, None)

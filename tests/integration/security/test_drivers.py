"""Drivers log in through the router, watch, write and run transactions with a user's rights."""

from collections.abc import Iterator
from typing import Any

import pytest
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

from tests.harness.node import NodePrograms
from tests.integration.security.clients import Servers, client

NAME = "sharded"
EXPECTED = {"user": "writer", "seen": [1, 2, 99], "refused": [13, 13, 13]}


@pytest.fixture
def uri(servers: Servers) -> Iterator[str]:
    """Return the connection string of a user that may write the sharded collection of ``db``."""
    with client(servers.mongos, "root") as root:
        root.admin.command("enableSharding", "db")
        root.admin.command("shardCollection", f"db.{NAME}", key={"_id": 1})
        root.admin.command("split", f"db.{NAME}", middle={"_id": 50})
        for key, shard in ((0, 0), (99, 1)):
            to = list(servers.cluster.shards)[shard]
            root.admin.command("moveChunk", f"db.{NAME}", find={"_id": key}, to=to)
        try:
            yield f"mongodb://writer:writer@{servers.router}/"
        finally:
            root.db[NAME].drop()


@pytest.mark.parametrize("driver", [AsyncIOMotorClient, AsyncMongoClient])
async def test_asynchronous_drivers_log_in_and_watch(uri: str, driver: Any) -> None:
    connected = driver(uri)
    collection = connected.db[NAME]
    watching = collection.watch(max_await_time_ms=1000)
    async with watching if driver is AsyncIOMotorClient else await watching as stream:
        await stream.try_next()
        await collection.insert_one({"_id": 1})
        starting = connected.start_session()
        session = await starting if driver is AsyncIOMotorClient else starting
        async with session:
            beginning = session.start_transaction()
            async with beginning if driver is AsyncIOMotorClient else await beginning:
                await collection.insert_one({"_id": 2}, session=session)
                await collection.insert_one({"_id": 99}, session=session)
        seen = [(await stream.next())["documentKey"]["_id"] for _ in range(3)]
    assert seen == EXPECTED["seen"]
    with pytest.raises(OperationFailure) as refused:
        await connected.other.c.insert_one({})
    assert refused.value.code == 13
    closing = connected.close()
    if closing is not None:
        await closing


@pytest.mark.timeout(600)  # npm may first have to install the packages
def test_node_s_driver_logs_in_and_watches(uri: str, node: NodePrograms) -> None:
    assert node.run("secured.js", uri, "db", NAME) == EXPECTED


def test_mongosh_logs_in_later(servers: Servers, node: NodePrograms) -> None:
    """``db.auth`` in a shell that was started without a user, twice."""
    script = """
        const admin = db.getSiblingDB("admin");
        const code = (attempt) => { try { attempt(); return 0; } catch (e) { return e.code; } };
        const find = () => db.getSiblingDB("db").c.findOne();
        const codes = [code(find), code(() => admin.auth("reader", "wrong"))];
        admin.auth("reader", "reader");
        codes.push(code(find), code(() => admin.auth("reader", "reader")));
        print(JSON.stringify(codes));
    """
    codes = [
        node.mongosh(f"mongodb://{address}/", script)
        for address in (servers.mongos, servers.router)
    ]
    assert codes[1] == codes[0] == [13, 18, 0, 0]

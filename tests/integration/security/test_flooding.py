"""Drivers keep working beside slow and flooding clients of a secured router."""

import asyncio
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from pymongo import AsyncMongoClient

from tests.harness.clusters import TestCluster
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess, start_router
from tests.harness.until import PATIENCE
from tests.integration.security.clients import Servers, client

LIMITS = {
    "loginTimeoutMs": 4000,
    "messageTimeoutMs": 4000,
    "maxLoginsInProgress": 4,
    "maxConnectionsPerClient": 150,
}
START = {"saslStart": 1, "mechanism": "SCRAM-SHA-256"}
FIRST = b"n,,n=reader,r=0123456789abcdefghijklmnopqrstuv"
ATTACKER = ("127.0.0.2", 0)


@pytest.fixture(scope="module")
def router(servers: Servers, secured: TestCluster, key_file: Path) -> Iterator[RouterProcess]:
    with start_router(secured.configdb, keyFile=key_file, set_parameter=LIMITS) as running:
        yield running


async def attackers(owned: AsyncExitStack, router: RouterProcess, count: int) -> list[RawClient]:
    """Return ``count`` connections from an address that the drivers do not have."""
    return [
        await owned.enter_async_context(
            RawClient(*await asyncio.open_connection("127.0.0.1", router.port, local_addr=ATTACKER))
        )
        for _ in range(count)
    ]


async def assert_drivers_work(router: RouterProcess, servers: Servers) -> None:
    """Log in as a new driver, which gets an event within the usual patience."""
    async with (
        asyncio.timeout(PATIENCE),
        AsyncMongoClient(f"mongodb://reader:reader@127.0.0.1:{router.port}/") as reader,
        await reader.db.c.watch(max_await_time_ms=500) as watching,
    ):
        with client(servers.mongos, "writer") as writer:
            inserted = writer.db.c.insert_one({}).inserted_id
        assert (await watching.next())["documentKey"] == {"_id": inserted}


async def all_closed(connections: list[RawClient]) -> None:
    async with asyncio.timeout(PATIENCE):
        for each in connections:
            assert await each.closed()


async def test_silent_slow_and_long_messages(router: RouterProcess, servers: Servers) -> None:
    header = struct.pack("<iiii", 48_000_000, 1, 0, 2013)
    slow = struct.pack("<iiii", 10_000, 1, 0, 2013)
    async with AsyncExitStack() as owned:
        connections = await attackers(owned, router, 120)
        for index, each in enumerate(connections):
            each.send_bytes((b"", header + bytes(20_000), slow)[index % 3])
        await assert_drivers_work(router, servers)
        await all_closed(connections)


async def test_stalled_logins_do_not_delay_drivers(router: RouterProcess, servers: Servers) -> None:
    """They hold half of the logins in progress at most, and connections for four seconds.

    The others wait for their turn, two at a time.
    """
    async with AsyncExitStack() as owned:
        connections = await attackers(owned, router, 6)
        for each in connections:
            each.send("admin", {**START, "payload": FIRST})
        await assert_drivers_work(router, servers)
        await all_closed(connections)


async def test_connections_over_an_address_s_limit_do_not_delay_drivers(
    router: RouterProcess, servers: Servers
) -> None:
    async with AsyncExitStack() as owned:
        connections = await attackers(owned, router, 200)
        await all_closed(connections[150:])
        assert (await connections[149].command("admin", {"ping": 1}))["ok"]
        await assert_drivers_work(router, servers)

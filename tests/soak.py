"""Connect, stall, kill and disconnect many clients in various ways; count what is left of them."""

import asyncio
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any

import bson
from bson import Binary

from shard_client.wire.frames import build_msg
from tests.harness.clusters import Client, TestCluster
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess
from tests.harness.until import Deadline

CURSOR_TIMEOUT_MS = 2000
PARAMETERS = {"cursorTimeoutMillis": CURSOR_TIMEOUT_MS, "messageTimeoutMs": 2000}
AT_ONCE = 100
_SETTLE_SECONDS = 30.0
_HELLO = {"hello": 1, "helloOk": True}
_MIB = 1024 * 1024
_HELLOS = build_msg(bson.encode({**_HELLO, "$db": "admin"}), request_id=1) * 2000
_RESET = struct.pack("ii", 1, 0)
_MORE: dict[str, Any] = {"getMore": 0, "collection": "$cmd.aggregate", "maxTimeMS": 50}


@dataclass(frozen=True, slots=True)
class Holdings:
    """The resources of a router, and the shards' resources that it uses.

    Idle pooled connections are not counted: the pools keep some of them for the next caller.
    """

    connections: int
    cursors: int
    tasks: int
    files: int
    threads: int
    shard_cursors: int
    shard_connections: int

    def beyond(self, other: "Holdings") -> dict[str, int]:
        """Return by how much each count exceeds that of ``other``, by name."""
        more = {
            each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)
        }
        return {name: count for name, count in more.items() if count > 0}


class Soak:
    """Runs rounds of clients against one router. Call ``close`` when done."""

    def __init__(self, cluster: TestCluster, router: RouterProcess) -> None:
        self._cluster = cluster
        self._router = router
        self._client: Client = Client(router.uri, maxPoolSize=1)
        self._shards: list[Client] = [cluster.direct(name) for name in [*cluster.shards, "config"]]
        self._real = cluster.real
        self.made: Counter[str] = Counter()

    def close(self) -> None:
        """Close the connections used for counting."""
        for client in (self._client, *self._shards):
            client.close()

    def holdings(self) -> Holdings:
        """Return the current counts."""
        status = self._client.admin.command("serverStatus")
        process = Path(f"/proc/{self._router.process.pid}")
        shards = [client.admin.command("serverStatus") for client in self._shards]
        pools = status["mergerouter"]["memberConnections"].values()
        idle = sum(pool["available"] for pool in pools)
        # Real servers also count the connections of mongos and of each other.
        counted = [] if self._real else shards
        return Holdings(
            connections=status["connections"]["current"],
            cursors=_open_cursors(status),
            tasks=status["mergerouter"]["tasks"],
            files=len(os.listdir(process / "fd")) - idle,
            threads=len(os.listdir(process / "task")),
            shard_cursors=sum(map(_open_cursors, shards)),
            shard_connections=(
                sum(each["connections"]["current"] for each in counted)
                - (0 if self._real else idle)
            ),
        )

    def settled(self, before: Holdings) -> dict[str, int]:
        """Wait until no count exceeds ``before``; return the excess that is left after a time."""
        deadline = Deadline(_SETTLE_SECONDS)
        while (left := self.holdings().beyond(before)) and not deadline.passed:
            time.sleep(0.1)
        return left

    @property
    def resident_kib(self) -> int:
        """The router's resident memory in KiB."""
        status = Path(f"/proc/{self._router.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    async def round(self, connections: int, seed: int = 0) -> None:
        """Connect this many clients, each with a random behaviour."""
        chance = Random(seed)
        left = connections
        while left:
            some = min(left, AT_ONCE)
            await asyncio.gather(*(self._visit(Random(chance.random())) for _ in range(some)))
            left -= some

    async def _visit(self, chance: Random) -> None:
        behaviour = chance.choice(_BEHAVIOURS)
        self.made[behaviour.__name__] += 1
        port = self._router.port
        if behaviour is _reads_the_feed and self._router.feed_port is not None:
            port = self._router.feed_port
        async with await RawClient.connect(port) as client:
            await behaviour(client, chance)


def _watch(chance: Random) -> dict[str, Any]:
    """Return an opening that shares its stream with other clients or, at random, does not."""
    pipeline: list[dict[str, Any]] = [{"$changeStream": {}}]
    if chance.random() < 0.5:
        pipeline.append({"$match": {"n": chance.random()}})
    return {"aggregate": 1, "pipeline": pipeline, "cursor": {}}


def _open_cursors(status: dict[str, Any]) -> int:
    return int(status["metrics"]["cursor"]["open"]["total"])


def _reset(client: RawClient) -> None:
    """Reset the connection, as the kernel does for a killed process."""
    connection = client.writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    client.writer.transport.abort()


async def _connects_only(client: RawClient, _: Random) -> None:
    """Close the connection as soon as it is open."""


async def _sends_hello(client: RawClient, _: Random) -> None:
    await client.command("admin", _HELLO)


async def _resets_after_hello(client: RawClient, _: Random) -> None:
    await client.command("admin", _HELLO)
    _reset(client)


async def _disconnects_within_a_message(client: RawClient, _: Random) -> None:
    client.send_bytes(struct.pack("<iiii", 500, 1, 0, 2013) + b"\0" * 100)
    await client.writer.drain()


async def _disconnects_within_a_large_message(client: RawClient, _: Random) -> None:
    client.send_bytes(struct.pack("<iiii", 40 * _MIB, 1, 0, 2013) + bytes(4 * _MIB))
    await client.writer.drain()


async def _stalls_within_a_message(client: RawClient, chance: Random) -> None:
    """Send no more until the router ends the connection."""
    client.send_bytes(struct.pack("<iiii", 4 * _MIB, 1, 0, 2013) + bytes(chance.randrange(_MIB)))
    await client.closed()


async def _reads_no_replies(client: RawClient, _: Random) -> None:
    """Ask until the router takes no more, then stall until it has ended the connection."""
    transport: Any = client.writer.transport
    transport.pause_reading()
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(10):
            while True:
                client.send_bytes(_HELLOS)
                await client.writer.drain()


async def _dies_with_replies_unread(client: RawClient, chance: Random) -> None:
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send_bytes(_HELLOS)
    await asyncio.sleep(chance.random() * 0.05)
    _reset(client)


async def _sends_another_protocol(client: RawClient, _: Random) -> None:
    client.send_bytes(b"GET / HTTP/1.1\r\n\r\n" * 10)
    await client.closed()


async def _kills_its_cursor(client: RawClient, chance: Random) -> None:
    reply = await client.command("soak", _watch(chance))
    killing = {"killCursors": "$cmd.aggregate", "cursors": [reply["cursor"]["id"]]}
    assert (await client.command("soak", killing))["ok"] == 1


async def _ends_its_session(client: RawClient, chance: Random) -> None:
    session = {"id": Binary(chance.randbytes(16), 4)}
    await client.command("soak", {**_watch(chance), "lsid": session})
    await client.command("admin", {"endSessions": [session]})


async def _leaves_a_cursor_open(client: RawClient, chance: Random) -> None:
    """Leave a cursor open that only the idle timeout ends."""
    await client.command("soak", _watch(chance))


async def _resets_during_an_opening(client: RawClient, chance: Random) -> None:
    client.send("soak", _watch(chance))
    await client.writer.drain()
    await asyncio.sleep(chance.random() * 0.05)
    _reset(client)


async def _disconnects_during_a_wait(client: RawClient, chance: Random) -> None:
    cursor_id = (await client.command("soak", _watch(chance)))["cursor"]["id"]
    client.send("soak", {**_MORE, "getMore": cursor_id, "maxTimeMS": 3_600_000})
    await client.writer.drain()
    await asyncio.sleep(chance.random() * 0.05)
    if chance.random() < 0.5:
        _reset(client)


async def _reads_on(client: RawClient, chance: Random) -> None:
    """Read, with pauses, for longer than an idle cursor is kept; then kill the cursor."""
    cursor_id = (await client.command("soak", _watch(chance)))["cursor"]["id"]
    for _ in range(4):
        assert (await client.command("soak", {**_MORE, "getMore": cursor_id}))["ok"] == 1
        await asyncio.sleep(CURSOR_TIMEOUT_MS / 2000)
    await client.command("soak", {"killCursors": "$cmd.aggregate", "cursors": [cursor_id]})


async def _reads_the_feed(client: RawClient, chance: Random) -> None:
    """Open a feed, with or without a request line, and reset the connection.

    A plain close would look like a half-closed connection, which only keepalive probes end.
    """
    if chance.random() < 0.5:
        client.send_bytes(b'{"database": "soak"}\n')
    await asyncio.sleep(chance.random() * 0.3)
    _reset(client)


_BEHAVIOURS: tuple[Callable[[RawClient, Random], Awaitable[None]], ...] = (
    *(_connects_only, _sends_hello, _resets_after_hello) * 2,
    _disconnects_within_a_message,
    _disconnects_within_a_large_message,
    _stalls_within_a_message,
    _reads_no_replies,
    _dies_with_replies_unread,
    _sends_another_protocol,
    _kills_its_cursor,
    _ends_its_session,
    _leaves_a_cursor_open,
    _resets_during_an_opening,
    _disconnects_during_a_wait,
    _reads_on,
    _reads_the_feed,
)

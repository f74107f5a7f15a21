"""The attacks. ``python -m tests.attack.attackers NAME PORT SECONDS ADMIN_PORT SINCE`` runs one."""

import asyncio
import contextlib
import json
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import bson
import cramjam
from bson import Int64, Timestamp

from shard_client.wire.frames import build_msg
from tests.harness.raw_client import RawClient

MIB = 1024 * 1024
ROOT, NOBODY = "root", "nobody"
"""Users, whose passwords are their names."""
WATCH: dict[str, Any] = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}}


def message(command: dict[str, Any], database: str = "db") -> bytes:
    """Return a command as an OP_MSG."""
    return build_msg(bson.encode({**command, "$db": database}), request_id=1)


def bomb() -> bytes:
    """Return a message of a few KB that holds 45 MB."""
    document = bson.encode({"pad": bytes(15_000_000)})
    content = b"documents\0" + document * 3
    body = b"\0\0\0\0\0" + bson.encode({"insert": "c", "$db": "db"})
    body += b"\1" + struct.pack("<i", len(content) + 4) + content
    packed = struct.pack("<iiB", 2013, len(body), 3) + bytes(cramjam.zstd.compress(body))
    return struct.pack("<iiii", 16 + len(packed), 1, 0, 2012) + packed


PINGS = message({"ping": 1}, "admin") * 1000
UNFINISHED = struct.pack("<iiii", 48_000_000, 1, 0, 2013) + bytes(40 * MIB)


@dataclass(frozen=True, slots=True)
class Target:
    """The server that is attacked: its ports, and until when.

    ``since`` is a cluster time's second after which there are many events.
    """

    port: int
    admin_port: int
    since: int
    until: float

    @property
    def left(self) -> float:
        """Seconds that are left for the attack."""
        return max(0.0, self.until - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether the attack's time is over."""
        return time.monotonic() > self.until


Attack = Callable[[Target], Awaitable[None]]

ends: Counter[str] = Counter()
"""What ended the attackers' visits, and how often."""


done: Counter[str] = Counter()
"""The attackers' ``connections``, and the ``bytes`` that they have sent beyond their logins."""


@contextlib.asynccontextmanager
async def _connected(port: int, user: str | None = None) -> AsyncIterator[RawClient]:
    """Connect, and log in as ``user``; cut the connection at the end."""
    client = await RawClient.connect(port)
    try:
        if user is not None:
            await client.log_in(user)
        done["connections"] += 1
        yield client
    finally:
        client.writer.transport.abort()


async def _write(client: RawClient, content: bytes) -> None:
    client.send_bytes(content)
    await client.writer.drain()
    done["bytes"] += len(content)


async def _keep(target: Target, client: RawClient) -> None:
    """Keep the connection to the attack's end, unless the server closes it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(target.left):
            await client.reader.read()


async def _repeat(target: Target, visit: Attack) -> None:
    """Visit again and again; a visit that the server ends is followed by the next."""
    while not target.over:
        try:
            await visit(target)
        except Exception as error:  # noqa: BLE001 (whatever the server does to an attacker)
            ends[str(error)[:80]] += 1
            await asyncio.sleep(0.05)


async def _pings(target: Target) -> None:
    async def read(client: RawClient) -> None:
        while await client.reader.read(MIB):
            pass

    async with _connected(target.port) as client:
        reading = asyncio.ensure_future(read(client))
        try:
            while not target.over:
                await _write(client, PINGS)
        finally:
            reading.cancel()


def _commands(frame: Callable[[], bytes], user: str = NOBODY) -> Attack:
    """Return the attack of a user that sends the same message again and again."""

    async def send(target: Target) -> None:
        async with _connected(target.port, user) as client:
            built = frame()
            while not target.over:
                await _write(client, built)
                await client.receive()

    return send


async def _unfinished(target: Target) -> None:
    """Send most of a message and keep the connection."""
    async with _connected(target.port, NOBODY) as client:
        client.send_bytes(UNFINISHED)  # the server reads as much of it as it has room for
        done["bytes"] += len(UNFINISHED)
        await _keep(target, client)


async def _streams_unread(target: Target) -> None:
    """Read a stream from a time in the past, but none of its large replies."""
    async with _connected(target.port, ROOT) as client:
        stage = {"allChangesForCluster": True, "startAtOperationTime": Timestamp(target.since, 1)}
        opening = {"aggregate": 1, "pipeline": [{"$changeStream": stage}]}
        reply = await client.command("admin", {**opening, "cursor": {"batchSize": 0}})
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        cursor_id = Int64(reply["cursor"]["id"])
        more = {"getMore": cursor_id, "collection": "$cmd.aggregate", "batchSize": 100_000}
        await _write(client, message(more, "admin") * 5)
        while not (target.over or client.writer.is_closing()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _stalls(content: bytes, *, admin: bool = False) -> Attack:
    """Return the attack that sends ``content`` and then keeps the connection."""

    async def stall(target: Target) -> None:
        async with _connected(target.admin_port if admin else target.port) as client:
            await _write(client, content)
            await _keep(target, client)

    return stall


async def _accepted(target: Target) -> None:
    """Connect and cut the connection, as fast as possible."""
    loop = asyncio.get_running_loop()
    while not target.over:
        with socket.socket() as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await loop.sock_connect(connection, ("127.0.0.1", target.port))
            done["connections"] += 1


def _large_in() -> bytes:
    stage = {"$match": {"fullDocument.a": {"$in": list(range(900_000))}}}
    return message({**WATCH, "pipeline": [*WATCH["pipeline"], stage]})


def _many_stages() -> bytes:
    return message({**WATCH, "pipeline": [*WATCH["pipeline"], *[{"$match": {}}] * 500_000]})


ACCEPTS = "20 connect and close, as fast as they can"

ATTACKS: dict[str, tuple[int, Attack]] = {
    "200 pipeline pings, no login": (200, _pings),
    "10 users without rights, 14 MB of $in": (10, _commands(_large_in)),
    "1 user without rights, 500,000 stages": (1, _commands(_many_stages)),
    "20 send 45 MB in 4 KB of zstd, logged in": (20, _commands(bomb)),
    "60 do not finish 48 MB, logged in": (60, _unfinished),
    "60 never read the replies of their streams": (60, _streams_unread),
    "1 user with rights, 14 MB of $in": (1, _commands(_large_in, ROOT)),
    "4,300 half requests to the admin port": (
        4300,
        _stalls(b"GET /healthz HTTP/1.1\r\nHost:", admin=True),
    ),
    ACCEPTS: (20, _accepted),
    "3,000 send one byte 0x16 to the TLS port": (3000, _stalls(b"\x16")),
}
"""The attacks by name, with their number of connections."""

ON_ROUTER = ("admin port", "TLS port", "with rights")
"""Parts of the names of attacks that mongos is not measured with."""

ENDS_MONGOS = frozenset({"1 user without rights, 500,000 stages"})
"""Attacks with which mongos 6.0 ends."""


async def attack(name: str, target: Target) -> None:
    """Run an attack to its end."""
    count, visit = ATTACKS[name]
    tasks: list[Coroutine[Any, Any, None]] = [_repeat(target, visit) for _ in range(count)]
    await asyncio.wait(
        [asyncio.ensure_future(each) for each in tasks], timeout=target.until - time.monotonic() + 1
    )


def main() -> None:
    """Run one attack."""
    name, port, seconds, admin_port, since = sys.argv[1:]
    until = time.monotonic() + float(seconds)
    asyncio.run(attack(name, Target(int(port), int(admin_port), int(since), until)))
    print(json.dumps({"ends": ends, **done}))
    if not done["connections"] or not (done["bytes"] or name == ACCEPTS):
        sys.exit("the attackers could not attack")


if __name__ == "__main__":
    main()

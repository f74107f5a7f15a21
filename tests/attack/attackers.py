"""The attacks. ``python -m tests.attack.attackers NAME PORT SECONDS ADMIN_PORT SINCE`` runs one."""

import asyncio
import contextlib
import json
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import bson
import cramjam
from bson import Int64, Timestamp

from shard_client.wire.authentication import Credentials
from shard_client.wire.connection import Connection

MIB = 1024 * 1024
ROOT = Credentials(source="admin", user="root", passwords=("root",))
NOBODY = Credentials(source="admin", user="nobody", passwords=("nobody",))
WATCH: dict[str, Any] = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}}


def message(command: dict[str, Any], database: str = "db") -> bytes:
    """Return a command as an OP_MSG."""
    body = b"\0\0\0\0\0" + bson.encode({**command, "$db": database})
    return struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body


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


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    streams = await asyncio.open_connection("127.0.0.1", port, limit=MIB)
    done["connections"] += 1
    return streams


async def _logged_in(target: Target, user: Credentials = NOBODY) -> Connection:
    connection = await Connection.open(("127.0.0.1", target.port), timeout=60, credentials=user)
    done["connections"] += 1
    return connection


async def _write(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(content)
    await writer.drain()
    done["bytes"] += len(content)


async def _repeat(target: Target, visit: Attack) -> None:
    """Visit again and again; a visit that the server ends is followed by the next."""
    while not target.over:
        try:
            await visit(target)
        except Exception as error:  # noqa: BLE001 (whatever the server does to an attacker)
            ends[str(error)[:80]] += 1
            await asyncio.sleep(0.05)


async def _pings(target: Target, *, reads: bool = True) -> None:
    reader, writer = await _connect(target.port)
    if not reads:
        writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def read() -> None:
        while await reader.read(MIB):
            pass

    async with contextlib.AsyncExitStack() as owned:
        owned.callback(writer.transport.abort)
        reading = asyncio.ensure_future(read() if reads else asyncio.sleep(0))
        owned.callback(reading.cancel)
        while not target.over:
            await _write(writer, PINGS)


async def _pings_unread(target: Target) -> None:
    await _pings(target, reads=False)


def _commands(frame: Callable[[], bytes], user: Credentials = NOBODY) -> Attack:
    """Return the attack of a user that sends the same message again and again."""

    async def send(target: Target) -> None:
        connection = await _logged_in(target, user)
        built = frame()
        try:
            while not target.over:
                async with contextlib.aclosing(connection.exchange(built, timeout=30)) as replies:
                    async for _reply in replies:
                        done["bytes"] += len(built)
        finally:
            connection.abort()

    return send


async def _send(target: Target, frame: bytes, *, login: bool = False) -> None:
    """Send one message, whose reply is not awaited, and close."""
    if login:
        connection = await _logged_in(target)
        stream = connection._stream
        stream.write(frame)
        while stream.unsent and not stream.closed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        done["bytes"] += len(frame)
        connection.abort()
        return
    _reader, writer = await _connect(target.port)
    try:
        await _write(writer, frame)
    finally:
        writer.close()


async def _unfinished(target: Target) -> None:
    """Send most of a message and keep the connection."""
    connection = await _logged_in(target)
    connection._stream.write(UNFINISHED)
    done["bytes"] += len(UNFINISHED)
    while not target.over and not connection.closed:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    connection.abort()


async def _half_messages(target: Target) -> None:
    await _send(target, UNFINISHED, login=True)


async def _bombs_before_login(target: Target) -> None:
    reader, writer = await _connect(target.port)
    frame = bomb()
    try:
        while not target.over:
            await _write(writer, frame)
            if not await reader.read(MIB):
                return
    finally:
        writer.close()


async def _streams_unread(target: Target) -> None:
    """Read a stream from a time in the past, but none of its large replies."""
    connection = await _logged_in(target, ROOT)
    try:
        stage = {"allChangesForCluster": True, "startAtOperationTime": Timestamp(target.since, 1)}
        opening = {"aggregate": 1, "pipeline": [{"$changeStream": stage}], "cursor": {}}
        opening["cursor"] = {"batchSize": 0}
        reply = await connection.command("admin", opening, timeout=60)
        transport = connection._stream.transport
        assert transport is not None
        transport.pause_reading()
        cursor_id = Int64(reply["cursor"]["id"])
        more = {"getMore": cursor_id, "collection": "$cmd.aggregate", "batchSize": 100_000}
        transport.write(message(more, "admin") * 5)
        done["bytes"] += 1
        while not target.over and not connection.closed:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    finally:
        connection.abort()


def _stalls(content: bytes, *, admin: bool = False) -> Attack:
    """Return the attack that sends ``content`` and then keeps the connection."""

    async def stall(target: Target) -> None:
        reader, writer = await _connect(target.admin_port if admin else target.port)
        try:
            await _write(writer, content)
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + target.left):
                await reader.read()
        except TimeoutError:
            pass
        finally:
            writer.close()

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
    "20 pipeline pings, no login": (20, _pings),
    "200 pipeline pings, no login": (200, _pings),
    "200 never read their replies, no login": (200, _pings_unread),
    "1 user without rights, 14 MB of $in": (1, _commands(_large_in)),
    "10 users without rights, 14 MB of $in": (10, _commands(_large_in)),
    "1 user without rights, 500,000 stages": (1, _commands(_many_stages)),
    "20 send 45 MB in 4 KB of zstd, no login": (20, _bombs_before_login),
    "20 send 45 MB in 4 KB of zstd, logged in": (20, _commands(bomb)),
    "3 close within messages of 48 MB": (3, _half_messages),
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
        [asyncio.ensure_future(each) for each in tasks],
        timeout=target.until - time.monotonic() + 1,
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

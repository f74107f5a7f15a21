import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
import uvloop

from shard_client.errors import NetworkError
from shard_client.wire.connection import Connection, format_address, parse_address
from shard_client.wire.documents import encode
from shard_client.wire.frames import EXHAUST_ALLOWED, MORE_TO_COME, build_msg, parse_message
from tests.doubles.scripted_server import Asked, Script, ScriptedServer, scripted_server
from tests.harness.until import PATIENCE, until


@asynccontextmanager
async def connected(script: Script) -> AsyncIterator[tuple[ScriptedServer, Connection]]:
    """Connect to a server that answers by a script."""
    async with scripted_server(script) as server:
        connection = await Connection.open(("127.0.0.1", server.port), timeout=PATIENCE)
        yield server, connection
        connection.abort()


async def ping(connection: Connection, value: Any = 1, timeout: float = PATIENCE) -> dict[str, Any]:
    return await connection.command("db", {"ping": value}, timeout=timeout)


async def silent(asked: Asked) -> None:
    pass


async def _commands_of_all_sizes() -> None:
    async def echo(asked: Asked) -> None:
        asked.reply({"ok": 1.0, "echo": asked.command})

    async with connected(echo) as (_, connection):
        for size in (1, 10_000, 300_000, 10_000, 5_000_000, 1):
            reply = await ping(connection, "x" * size)
            assert reply["echo"] == {"ping": "x" * size, "$db": "db"}


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_commands_of_all_sizes_are_answered_under_both_event_loops(run):
    run(_commands_of_all_sizes())


async def test_the_ids_of_requests_begin_again():
    async def answer(asked: Asked) -> None:
        asked.reply({"ok": 1.0})

    async with connected(answer) as (server, connection):
        connection._request_ids = count(0x7FFFFFFF)
        for _ in range(2):
            await ping(connection)
        assert [asked.request_id for asked in server.asked[-2:]] == [0x7FFFFFFF, 0]


async def test_a_timeout_closes_the_connection():
    async with connected(silent) as (server, connection):
        with pytest.raises(NetworkError, match="did not answer"):
            await ping(connection, timeout=0.01)
        await until(lambda: not server.connections)
        with pytest.raises(NetworkError):
            await ping(connection)


async def test_a_cancelled_request_closes_the_connection():
    async with connected(silent) as (server, connection):
        request = asyncio.create_task(ping(connection))
        await until(lambda: server.asked)
        with pytest.raises(RuntimeError, match="in flight"):
            await ping(connection)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await until(lambda: not server.connections)


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff" * 16,
        b"\x10\0\0\0" + bytes(12),
        build_msg(encode({"ok": 1.0}), request_id=1, response_to=12345),
        build_msg(b"\x09\0\0\0\x02a\0\0\0", request_id=1, response_to=2),
    ],
)
async def test_an_invalid_reply_closes_the_connection(answer):
    async def nonsense(asked: Asked) -> None:
        asked.writer.write(answer)

    async with connected(nonsense) as (server, connection):
        with pytest.raises(NetworkError, match="protocol"):
            await ping(connection)
        await until(lambda: not server.connections)


async def test_exchange_forwards_and_yields_all_replies():
    async def exhaust(asked: Asked) -> None:
        assert asked.flags == EXHAUST_ALLOWED
        for n in range(3):
            asked.reply({"ok": 1.0, "n": n}, flags=MORE_TO_COME if n < 2 else 0)

    async with connected(exhaust) as (server, connection):
        frame = build_msg(encode({"x": 1, "$db": "db"}), request_id=999, flags=EXHAUST_ALLOWED)
        for _ in range(2):
            replies = [parse_message(reply) async for reply in connection.exchange(frame)]
            assert [reply.payload.document()["n"] for reply in replies] == [0, 1, 2]
        assert all(asked.request_id != 999 for asked in server.asked)


async def test_an_abandoned_exchange_closes_the_connection():
    async def endless(asked: Asked) -> None:
        for _ in range(2):
            asked.reply({"ok": 1.0}, flags=MORE_TO_COME)

    async with connected(endless) as (server, connection):
        frame = build_msg(encode({"x": 1, "$db": "db"}), request_id=1, flags=EXHAUST_ALLOWED)
        replies = connection.exchange(frame)
        await anext(replies)
        await replies.aclose()
        await until(lambda: not server.connections)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a.example:27018", ("a.example", 27018)),
        ("a.example", ("a.example", 27017)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:27020", ("::1", 27020)),
        ("[::1]", ("::1", 27017)),
        ("::1", ("::1", 27017)),
    ],
)
def test_addresses_are_parsed(text, address):
    assert parse_address(text) == address
    assert parse_address(format_address(address)) == address


@pytest.mark.parametrize(
    "text", ["", ":1", "a:", "a:x", "a:0", "a:65536", "[::1", "[::1]1", "[]:1"]
)
def test_invalid_addresses_are_refused(text):
    with pytest.raises(ValueError, match="host:port"):
        parse_address(text)

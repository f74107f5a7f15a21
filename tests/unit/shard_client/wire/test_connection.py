import asyncio
from typing import Any

import pytest
import uvloop

from shard_client.errors import NetworkError
from shard_client.wire.connection import Connection, format_address, parse_address
from shard_client.wire.documents import encode
from shard_client.wire.frames import (
    EXHAUST_ALLOWED,
    MORE_TO_COME,
    build_msg,
    parse_message,
)
from tests.doubles.wire_server import echo, reply_to, serving, silent
from tests.harness.until import PATIENCE

pytestmark = pytest.mark.timeout(60)


async def _commands_of_all_sizes() -> None:
    async with serving(echo) as (address, _):
        connection = await Connection.open(address, timeout=PATIENCE)
        for size in (1, 10_000, 300_000, 10_000, 5_000_000, 1):
            reply = await connection.command("db", {"ping": "x" * size}, timeout=PATIENCE)
            assert reply["echo"] == {"ping": "x" * size, "$db": "db"}
        await connection.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_commands_of_all_sizes_are_answered_under_both_event_loops(run):
    run(_commands_of_all_sizes())


async def test_a_timeout_closes_the_connection():
    async with serving(silent) as (address, server):
        connection = await Connection.open(address, timeout=PATIENCE)
        with pytest.raises(NetworkError, match="did not answer"):
            await connection.command("db", {"ping": 1}, timeout=0.01)
        await server.streams[0].wait_closed()
        with pytest.raises(NetworkError):
            await connection.command("db", {"ping": 1}, timeout=PATIENCE)


async def test_a_cancelled_request_closes_the_connection():
    asked = asyncio.Event()

    async def note(*_: Any) -> None:
        asked.set()

    async with serving(note) as (address, server):
        connection = await Connection.open(address, timeout=PATIENCE)
        request = asyncio.create_task(connection.command("db", {"ping": 1}, timeout=PATIENCE))
        await asked.wait()
        with pytest.raises(RuntimeError, match="in flight"):
            await connection.command("db", {"ping": 1}, timeout=PATIENCE)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await server.streams[0].wait_closed()


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
    async def nonsense(stream, message, document):
        stream.write(answer)

    async with serving(nonsense) as (address, server):
        connection = await Connection.open(address, timeout=PATIENCE)
        with pytest.raises(NetworkError, match="protocol"):
            await connection.command("db", {"ping": 1}, timeout=PATIENCE)
        await server.streams[0].wait_closed()


async def test_exchange_forwards_and_yields_all_replies():
    async def exhaust(stream, message, document):
        assert message.payload.flags == EXHAUST_ALLOWED
        for n in range(3):
            flags = MORE_TO_COME if n < 2 else 0
            stream.write(reply_to(message, {"ok": 1.0, "n": n}, flags))

    async with serving(exhaust) as (address, server):
        connection = await Connection.open(address, timeout=PATIENCE)
        frame = build_msg(encode({"x": 1, "$db": "db"}), request_id=999, flags=EXHAUST_ALLOWED)
        for _ in range(2):
            replies = [parse_message(reply) async for reply in connection.exchange(frame)]
            assert [reply.payload.document()["n"] for reply in replies] == [0, 1, 2]
        assert all(message.request_id != 999 for message in server.messages)
        connection.abort()


async def test_an_abandoned_exchange_closes_the_connection():
    async def endless(stream, message, document):
        for _ in range(2):
            stream.write(reply_to(message, {"ok": 1.0}, MORE_TO_COME))

    async with serving(endless) as (address, server):
        connection = await Connection.open(address, timeout=PATIENCE)
        frame = build_msg(encode({"x": 1, "$db": "db"}), request_id=1, flags=EXHAUST_ALLOWED)
        replies = connection.exchange(frame)
        await anext(replies)
        await replies.aclose()
        await server.streams[0].wait_closed()


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

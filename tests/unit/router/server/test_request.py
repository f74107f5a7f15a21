"""Parsing requests; damaged ones raise the expected errors and no others."""

import asyncio
import struct
from contextlib import suppress

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.server.request import read_request
from shard_client.errors import CommandError, ProtocolError
from shard_client.wire.frames import EXHAUST_ALLOWED, MORE_TO_COME, build_msg
from shard_client.wire.frames import compress_frame as compressed
from tests.doubles.old_driver import build_op_query
from tests.unit.router.server.test_gradual_decoding import pause

PING = bson.encode({"ping": 1, "$db": "admin"})
ZLIB = 2
MESSAGES = [
    build_msg(PING, request_id=7),
    build_msg(PING, request_id=7, flags=EXHAUST_ALLOWED | 1),
    build_msg(PING, request_id=7, sequences={"documents": [PING, PING]}),
    build_op_query("admin.$cmd", bson.encode({"isMaster": 1}), request_id=7),
    compressed(build_msg(PING, request_id=7), ZLIB),
]


async def test_the_command_s_name_is_found_without_decoding() -> None:
    body = b"\0\0\0\0\4"  # a malformed array, which would fail to decode
    frame = build_msg(bson.encode({"insert": "c", "$db": "d"}), request_id=9, flags=MORE_TO_COME)
    request = await read_request(frame)
    assert (request.name, request.request_id, request.wants_reply) == ("insert", 9, False)
    assert request.frame is frame
    assert (await read_request(build_msg(PING, request_id=1) + body)).name == "ping"


async def test_a_body_after_its_sequences_is_accepted() -> None:
    sequence = b"documents\0" + PING
    sections = b"\1" + struct.pack("<i", len(sequence) + 4) + sequence + b"\0" + PING
    frame = struct.pack("<iiiiI", 20 + len(sections), 3, 0, 2013, 0) + sections
    request = await read_request(frame)
    assert request.name == "ping"
    assert await request.command(pause) == bson.decode(PING)


async def test_a_compressed_request_records_its_compressor() -> None:
    request = await read_request(compressed(build_msg(PING, request_id=5), ZLIB))
    assert (request.name, request.compressor, request.request_id) == ("ping", ZLIB, 5)
    assert request.frame == build_msg(PING, request_id=5)


async def test_a_wrapped_query_is_unwrapped() -> None:
    query = bson.encode({"$query": {"isMaster": 1}, "$readPreference": {"mode": "primary"}})
    request = await read_request(build_op_query("db.$cmd", query, request_id=1))
    assert request.name == "isMaster"
    assert request.database(await request.command(pause)) == "db"


@pytest.mark.parametrize("database", [5, None])
async def test_a_database_that_is_not_a_string_is_refused(database: object) -> None:
    request = await read_request(build_msg(bson.encode({"ping": 1, "$db": database}), request_id=1))
    with pytest.raises(CommandError):
        request.database(await request.command(pause))


@pytest.mark.parametrize("command", [{}, {"x" * 200: 1}, {"": 1}])
async def test_documents_without_a_command_name_have_none(command: dict[str, int]) -> None:
    assert (await read_request(build_msg(bson.encode(command), request_id=1))).name == ""


def parse_frame(frame: bytes) -> None:
    """Parse a frame as the server does; only the two expected errors may be raised."""

    async def read() -> None:
        request = await read_request(frame)
        request.database(await request.command(pause))

    with suppress(ProtocolError, CommandError):
        asyncio.run(read())


@given(st.sampled_from(MESSAGES), st.data())
def test_damaged_messages_are_errors_or_commands(message: bytes, data: st.DataObject) -> None:
    damaged = bytearray(message)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(4, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    parse_frame(bytes(damaged))

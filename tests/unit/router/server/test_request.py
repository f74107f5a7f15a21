"""Parsing requests; damaged ones raise the expected errors and no others."""

import asyncio
import struct
from functools import partial

import bson
import pytest

from router.server.request import read_request
from shard_client.errors import CommandError
from shard_client.wire.frames import MORE_TO_COME, build_msg
from tests.doubles.old_driver import build_op_query

PING = bson.encode({"ping": 1, "$db": "admin"})
PAUSE = partial(asyncio.sleep, 0)


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
    assert await request.command(PAUSE) == bson.decode(PING)


async def test_a_wrapped_query_is_unwrapped() -> None:
    query = bson.encode({"$query": {"isMaster": 1}, "$readPreference": {"mode": "primary"}})
    request = await read_request(build_op_query("db.$cmd", query, request_id=1))
    assert request.name == "isMaster"
    assert request.database(await request.command(PAUSE)) == "db"


@pytest.mark.parametrize("database", [5, None])
async def test_a_database_that_is_not_a_string_is_refused(database: object) -> None:
    request = await read_request(build_msg(bson.encode({"ping": 1, "$db": database}), request_id=1))
    with pytest.raises(CommandError):
        request.database(await request.command(PAUSE))


@pytest.mark.parametrize("command", [{}, {"x" * 200: 1}, {"": 1}])
async def test_documents_without_a_command_name_have_none(command: dict[str, int]) -> None:
    assert (await read_request(build_msg(bson.encode(command), request_id=1))).name == ""

"""Requests: their names and databases, and the decoding of large ones in pieces."""

import asyncio
import struct
from typing import Any

import bson
import pytest
from bson import Timestamp
from bson.code import Code
from bson.codec_options import CodecOptions
from hypothesis import given

from router.request import gradual_decoding
from router.request.gradual_decoding import PIECE_SIZE, decode_gradually
from router.server.client_message import read_message
from shard_client.errors import CommandError, ProtocolError
from shard_client.wire.documents import CODEC, decode
from shard_client.wire.frames import MORE_TO_COME, build_msg
from tests.unit.shard_client.bson_values import documents

SMALL = 16


async def pause() -> None:
    await asyncio.sleep(0)


# Without Code with a scope, which is never cut, and documents in the form of a DBRef, which
# decode to plain documents when they are cut.
CUT = documents.filter(
    lambda document: not any(name in repr(document) for name in ("Code", "DBRef", "$ref"))
)


@given(CUT)
def test_decoding_in_pieces_gives_the_same_document(document: dict[str, Any]) -> None:
    encoded = bson.encode(document)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradual_decoding, "PIECE_SIZE", SMALL)
        assert asyncio.run(decode_gradually(encoded, pause)) == decode(encoded)


async def test_the_loop_runs_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counting(encoded: bytes, options: CodecOptions[dict[str, Any]] = CODEC) -> dict[str, Any]:
        sizes.append(len(encoded))
        return decode(encoded, options)

    monkeypatch.setattr(gradual_decoding, "decode", counting)
    times = [Timestamp(number, 1) for number in range(100_000)]
    document = {"a": {"b": times, "c": {str(number): None for number in range(10_000)}}}
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    assert await decode_gradually(bson.encode(document), pause) == document
    counter.cancel()
    assert max(sizes) < 2 * PIECE_SIZE
    assert turns >= len(sizes) > 20


async def test_costly_values_that_cannot_be_cut_are_refused() -> None:
    scope = {"a": [Timestamp(1, 1)] * PIECE_SIZE}
    with pytest.raises(ProtocolError, match="code with scope"):
        await decode_gradually(bson.encode({"a": Code("", scope)}), pause)


async def test_deep_nesting_is_refused() -> None:
    document: dict[str, Any] = {"pad": b"x" * PIECE_SIZE}
    for _ in range(201):
        document = {"a": document}
    with pytest.raises(ProtocolError, match="nests deeper"):
        await decode_gradually(bson.encode(document), pause)


async def test_large_stages_of_a_large_pipeline_stay_raw() -> None:
    many = list(range(100_000))
    stages: list[Any] = [
        {"$changeStream": {"fullDocument": "x" * PIECE_SIZE}},
        {"$match": {"a": {"$in": many}}},
        {"$match": {"a": 1}},
        {"$match": many},
        {"$match": {"a": many}, "$project": {"a": 1}},
        {"$unset": "x" * PIECE_SIZE},
        7,
    ]
    command = {"aggregate": "c", "pipeline": stages, "cursor": {}}
    encoded = bson.encode(command)
    decoded = await decode_gradually(encoded, pause)
    raw = [number for number, each in enumerate(decoded["pipeline"]) if hasattr(each, "raw")]
    assert raw == [1]
    assert bson.encode(decoded) == encoded


PING = bson.encode({"ping": 1, "$db": "admin"})


async def test_the_command_s_name_is_found_without_decoding() -> None:
    body = b"\0\0\0\0\4"  # a malformed array, which would fail to decode
    frame = build_msg(bson.encode({"insert": "c", "$db": "d"}), request_id=9, flags=MORE_TO_COME)
    request = await read_message(frame)
    assert (request.name, request.request_id, request.wants_reply) == ("insert", 9, False)
    assert request.frame is frame
    assert (await read_message(build_msg(PING, request_id=1) + body)).name == "ping"


async def test_a_body_after_its_sequences_is_accepted() -> None:
    sequence = b"documents\0" + PING
    sections = b"\1" + struct.pack("<i", len(sequence) + 4) + sequence + b"\0" + PING
    frame = struct.pack("<iiiiI", 20 + len(sections), 3, 0, 2013, 0) + sections
    request = await read_message(frame)
    assert request.name == "ping"
    assert await request.command(pause) == bson.decode(PING)


async def test_a_wrapped_query_is_unwrapped() -> None:
    query = bson.encode({"$query": {"isMaster": 1}, "$readPreference": {"mode": "primary"}})
    content = b"\0\0\0\0db.$cmd\0" + struct.pack("<ii", 0, -1) + query
    request = await read_message(struct.pack("<iiii", 16 + len(content), 1, 0, 2004) + content)
    assert request.name == "isMaster"
    assert request.database(await request.command(pause)) == "db"


@pytest.mark.parametrize("database", [5, None])
async def test_a_database_that_is_not_a_string_is_refused(database: object) -> None:
    request = await read_message(build_msg(bson.encode({"ping": 1, "$db": database}), request_id=1))
    with pytest.raises(CommandError):
        request.database(await request.command(pause))


@pytest.mark.parametrize("command", [{}, {"x" * 200: 1}, {"": 1}])
async def test_documents_without_a_command_name_have_none(command: dict[str, int]) -> None:
    assert (await read_message(build_msg(bson.encode(command), request_id=1))).name == ""

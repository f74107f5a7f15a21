"""Large documents decode in pieces to the same values, without blocking the loop."""

import asyncio
from typing import Any

import bson
import pytest
from bson import Timestamp
from bson.code import Code
from hypothesis import given

from router.server import gradual_decoding
from router.server.gradual_decoding import PIECE_SIZE, decode_gradually
from shard_client.errors import ProtocolError
from shard_client.wire.documents import decode
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

    def counting(encoded: bytes) -> dict[str, Any]:
        sizes.append(len(encoded))
        return decode(encoded)

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

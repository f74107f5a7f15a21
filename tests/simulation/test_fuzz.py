"""The router survives arbitrary input from clients and shards: it answers or closes."""

import asyncio
import struct
from contextlib import suppress
from random import Random
from typing import Any

import bson
import pytest
from bson import Int64, ObjectId, Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedded.client import Client
from router.commands.command import COMMANDS
from shard_client.errors import CommandError, ErrorCode, NetworkError, ProtocolError
from shard_client.wire.connection import Connection
from shard_client.wire.frames import build_msg
from tests.simulation.driver import DriverCursor, ask
from tests.simulation.world import World, visit

pytestmark = pytest.mark.timeout(600)

_FEW = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
_CURSOR = "the cursor that is open"
_TOKEN = {"_data": "8268E77800000000222B0429296E1404"}
_PATIENCE = 20.0

JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [0, 1, -1, 1.5, float("nan"), "", "c", "$x", None, True, [], {}, [1], [{}], [None], {"a": 1},
     Int64(5), Int64(-1), Int64(2**62), ObjectId(), Timestamp(1, 1), b"", {"id": b"x" * 16},
     {"level": "majority"}, {"level": "snapshot"}, {"mode": "nearest"}, {"mode": 1}, _CURSOR,
     [Int64(1)], [_CURSOR], {"batchSize": 0}, {"batchSize": -1}, {"batchSize": "x"}, _TOKEN,
     {"_data": "82"}, {"_data": 1}, [{"id": b"x" * 16}], [{"id": 1}], {"processId": ObjectId()},
     {"processId": ObjectId(), "counter": Int64(0)}, {"clusterTime": Timestamp(2**31, 1)},
     bson.Regex("("), bson.Code("x"), bson.MinKey(), bson.Decimal128("NaN"), "\0", "a" * 300]
)  # fmt: skip
OPTIONS = st.sampled_from(
    ["resumeAfter", "startAfter", "startAtOperationTime", "fullDocument", "allChangesForCluster",
     "fullDocumentBeforeChange", "showExpandedEvents", "showSystemEvents", "fromMongos", "x"]
)  # fmt: skip
STREAMS = st.dictionaries(OPTIONS, JUNK | st.just("updateLookup"), max_size=3)
STAGES = st.one_of(
    st.builds(lambda value: {"$changeStream": value}, STREAMS | JUNK),
    st.builds(lambda name, value: {name: value},
              st.sampled_from(["$match", "$project", "$set", "$unset", "$redact", "$replaceRoot",
                               "$changeStreamSplitLargeEvent", "$limit", "$x", ""]), JUNK),
)  # fmt: skip
PIPELINES = st.lists(STAGES, max_size=3)
FIELDS = st.dictionaries(
    st.sampled_from(
        ["collection", "batchSize", "maxTimeMS", "maxAwaitTimeMS", "topologyVersion", "lsid",
         "txnNumber", "autocommit", "startTransaction", "$clusterTime", "$readPreference",
         "readConcern", "writeConcern", "comment", "collation", "let", "hint", "explain", "cursors",
         "apiVersion", "apiStrict", "client", "compression", "helloOk", "speculativeAuthenticate",
         "$db", "cursor", "x"]
    ),
    JUNK,
    max_size=4,
)  # fmt: skip
OTHERS = ("find", "insert", "count", "saslStart", "authenticate", "noSuchThing", "")
# These commands wait, or end the process.
NAMES = st.sampled_from(sorted({*COMMANDS, *OTHERS} - {"shutdown", "configureFailPoint"}))
REQUESTS = st.one_of(
    st.builds(lambda name, value, fields: {name: value, **fields}, NAMES, JUNK, FIELDS),
    st.builds(
        lambda target, pipeline, cursor, fields: {
            "aggregate": target, "pipeline": pipeline, "cursor": cursor, **fields,
        },
        st.sampled_from([1, "c", "", "system.x", 2, None]), PIPELINES | JUNK,
        st.just({}) | JUNK, FIELDS,
    ),
    st.builds(
        lambda fields: {"getMore": _CURSOR, "collection": "$cmd.aggregate", **fields}, FIELDS
    ),
)  # fmt: skip


def filled(value: Any, cursor_id: int) -> Any:
    """Replace the placeholder by the open cursor's id."""
    if isinstance(value, str) and value == _CURSOR:
        return Int64(cursor_id)
    if isinstance(value, dict):
        return {name: filled(each, cursor_id) for name, each in value.items()}
    if isinstance(value, list):
        return [filled(each, cursor_id) for each in value]
    return value


@_FEW
@given(
    st.lists(st.tuples(st.sampled_from(["admin", "db", ""]), REQUESTS), min_size=1, max_size=8),
    st.booleans(),
)
def test_every_command_gets_an_answer(
    requests: list[tuple[str, dict[str, Any]]], upstream: bool
) -> None:
    async def body(world: World) -> None:
        stream = DriverCursor(world.router.address, "db", 1, b"s" * 16)
        await stream.open({}, [], None)
        for database, request in requests:
            connection = await Connection.open(world.router.address, timeout=_PATIENCE)
            command = {"$db": database, **filled(request, stream.cursor_id)}
            try:
                message = bson.encode({**request_first(command)})
            except (bson.errors.InvalidDocument, OverflowError):
                continue
            try:
                reply = bson.decode(await connection.command_raw(message, timeout=_PATIENCE))
            except NetworkError as error:  # closing the connection is an answer too
                if "did not answer" in str(error):
                    raise
            else:
                assert reply["ok"] in (0.0, 1.0)
                assert reply.get("code") != ErrorCode.InternalError, (command, reply)
            connection.abort()
        assert (await ask(world.router.address, {"ping": 1}))["ok"]
        stream.vanish()

    assert visit(body, upstream=upstream) == []


def request_first(command: dict[str, Any]) -> dict[str, Any]:
    """Order the fields as drivers do: the command's name first."""
    return {name: value for name, value in command.items() if name != "$db"} | {
        "$db": command["$db"]
    }


GOOD_FRAMES = [
    build_msg(bson.encode(document), request_id=7)
    for document in (
        {"hello": 1, "$db": "admin"},
        {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "db"},
        {"getMore": Int64(1), "collection": "$cmd.aggregate", "$db": "db"},
    )
]


@st.composite
def invalid_bytes(draw: st.DrawFn) -> bytes:
    """Draw a damaged frame or random bytes: whole, cut, or with a wrong length."""
    if draw(st.booleans()):
        body = bytearray(draw(st.sampled_from(GOOD_FRAMES)))
        for _ in range(draw(st.integers(0, 4))):
            body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
        return bytes(body[: draw(st.integers(1, len(body)))])
    body = bytearray(draw(st.binary(min_size=0, max_size=120)))
    op_code = draw(st.sampled_from([2013, 2012, 2004, 1, 2010, 0]))
    return struct.pack("<iiii", 16 + len(body), 1, 0, op_code) + bytes(body)


@_FEW
@given(st.lists(st.lists(invalid_bytes(), min_size=1, max_size=4), min_size=1, max_size=4))
def test_invalid_bytes_affect_only_their_connection(clients: list[list[bytes]]) -> None:
    async def body(world: World) -> None:
        good = await Connection.open(world.router.address, timeout=_PATIENCE)
        for pieces in clients:
            transport, _ = await world.loop.create_connection(
                asyncio.Protocol, *world.router.address
            )
            for piece in pieces:
                transport.write(piece)
                await asyncio.sleep(0.01)
            assert (await good.command("admin", {"ping": 1}, timeout=_PATIENCE))["ok"]
            transport.abort()
        good.abort()
        await asyncio.sleep(0.1)
        status = await ask(world.router.address, {"serverStatus": 1})
        assert status["connections"]["current"] == 1

    assert visit(body) == []


@pytest.mark.parametrize("seed", range(30))
def test_invalid_bytes_from_shards_affect_only_their_streams(seed: int) -> None:
    chance = Random(seed)
    rate = chance.choice((0.01, 0.1, 0.5))

    def garble(piece: bytes) -> bytes:
        if chance.random() > rate:
            return piece
        spoilt = bytearray(piece)
        for _ in range(chance.choice((1, 1, 3))):
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
        return bytes(spoilt)

    async def watch(world: World) -> None:
        cursor = DriverCursor(world.router.address, "db", 1, b"s" * 16)
        with suppress(CommandError, NetworkError, ProtocolError, KeyError):
            await cursor.open({}, [], None)
            for _ in range(10):
                await cursor.more(None, 100)
        await cursor.close()

    async def body(world: World) -> None:
        for number in range(12):
            for link in world.network.links_of(world.router.name):
                link.garble = garble if link.client == world.router.name else None
            insert = {"insert": "c", "documents": [{"_id": number}]}
            await world.cluster.mongos.run_command("db", insert, Client())
            await watch(world)
        for link in world.network.links_of(world.router.name):
            link.garble = None
            if link.client == world.router.name:
                world.network.cut(link)
        await asyncio.sleep(3.0)
        cursor = DriverCursor(world.router.address, "db", 1, b"t" * 16)
        await cursor.open({}, [], None)
        await cursor.close()

    assert visit(body, seed=seed) == []

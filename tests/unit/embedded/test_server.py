"""The listener: real drivers, valid and malformed raw frames, and a clean shutdown."""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import bson
import pymongo
import pytest
from pymongo import AsyncMongoClient

from embedded.mongod import Mongod
from shard_client.wire.frames import (
    EXHAUST_ALLOWED,
    MORE_TO_COME,
    OpMsg,
    build_msg,
    compress_frame,
    parse_message,
)
from tests.doubles.old_driver import build_op_query, op_reply_document
from tests.harness.until import PATIENCE


@pytest.fixture
async def member() -> AsyncIterator[Mongod]:
    mongod = Mongod("rs0")
    await mongod.start()
    yield mongod
    await mongod.stop()
    assert mongod.connections == 0
    assert len(mongod.cursors) == 0


class Wire:
    """A client that sends raw frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, member: Mongod) -> "Wire":
        return cls(*await asyncio.open_connection(*member.address))

    async def send(self, frame: bytes) -> None:
        self.writer.write(frame)
        await self.writer.drain()

    async def receive_frame(self) -> bytes:
        head = await self.reader.readexactly(4)
        return head + await self.reader.readexactly(struct.unpack("<i", head)[0] - 4)

    async def receive(self) -> Any:
        return parse_message(await self.receive_frame())

    async def ask(self, command: dict[str, Any], flags: int = 0) -> dict[str, Any]:
        await self.send(build_msg(bson.encode(command), request_id=1, flags=flags))
        message = await self.receive()
        assert message.response_to == 1
        return message.payload.document()


@pytest.mark.parametrize("options", ["directConnection=true", "replicaSet=rs0", "compressors=zlib"])
async def test_a_driver_works_on_it(member: Mongod, options: str) -> None:
    host, port = member.address
    async with AsyncMongoClient(f"mongodb://{host}:{port}/?{options}") as client:
        assert await client.is_primary
        collection = client.db.c
        await collection.insert_many([{"_id": i, "n": i} for i in range(500)])
        assert len(await collection.find(batch_size=100).to_list()) == 500
        await collection.create_index("n")
        with pytest.raises(pymongo.errors.DuplicateKeyError):
            await collection.insert_one({"_id": 7})
        found = await collection.find_one_and_update(
            {"_id": 7}, [{"$set": {"m": {"$add": ["$n", 1]}}}], return_document=True
        )
        assert found == {"_id": 7, "n": 7, "m": 8}
        async with client.start_session(causal_consistency=True) as session:
            async with await session.start_transaction():
                await collection.insert_one({"_id": "t", "n": "t"}, session=session)
                await collection.delete_one({"_id": 1}, session=session)
            assert await collection.count_documents({}, session=session) == 500
        async with await collection.watch() as stream:
            await collection.update_one({"_id": 2}, {"$set": {"x": 1}})
            event = await stream.next()
        assert event["updateDescription"]["updatedFields"] == {"x": 1}
        assert event["documentKey"] == {"_id": 2}


async def test_types_round_trip(member: Mongod) -> None:
    document = {
        "_id": bson.ObjectId(),
        "long": bson.Int64(1),
        "decimal": bson.Decimal128("1.10"),
        "uuid": bson.Binary(b"0" * 16, 4),
        "bytes": b"x",
        "ts": bson.Timestamp(5, 6),
        "regex": bson.Regex("a", "i"),
        "ref": bson.DBRef("c", 1),
        "min": bson.MinKey(),
        "code": bson.Code("f"),
        "order": {"z": 1, "a": 2},
    }
    wire = await Wire.to(member)
    await wire.ask({"insert": "c", "documents": [document], "$db": "db"})
    find = bson.encode({"find": "c", "filter": {"ref.$id": 1}, "$db": "db"})
    await wire.send(build_msg(find, request_id=1))
    raw = (await wire.receive()).payload.body
    assert bson.encode(document) in raw
    wire.writer.close()


async def test_a_first_hello_in_an_op_query_is_answered(member: Mongod) -> None:
    wire = await Wire.to(member)
    query = bson.encode({"isMaster": 1, "helloOk": True})
    await wire.send(build_op_query("admin.$cmd", query, request_id=5))
    reply = bson.decode(op_reply_document(await wire.receive_frame(), response_to=5))
    assert (reply["ismaster"], reply["helloOk"], reply["setName"]) == (True, True, "rs0")
    await wire.send(build_op_query("admin.$cmd", bson.encode({"ping": 1}), request_id=6))
    reply = bson.decode(op_reply_document(await wire.receive_frame(), response_to=6))
    assert (reply["ok"], reply["code"]) == (0.0, 352)
    wire.writer.close()


async def test_hello_streams_when_the_client_allows_it(member: Mongod) -> None:
    wire = await Wire.to(member)
    hello: dict[str, Any] = {"hello": 1, "$db": "admin"}
    first = await wire.ask(dict(hello))
    hello |= {"topologyVersion": first["topologyVersion"], "maxAwaitTimeMS": 10}
    await wire.send(build_msg(bson.encode(hello), request_id=9, flags=EXHAUST_ALLOWED))
    previous = 9
    for _ in range(3):
        message = await wire.receive()
        assert message.response_to == previous
        assert message.payload.flags & MORE_TO_COME
        assert message.payload.document()["isWritablePrimary"] is True
        previous = message.request_id
    wire.writer.close()


async def test_compressed_requests_get_compressed_replies(member: Mongod) -> None:
    wire = await Wire.to(member)
    frame = build_msg(bson.encode({"ping": 1, "$db": "admin"}), request_id=3)
    await wire.send(compress_frame(frame, 2))
    message = await wire.receive()
    assert (message.compressor, message.response_to) == (2, 3)
    assert isinstance(message.payload, OpMsg)
    wire.writer.close()


async def test_unacknowledged_writes_get_no_reply(member: Mongod) -> None:
    wire = await Wire.to(member)
    insert = {"insert": "c", "documents": [{"_id": 1}], "$db": "db"}
    await wire.send(build_msg(bson.encode(insert), request_id=2, flags=MORE_TO_COME))
    assert (await wire.ask({"count": "c", "$db": "db"}))["n"] == 1
    wire.writer.close()


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("<iiii", 8, 1, 0, 2013),
        struct.pack("<iiii", 2**31 - 1, 1, 0, 2013),
        struct.pack("<iiii", 16, 1, 0, 2013),
        struct.pack("<iiii", 20, 1, 0, 9999) + b"\0\0\0\0",
        build_msg(b"\x08\0\0\0junk", request_id=1),
        build_msg(bson.encode({"ping": 1}), request_id=1),
        build_msg(bson.encode({"ping": 1, "$db": "a"}), request_id=1, flags=4),
    ],
    ids=["short", "huge", "empty", "opcode", "not BSON", "no $db", "flags"],
)
async def test_a_protocol_violation_closes_only_its_connection(
    member: Mongod, frame: bytes
) -> None:
    bad, good = await Wire.to(member), await Wire.to(member)
    await bad.send(frame)
    assert await bad.reader.read() == b""
    assert (await good.ask({"ping": 1, "$db": "admin"}))["ok"] == 1.0
    for wire in (bad, good):
        wire.writer.close()


async def test_an_internal_error_is_an_error_reply(
    member: Mongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr(member, "execute", broken)
    wire = await Wire.to(member)
    reply = await wire.ask({"ping": 1, "$db": "admin"})
    assert (reply["ok"], reply["code"]) == (0.0, 1)
    wire.writer.close()


async def test_a_disconnect_ends_a_waiting_get_more(member: Mongod) -> None:
    wire = await Wire.to(member)
    watch = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "db"}
    cursor = (await wire.ask(watch))["cursor"]["id"]
    more = {"getMore": cursor, "collection": "$cmd.aggregate", "maxTimeMS": 60_000, "$db": "db"}
    await wire.send(build_msg(bson.encode(more), request_id=2))
    other = await Wire.to(member)
    while (await other.ask({**more, "maxTimeMS": 1}))["code"] != 143:
        pass
    wire.writer.close()
    async with asyncio.timeout(PATIENCE):
        while (await other.ask({**more, "maxTimeMS": 1}))["code"] != 43:
            pass
    other.writer.close()


async def test_killing_a_cursor_ends_its_waiting_get_more(member: Mongod) -> None:
    one, other = await Wire.to(member), await Wire.to(member)
    watch = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "db"}
    cursor = (await one.ask(watch))["cursor"]["id"]
    more = {"getMore": cursor, "collection": "$cmd.aggregate", "maxTimeMS": 60_000, "$db": "db"}
    await one.send(build_msg(bson.encode(more), request_id=2))
    kill = {"killCursors": "$cmd.aggregate", "cursors": [cursor], "$db": "db"}
    while (await other.ask({**more, "maxTimeMS": 1}))["code"] != 143:
        pass
    assert (await other.ask(kill))["cursorsKilled"] == [cursor]
    assert (await one.receive()).payload.document()["code"] == 237
    for wire in (one, other):
        wire.writer.close()


async def test_an_idle_member_writes_no_ops() -> None:
    mongod = Mongod("rs0", noop_interval=0.01)
    await mongod.start()
    before = mongod.oplog.last_ts
    assert before is not None
    assert await mongod.oplog.wait_beyond(before, PATIENCE)
    await mongod.stop()
    after = mongod.oplog.last_ts
    assert after is not None
    assert not await mongod.oplog.wait_beyond(after, 0.05)

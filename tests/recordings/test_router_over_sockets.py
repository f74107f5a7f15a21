"""The recorded shards play over sockets; the whole router gives what the recorded mongos gave."""

import asyncio
import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import bson
import pytest
from bson import Int64, Timestamp
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient

from tests.harness.replay import EventTape, RecordedTape, ReplayMember, cursor_body
from tests.harness.routers import RouterProcess, start_router
from tests.recordings import recorded
from tests.recordings.workload import STREAMS

LATER = "826B00FFFF000000012B0229296E04"
"""A high water mark after everything recorded: what an idle member goes on to promise."""

SHARDS = ("shard0", "shard1", "shard2", "shard3")
FAILING = {"coll-big", "bad-id"}
RAW = CodecOptions(document_class=RawBSONDocument)


class FailingTape:
    """A shard whose first getMore fails, as a shard's does that opened with batchSize 0."""

    def __init__(self, error: dict[str, Any], start: str) -> None:
        self._error, self._start = error, start

    def open(self, command: dict[str, Any]) -> bytes:
        return cursor_body(7, "rec.$cmd.aggregate", [], self._start, first=True)

    def more(self, batch_size: int) -> tuple[bytes, bool]:
        return bson.encode(self._error), False


def tape(stream: str, via: str) -> RecordedTape | FailingTape:
    replies = recorded.of(stream, via)
    if replies[0].pbrt is not None:
        return RecordedTape([reply.raw for reply in replies], LATER)
    message = replies[0].document["errmsg"].replace(
        "PlanExecutor error during aggregation", "Executor error during getMore"
    )
    error = {**bson.decode(replies[0].raw), "errmsg": message}
    first = bson.decode(recorded.of(stream, "mongos")[0].raw)
    return FailingTape(error, first["cursor"]["postBatchResumeToken"]["_data"])


@contextlib.asynccontextmanager
async def playing(stream: str) -> AsyncIterator[tuple[RouterProcess, list[ReplayMember]]]:
    """Run the recorded members and a router on them; shard3 joins by its recorded insert."""
    async with contextlib.AsyncExitStack() as stack:
        members = []
        hosts: dict[str, str] = {}
        for shard in SHARDS:
            member = ReplayMember(shard, lambda _, shard=shard: tape(stream, shard))
            hosts[shard] = await member.start()
            stack.push_async_callback(member.stop)
            members.append(member)
        config = ReplayMember("cfg", lambda _: config_tape(hosts))
        config.documents["shards"] = [
            {"_id": shard, "host": hosts[shard], "state": 1} for shard in SHARDS[:3]
        ]
        configdb = await config.start()
        stack.push_async_callback(config.stop)
        members.append(config)
        router = start_router(configdb)
        # In a thread: the members go on answering meanwhile.
        stack.push_async_callback(asyncio.to_thread, router.stop)
        yield router, members


def config_tape(hosts: dict[str, str]) -> EventTape:
    """The stream on config.shards: shard3 joins just before its first recorded event."""
    first = next(recorded.events(recorded.of("cluster", "shard3")))
    time = bson.decode(first)["clusterTime"]
    joined = Timestamp(time.time, time.inc - 1)
    key = "5A1004" + "00" * 16 + "463C5F696400" + b"shard3".hex().upper() + "000004"
    token = f"82{joined.time:08X}{joined.inc:08X}2B022C0100296E{key}"
    event = {
        "_id": {"_data": token},
        "operationType": "insert",
        "clusterTime": joined,
        "fullDocument": {"_id": "shard3", "host": hosts["shard3"], "state": 1},
        "ns": {"db": "config", "coll": "shards"},
        "documentKey": {"_id": "shard3"},
    }
    start = bson.decode(recorded.of("cluster", "mongos")[0].pbrt or b"")["_data"]
    return EventTape(9, "config.shards", start, [(token, bson.encode(event))], LATER)


async def drain(
    client: AsyncMongoClient[Any], stream: str
) -> tuple[list[bytes], RawBSONDocument, int]:
    """Run the recorded commands' stream to its end, or until all recorded events have come."""
    replies = recorded.of(stream, "mongos")
    expected = sum(len(reply.events) for reply in replies)
    closes = replies[-1].cursor_id == 0 and stream not in FAILING
    opening = dict(replies[0].command)
    database, _, _, _ = STREAMS[stream]
    reply = await client[database].command(opening, codec_options=RAW)
    cursor_id = reply["cursor"]["id"]
    collection = reply["cursor"]["ns"].partition(".")[2]
    assert reply["cursor"]["postBatchResumeToken"].raw == replies[0].pbrt
    events: list[bytes] = []
    while len(events) < expected or (closes and cursor_id):
        more = {"getMore": Int64(cursor_id), "collection": collection, "maxTimeMS": 1000}
        reply = await client[database].command(more, codec_options=RAW)
        events += [bytes(event.raw) for event in reply["cursor"]["nextBatch"]]
        cursor_id = reply["cursor"]["id"]
    return events, reply, cursor_id


@pytest.mark.parametrize("stream", [name for name in recorded.streams() if name not in FAILING])
async def test_the_router_gives_what_mongos_gave(stream: str) -> None:
    replies = recorded.of(stream, "mongos")
    expected = list(recorded.events(replies))
    async with playing(stream) as (router, _), AsyncMongoClient(router.uri) as client:
        events, last, cursor_id = await drain(client, stream)
        assert Counter(events) == Counter(expected)
        tokens = [bson.decode(event)["_id"]["_data"] for event in events]
        assert tokens == [bson.decode(event)["_id"]["_data"] for event in expected]
        if replies[-1].cursor_id == 0:
            assert cursor_id == 0
            assert last["cursor"]["postBatchResumeToken"].raw == replies[-1].pbrt


@pytest.mark.parametrize("stream", sorted(FAILING))
async def test_the_router_fails_as_mongos_failed(stream: str) -> None:
    expected = recorded.of(stream, "mongos")[-1].document
    async with playing(stream) as (router, _), AsyncMongoClient(router.uri) as client:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the driver's class depends on the code
            await drain(client, stream)
        details = caught.value.details
        assert details["code"] == expected["code"]
        assert details["codeName"] == expected["codeName"]
        assert sorted(details.get("errorLabels", [])) == sorted(expected.get("errorLabels", []))


async def test_a_closed_stream_leaves_no_cursor_on_the_shards() -> None:
    async with playing("coll-orders") as (router, members):
        async with AsyncMongoClient(router.uri) as client:
            await drain(client, "coll-orders")
            await client.admin.command("ping")
        await asyncio.to_thread(router.stop)
        assert [member.tapes for member in members] == [{}] * len(members)

"""The whole router on replayed shards returns the recorded mongos's events."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import bson
import pytest
import pytest_asyncio
from bson import Int64, Timestamp
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

from tests.doubles.replay import EventTape, PreparedEvents, RecordedTape, ReplayMember, cursor_body
from tests.harness.routers import RouterProcess, start_router
from tests.harness.until import until
from tests.recordings import recorded
from tests.recordings.workload import STREAMS

LATER = "826B00FFFF000000012B0229296E04"
"""A high water mark after all recorded events: the watermark of an idle member."""

CURSOR_IDS = itertools.count(1)
SHARDS = ("shard0", "shard1", "shard2", "shard3")
pytestmark = pytest.mark.asyncio(loop_scope="module")

FAILING = {"coll-big", "bad-id"}
RAW = CodecOptions(document_class=RawBSONDocument)


class FailingTape:
    """A shard whose first getMore fails, as that of a shard opened with batchSize 0."""

    ended = False

    def __init__(self, error: dict[str, Any], start: str) -> None:
        self._error, self._start = error, start
        self._id = next(CURSOR_IDS)

    def open(self, command: dict[str, Any]) -> bytes:
        return cursor_body(self._id, "rec.$cmd.aggregate", [], self._start, first=True)

    def more(self, batch_size: int) -> tuple[bytes, bool]:
        return bson.encode(self._error), False


def tape(stream: str, via: str) -> RecordedTape | FailingTape:
    replies = recorded.of(stream, via)
    if replies[0].pbrt is not None:
        return RecordedTape([reply.raw for reply in replies], LATER)
    message = (
        replies[0]
        .document["errmsg"]
        .replace("PlanExecutor error during aggregation", "Executor error during getMore")
    )
    error = {**bson.decode(replies[0].raw), "errmsg": message}
    first = bson.decode(recorded.of(stream, "mongos")[0].raw)
    return FailingTape(error, first["cursor"]["postBatchResumeToken"]["_data"])


@dataclass
class Stage:
    """The replayed members, their current stream, and a router on them."""

    stream: str = ""
    members: dict[str, ReplayMember] = field(default_factory=dict)
    router: RouterProcess | None = None

    @property
    def uri(self) -> str:
        assert self.router is not None
        return self.router.uri


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    """Run members and router; an insert into config.shards adds shard3 to each stream."""
    stage = Stage()
    async with contextlib.AsyncExitStack() as stack:
        hosts: dict[str, str] = {}
        for shard in SHARDS:
            member = ReplayMember(shard, lambda _, shard=shard: tape(stage.stream, shard))
            hosts[shard] = await member.start()
            stack.push_async_callback(member.stop)
            stage.members[shard] = member
        config = ReplayMember("cfg", lambda _: config_tape(hosts))
        config.documents["shards"] = [
            {"_id": shard, "host": hosts[shard], "state": 1} for shard in SHARDS[:3]
        ]
        configdb = await config.start()
        stack.push_async_callback(config.stop)
        stage.members["config"] = config
        # In threads, since the members run in this loop.
        stage.router = await asyncio.to_thread(start_router, configdb)
        stack.push_async_callback(asyncio.to_thread, stage.router.stop)
        yield stage


def config_tape(hosts: dict[str, str]) -> EventTape:
    """Return the stream on config.shards: shard3 joins just before its first recorded event."""
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
    events = PreparedEvents([(token, bson.encode(event))])
    return EventTape(next(CURSOR_IDS), "config.shards", start, events, LATER)


async def drain(
    client: AsyncMongoClient[Any], stream: str
) -> tuple[list[bytes], RawBSONDocument, int]:
    """Run the recorded commands' stream to its end, or until all recorded events have arrived."""
    replies = recorded.of(stream, "mongos")
    expected = sum(len(reply.events) for reply in replies) or 1
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


# Lookups need an upstream, which the recordings do not include.
# tests/integration/lookups compares lookups with mongos.
REPLAYED = [name for name in recorded.streams() if name not in {*FAILING, "coll-orders-lookup"}]


@pytest.mark.parametrize("stream", REPLAYED)
async def test_the_router_returns_mongos_s_events(stage: Stage, stream: str) -> None:
    replies = recorded.of(stream, "mongos")
    expected = list(recorded.events(replies))
    stage.stream = stream
    async with AsyncMongoClient(stage.uri) as client:
        events, last, cursor_id = await drain(client, stream)
        assert Counter(events) == Counter(expected)
        tokens = [bson.decode(event)["_id"]["_data"] for event in events]
        assert tokens == [bson.decode(event)["_id"]["_data"] for event in expected]
        if replies[-1].cursor_id == 0:
            assert cursor_id == 0
            assert last["cursor"]["postBatchResumeToken"].raw == replies[-1].pbrt


@pytest.mark.parametrize("stream", sorted(FAILING))
async def test_the_router_returns_mongos_s_errors(stage: Stage, stream: str) -> None:
    expected = recorded.of(stream, "mongos")[-1].document
    stage.stream = stream
    async with AsyncMongoClient(stage.uri) as client:
        with pytest.raises(OperationFailure) as caught:
            await drain(client, stream)
    details = caught.value.details
    assert details is not None
    assert details["code"] == expected["code"]
    assert details["codeName"] == expected["codeName"]
    assert sorted(details.get("errorLabels", [])) == sorted(expected.get("errorLabels", []))


async def test_a_closed_stream_leaves_no_cursors_on_the_shards(stage: Stage) -> None:
    stage.stream = "coll-orders"
    async with AsyncMongoClient(stage.uri) as client:
        await drain(client, "coll-orders")
    shards = [stage.members[shard] for shard in SHARDS]
    assert all(shard.opened for shard in shards)
    await until(lambda: not any(member.tapes for member in stage.members.values()))

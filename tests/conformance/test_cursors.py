"""Cursors: batches, waiting, their resume tokens, and how they end
(docs/protocol.md#cursor-replies)."""

import time
from typing import Any

import pytest
from bson import Binary, Int64, Timestamp
from pymongo.database import Database

from tests.conformance.data import Documents
from tests.conformance.streams import Stream, next_tick, now, time_of
from tests.harness.clusters import Client
from tests.harness.raw_client import RawClient, get_more_in_flight
from tests.harness.routers import RouterProcess

Data = Database[dict[str, Any]]
OPEN: dict[str, Any] = {"aggregate": "a", "pipeline": [{"$changeStream": {}}], "cursor": {}}


def test_the_first_batch_is_empty_with_the_starting_point(client: Client, db: Data) -> None:
    start = next_tick(now(client))
    db.a.insert_one({})
    with Stream(client, db.name, "a", {"startAtOperationTime": start}) as stream:
        assert stream.events == []
        assert time_of(stream.pbrt) == start
        [event] = stream.read(1)
    with Stream(client, db.name, "a", {"resumeAfter": event["_id"]}) as stream:
        assert stream.events == []
        assert stream.pbrt == event["_id"]
    future = Timestamp(start.time + 10_000, 1)
    with Stream(client, db.name, "a", {"startAtOperationTime": future}) as stream:
        assert time_of(stream.pbrt) == future
        assert stream.more(50)["cursor"]["nextBatch"] == []
        assert time_of(stream.pbrt) == future
    with Stream(client, db.name, "a") as stream:
        assert time_of(stream.pbrt) > time_of(event["_id"])


@pytest.mark.parametrize("first", [None, 0, 1, 1000])
def test_batch_size_limits_a_batch(client: Client, sharded: Documents, first: int | None) -> None:
    cursor = {} if first is None else {"batchSize": first}
    with Stream(client, sharded.database.name, 1, cursor=cursor) as stream:
        sharded.insert_many([{"k": k} for k in range(30)])
        for size in (1, 2, 7):
            stream.read(len(stream.events) + 1, batchSize=size)
            assert 1 <= len(stream.batch) <= size
        stream.read(20, batchSize=1)
        stream.read(30, batchSize=0)
        assert {event["fullDocument"]["k"] for event in stream.events} == set(range(30))
        with Stream(client, stream.database, 1, {"resumeAfter": stream.events[0]["_id"]}) as again:
            again.past(now(client))
            assert max(map(len, (again.batch, again.events))) == 29


def test_a_batch_ends_before_16_mib(client: Client, db: Data) -> None:
    with Stream(client, db.name, "a") as stream:
        for number in range(4):
            db.a.insert_one({"_id": number, "x": "x" * (6 << 20)})
        end = now(client)
        sizes = []
        while len(stream.events) < 4:
            stream.more()
            if stream.batch:
                sizes.append(len(stream.batch))
        assert max(sizes) <= 2
        stream.past(end)


@pytest.mark.parametrize(("max_time", "least", "most"), [(0, 0, 0.9), (300, 0.3, 3), (None, 1, 5)])
def test_a_get_more_waits_up_to_max_time(
    client: Client, db: Data, max_time: int | None, least: float, most: float
) -> None:
    with Stream(client, db.name, "a") as stream:
        for _ in range(5):  # on a busy machine some replies take longer
            began = time.monotonic()
            stream.more(max_time)
            took = time.monotonic() - began
            assert stream.batch == []
            assert stream.pbrt
            assert took >= least * 0.98
            if took < most:
                break
        assert took < most


def test_a_batch_ends_with_the_last_event_s_token_or_a_high_water_mark(
    client: Client, sharded: Documents
) -> None:
    with Stream(client, sharded.database.name, 1) as stream:
        sharded.insert_many([{"_id": k, "k": k} for k in (1, 11, 21, 2, 12, 22)])
        start = stream.pbrt
        stream.past(now(client))
        assert stream.pbrt["_data"] > stream.events[-1]["_id"]["_data"]
        assert stream.pbrts == sorted(stream.pbrts)
    # All shards are beyond the last event, so a new stream has all events at once.
    with Stream(client, stream.database, 1, {"resumeAfter": start}) as again:
        for count in range(1, 6):
            again.read(count, batchSize=1)
            assert (len(again.events), again.pbrt) == (count, again.events[-1]["_id"])


async def test_a_get_more_must_use_the_cursor_s_session_or_none(router: RouterProcess) -> None:
    lsid = {"id": Binary(b"s" * 16, 4)}
    async with await RawClient.connect(router.port) as gone:
        free = (await gone.command("test", OPEN))["cursor"]["id"]
    async with await RawClient.connect(router.port) as raw:
        bound = (await raw.command("test", {**OPEN, "lsid": lsid}))["cursor"]["id"]
        more = {"getMore": free, "collection": "a", "maxTimeMS": 1}
        assert (await raw.command("test", {**more, "lsid": lsid}))["code"] == 50799
        assert (await raw.command("test", {**more, "getMore": bound}))["code"] == 50800
        other = {**more, "getMore": bound, "lsid": {"id": Binary(b"o" * 16, 4)}}
        assert (await raw.command("test", other))["code"] == 50801
        assert (await raw.command("test", more))["ok"]
        assert (await raw.command("test", {**more, "getMore": bound, "lsid": lsid}))["ok"]
        killed = {"killCursors": "a", "cursors": [free, bound]}
        assert (await raw.command("test", killed))["cursorsKilled"] == [free, bound]


async def test_a_cursor_serves_one_get_more_at_a_time_until_killed(router: RouterProcess) -> None:
    async with (
        await RawClient.connect(router.port) as first,
        await RawClient.connect(router.port) as second,
    ):
        cursor_id = (await first.command("test", OPEN))["cursor"]["id"]
        answer = await get_more_in_flight(first, second, "test", cursor_id, collection="a")
        more = {"getMore": cursor_id, "collection": "a", "maxTimeMS": 1}
        refusal = await second.command("test", more)
        assert (refusal["code"], refusal["codeName"]) == (143, "CursorInUse")
        reply = await second.command("test", {"killCursors": "a", "cursors": [cursor_id, Int64(9)]})
        assert reply["cursorsKilled"] == [cursor_id]
        assert reply["cursorsNotFound"] == [9]
        assert reply["cursorsAlive"] == reply["cursorsUnknown"] == []
        ended = await answer
        assert (ended["code"], ended["codeName"]) == (237, "CursorKilled")
        gone = await first.command("test", more)
        assert (gone["code"], gone["errmsg"]) == (43, f"Cursor not found (id: {cursor_id}).")

"""Cursors over the wire, with requests that no driver sends: in use, killed, of other sessions."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64

from tests.harness.clusters import TestCluster
from tests.harness.raw_client import EXHAUST_ALLOWED, RawClient, get_more_in_flight
from tests.harness.routers import RouterProcess, start_router
from tests.harness.until import PATIENCE

WATCH: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
MINE = {"lsid": {"id": Binary(b"m" * 16, 4)}}
OTHER = {"lsid": {"id": Binary(b"o" * 16, 4)}}


@pytest.fixture(scope="module")
def router(cluster: TestCluster) -> Iterator[RouterProcess]:
    with start_router(cluster.configdb, cluster.mongos_uri) as started:
        yield started


def get_more(cursor_id: Int64, **fields: Any) -> dict[str, Any]:
    return {"getMore": cursor_id, "collection": "c", **fields}


async def open_cursor(client: RawClient, **fields: Any) -> Int64:
    reply = await client.command("cursors", {**WATCH, **fields})
    assert reply["ok"] == 1, reply
    return reply["cursor"]["id"]


async def test_a_cursor_serves_one_get_more_which_a_kill_ends(router: RouterProcess) -> None:
    async with (
        await RawClient.connect(router.port) as one,
        await RawClient.connect(router.port) as two,
    ):
        cursor_id = await open_cursor(one)
        answer = await get_more_in_flight(one, two, "cursors", cursor_id)
        killed = await two.command("cursors", {"killCursors": "c", "cursors": [cursor_id]})
        assert killed["cursorsKilled"] == [cursor_id]
        reply = await answer
        assert (reply["code"], reply["codeName"]) == (237, "CursorKilled")
        assert (await two.command("cursors", get_more(cursor_id)))["code"] == 43


async def test_a_cursor_belongs_to_its_session_and_ends_with_it(router: RouterProcess) -> None:
    async with await RawClient.connect(router.port) as client:
        cursor_id = await open_cursor(client, **MINE)
        for fields, code in (({}, 50800), (OTHER, 50801)):
            reply = await client.command("cursors", get_more(cursor_id, maxTimeMS=1, **fields))
            assert reply["code"] == code
        reply = await client.command("cursors", get_more(cursor_id, maxTimeMS=1, **MINE))
        assert reply["ok"] == 1
        await client.command("admin", {"endSessions": [MINE["lsid"]]})
        reply = await client.command("cursors", get_more(cursor_id, maxTimeMS=1, **MINE))
        assert reply["code"] == 43


async def test_first_batches_do_not_wait_and_later_ones_respect_batch_size(
    router: RouterProcess,
) -> None:
    async with await RawClient.connect(router.port) as client:
        cursor_id = await open_cursor(client, cursor={"batchSize": 0})
        documents = [{"_id": number} for number in range(7)]
        await client.command("cursors", {"insert": "c"}, sequences={"documents": documents})
        sizes: list[int] = []
        while sum(sizes) < 7:
            command = get_more(cursor_id, batchSize=3, maxTimeMS=10_000)
            reply = await client.command("cursors", command)
            sizes.append(len(reply["cursor"]["nextBatch"]))
        assert max(sizes) <= 3
        assert reply["cursor"]["postBatchResumeToken"]["_data"]


async def test_a_get_more_with_exhaust_allowed_gets_plain_replies(router: RouterProcess) -> None:
    async with await RawClient.connect(router.port) as client:
        cursor_id = await open_cursor(client)
        reply = await client.command(
            "cursors", get_more(cursor_id, maxTimeMS=1), flags=EXHAUST_ALLOWED
        )
        assert (reply["ok"], reply.flags) == (1, 0)


async def test_an_invalidated_stream_ends_as_on_mongos(router: RouterProcess) -> None:
    async with await RawClient.connect(router.port) as client:
        await client.command("cursors", {"create": "gone"})
        reply = await client.command("cursors", {**WATCH, "aggregate": "gone"})
        cursor_id = reply["cursor"]["id"]
        await client.command("cursors", {"drop": "gone"})
        seen: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while cursor_id:
                reply = await client.command(
                    "cursors", {"getMore": cursor_id, "collection": "gone", "maxTimeMS": 1000}
                )
                seen += [event["operationType"] for event in reply["cursor"]["nextBatch"]]
                cursor_id = reply["cursor"]["id"]
        assert seen == ["drop", "invalidate"]
        assert reply["cursor"]["nextBatch"] == []
        assert reply["cursor"]["postBatchResumeToken"]

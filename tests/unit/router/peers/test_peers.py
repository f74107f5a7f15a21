"""Requests between workers: cursors, sessions, status."""

import asyncio
from typing import Any

import pytest
from bson import Int64
from hypothesis import given
from hypothesis import strategies as st

from router.catalog.upstream import UpstreamMongos
from router.peers.cursor_ids import MOST_WORKERS, CursorIds
from tests.doubles.scripted_server import Asked, scripted_server
from tests.harness.until import PATIENCE, until
from tests.harness.worker_facades import MARK, worker_facades

WATCH: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}


def get_more(cursor_id: int, **fields: Any) -> dict[str, Any]:
    return {"getMore": Int64(cursor_id), "collection": "c", **fields}


async def test_the_cursors_of_a_dead_worker_are_not_found() -> None:
    async with (
        worker_facades() as workers,
        await workers[0].client() as opener,
        await workers[1].client() as reader,
    ):
        cursor_id = (await opener.command("db", WATCH))["cursor"]["id"]
        reader.send("db", get_more(cursor_id, maxTimeMS=60_000))
        cursor = workers[0].cursors.cursors[cursor_id]
        await asyncio.wait_for(cursor.waiting.wait(), PATIENCE)
        assert workers[0].private is not None
        await workers[0].private.aclose()
        for reply in (await reader.receive(), await reader.command("db", get_more(cursor_id))):
            assert (reply["code"], reply["errmsg"]) == (43, f"Cursor not found (id: {cursor_id}).")
        killed = await reader.command("db", {"killCursors": "c", "cursors": [cursor_id]})
        assert killed["cursorsNotFound"] == [cursor_id]


async def test_an_upstream_cursor_with_a_similar_id_continues_there() -> None:
    looks_like = Int64(CursorIds(1, MARK, lambda bits: 5).new_id())

    async def script(asked: Asked) -> None:
        if "killCursors" in asked.command:
            killed = {"cursorsKilled": asked.command["cursors"], "cursorsNotFound": []}
            asked.reply({**killed, "cursorsAlive": [], "cursorsUnknown": [], "ok": 1.0})
        else:
            asked.reply({"of": "upstream", "ok": 1.0})

    async with (
        scripted_server(script) as mongos,
        worker_facades(2, UpstreamMongos([("127.0.0.1", mongos.port)])) as workers,
        await workers[0].client() as opener,
        await workers[1].client() as client,
    ):
        assert (await client.command("db", get_more(looks_like)))["of"] == "upstream"
        ours = (await opener.command("db", WATCH))["cursor"]["id"]
        reply = await client.command("db", {"killCursors": "c", "cursors": [ours, looks_like]})
        assert reply["cursorsKilled"] == [ours, looks_like]
        assert [each.command["cursors"] for each in mongos.asked[1:]] == [[looks_like]]
        only_theirs = {"killCursors": "c", "cursors": [looks_like]}
        assert (await client.command("db", only_theirs))["cursorsKilled"] == [looks_like]
        assert workers[0].private is not None
        await workers[0].private.aclose()
        assert (await client.command("db", get_more(looks_like)))["of"] == "upstream"


async def test_a_newer_topology_version_of_a_client_is_accepted() -> None:
    async with worker_facades(2) as workers, await workers[0].client() as client:
        topology = workers[0].node.topology
        ahead = {**topology.document(), "counter": Int64(topology.counter + 1)}
        client.send("admin", {"hello": 1, "topologyVersion": ahead, "maxAwaitTimeMS": 60_000})
        await until(lambda: workers[0].node.counters.awaiting_hellos == 1)
        topology.move_to(topology.counter + 1)
        topology.move_to(topology.counter + 1)
        reply = await client.receive()
        assert (reply["ok"], reply["topologyVersion"]["counter"]) == (1, topology.counter)


MARKS = st.integers(0, 2**15 - 1)


@given(cursor_id=st.integers(-(2**63), 2**63 - 1), mark=MARKS)
def test_an_id_without_the_mark_has_no_worker(cursor_id: int, mark: int) -> None:
    marked = cursor_id >= 0 and cursor_id >> 48 == mark
    owner = CursorIds(1, mark).owner(cursor_id)
    assert owner is None or marked
    assert owner is None or 1 <= owner <= MOST_WORKERS


@pytest.mark.parametrize("worker", [0, -1, MOST_WORKERS + 1])
def test_the_number_of_workers_is_limited(worker: int) -> None:
    with pytest.raises(ValueError, match="a worker's number"):
        CursorIds(worker, 0)

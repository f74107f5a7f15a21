"""Requests between workers: cursors, sessions, status."""

import asyncio
from typing import Any

import pytest
from bson import Binary, Int64

from router.catalog.upstream import UpstreamMongos
from router.peers.cursor_ids import CursorIds
from tests.doubles.fake_cursors import event
from tests.doubles.scripted_server import Asked, scripted_server
from tests.harness.raw_client import MORE_TO_COME
from tests.harness.until import PATIENCE, until
from tests.harness.worker_facades import MARK, worker_facades

WATCH: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}


def get_more(cursor_id: int, **fields: Any) -> dict[str, Any]:
    return {"getMore": Int64(cursor_id), "collection": "c", **fields}


async def test_any_worker_answers_a_get_more() -> None:
    async with (
        worker_facades(3) as workers,
        await workers[0].client() as opener,
        await workers[1].client() as reader,
    ):
        cursor_id = (await opener.command("db", WATCH))["cursor"]["id"]
        for number in range(3):
            workers[0].cursors.cursors[cursor_id].put(event(number, 100_000))
            reply = await reader.command("db", get_more(cursor_id), compressed=number == 2)
            assert [each["n"] for each in reply["cursor"]["nextBatch"]] == [number]
            assert reply.compressed == (number == 2)
        assert [worker.node.counters.passed_on for worker in workers] == [0, 3, 0]
        assert not workers[1].cursors.cursors


async def test_a_disconnect_ends_a_get_more_on_another_worker() -> None:
    async with worker_facades() as workers, await workers[0].client() as opener:
        cursor_id = (await opener.command("db", WATCH))["cursor"]["id"]
        cursor = workers[0].cursors.cursors[cursor_id]
        async with await workers[1].client() as reader:
            reader.send("db", get_more(cursor_id, maxTimeMS=60_000))
            await asyncio.wait_for(cursor.waiting.wait(), PATIENCE)
            reply = await opener.command("db", get_more(cursor_id))
            assert reply["code"] == 143
        await until(lambda: not workers[0].cursors.cursors)


async def test_an_unacknowledged_get_more_keeps_the_connection_usable() -> None:
    async with (
        worker_facades() as workers,
        await workers[0].client() as opener,
        await workers[1].client() as reader,
    ):
        cursor_id = (await opener.command("db", WATCH))["cursor"]["id"]
        reader.send("db", get_more(cursor_id, maxTimeMS=1), flags=MORE_TO_COME)
        assert (await reader.command("admin", {"ping": 1}))["ok"] == 1


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


@pytest.mark.parametrize("command", ["endSessions", "killSessions", "refreshSessions"])
async def test_sessions_end_and_are_refreshed_on_all_workers(command: str) -> None:
    async with worker_facades(3) as workers, await workers[1].client() as client:
        lsid = {"id": Binary(b"s" * 16, 4)}
        assert (await client.command("admin", {command: [lsid]}))["ok"] == 1
        for worker in workers:
            reached = (worker.cursors.ended_sessions, worker.cursors.refreshed_sessions)
            assert reached[command == "refreshSessions"] == [b"s" * 16]


async def test_any_worker_returns_the_status_of_all() -> None:
    async with (
        worker_facades(2) as workers,
        await workers[0].client() as one,
        await workers[1].client() as two,
    ):
        for client in (one, one, two):
            await client.command("db", WATCH)
        for client in (one, two):
            status = await client.command("admin", {"serverStatus": 1, "mem": 0})
            assert status["connections"]["current"] == 2
            assert status["connections"]["totalCreated"] == 2
            assert status["metrics"]["cursor"]["open"]["total"] == 3
            assert "mem" not in status
            listed = status["mergerouter"]["workers"]
            assert [each["worker"] for each in listed] == [1, 2]
            assert [each["streams"] for each in listed] == [2, 1]
        assert status["network"]["numRequests"] == 5  # without those between workers


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

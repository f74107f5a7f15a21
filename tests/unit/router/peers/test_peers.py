"""Requests between workers: cursors, sessions, status."""

from pathlib import Path
from typing import Any

from bson import Int64, ObjectId
from hypothesis import given
from hypothesis import strategies as st

from router.commands.topology_version import TopologyVersion
from router.peers.cursor_ids import MOST_WORKERS, new_cursor_id, worker_of
from router.peers.peers import Peers
from tests.doubles.scripted_server import Asked
from tests.harness.facade import facade, facade_before
from tests.harness.until import until

WATCH: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
MARK = 0x1234


def get_more(cursor_id: int, **fields: Any) -> dict[str, Any]:
    return {"getMore": Int64(cursor_id), "collection": "c", **fields}


async def test_an_upstream_cursor_with_a_similar_id_continues_there(tmp_path: Path) -> None:
    """Also if the worker that the id names has died."""
    looks_like = Int64(new_cursor_id(MARK, 1))

    async def script(asked: Asked) -> None:
        if "killCursors" in asked.command:
            killed = {"cursorsKilled": asked.command["cursors"], "cursorsNotFound": []}
            asked.reply({**killed, "cursorsAlive": [], "cursorsUnknown": [], "ok": 1.0})
        else:
            asked.reply({"of": "upstream", "ok": 1.0})

    peers = Peers(2, MARK, 2, tmp_path, lambda **message: None)
    async with facade_before(script, peers=peers) as (mongos, router, client):
        router.cursors.new_id = peers.new_cursor_id
        assert (await client.command("db", get_more(looks_like)))["of"] == "upstream"
        ours = (await client.command("db", WATCH))["cursor"]["id"]
        reply = await client.command("db", {"killCursors": "c", "cursors": [ours, looks_like]})
        assert reply["cursorsKilled"] == [ours, looks_like]
        assert [each.command["cursors"] for each in mongos.asked[1:]] == [[looks_like]]
        only_theirs = {"killCursors": "c", "cursors": [looks_like]}
        assert (await client.command("db", only_theirs))["cursorsKilled"] == [looks_like]
    peers.close()


async def test_a_newer_topology_version_of_a_client_is_accepted() -> None:
    topology = TopologyVersion(ObjectId())  # which the workers share
    async with facade(topology=topology) as router, await router.client() as client:
        ahead = {**topology.document(), "counter": Int64(topology.counter + 1)}
        client.send("admin", {"hello": 1, "topologyVersion": ahead, "maxAwaitTimeMS": 60_000})
        await until(lambda: router.node.counters.awaiting_hellos == 1)
        topology.move_to(topology.counter + 1)
        topology.move_to(topology.counter + 1)
        reply = await client.receive()
        assert (reply["ok"], reply["topologyVersion"]["counter"]) == (1, topology.counter)


MARKS = st.integers(0, 2**15 - 1)


@given(cursor_id=st.integers(-(2**63), 2**63 - 1), mark=MARKS)
def test_an_id_without_the_mark_has_no_worker(cursor_id: int, mark: int) -> None:
    marked = cursor_id >= 0 and cursor_id >> 48 == mark
    owner = worker_of(mark, cursor_id)
    assert owner is None or marked
    assert owner is None or 1 <= owner <= MOST_WORKERS

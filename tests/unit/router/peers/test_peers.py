"""Requests between workers: cursors, sessions, status."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bson import Int64, ObjectId
from hypothesis import given
from hypothesis import strategies as st

from router.commands.serving_process import ServerDescription
from router.commands.topology_version import TopologyVersion
from router.peers import peers as peers_module
from router.peers.cursor_ids import MOST_WORKERS, new_cursor_id, worker_of
from router.peers.peers import ON_BEHALF_OF, Peers, private_address
from router.server.listener import Listener
from shard_client.errors import CommandError, ErrorCode
from tests.doubles.fake_cursors import event
from tests.doubles.scripted_server import Asked
from tests.harness.facade import WATCH, facade, facade_before
from tests.harness.until import until

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

    peers = Peers(2, MARK, 2, tmp_path, lambda message: None)
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
    async with (
        facade(server=ServerDescription(topology=topology)) as router,
        await router.client() as client,
    ):
        ahead = {**topology.document(), "counter": Int64(topology.counter + 1)}
        client.send("admin", {"hello": 1, "topologyVersion": ahead, "maxAwaitTimeMS": 60_000})
        await until(lambda: router.process.counters.awaiting_hellos == 1)
        topology.move_to(topology.counter + 1)
        topology.move_to(topology.counter + 1)
        reply = await client.receive()
        assert (reply["ok"], reply["topologyVersion"]["counter"]) == (1, topology.counter)


async def test_a_reply_lost_with_its_client_ends_the_cursor_in_another_worker(
    tmp_path: Path,
) -> None:
    peers = [Peers(number, MARK, 2, tmp_path, lambda message: None) for number in (1, 2)]
    async with (
        facade(peers=peers[0]) as first,
        facade(peers=peers[1]) as second,
        Listener(second.process, for_workers=True) as private,
        await first.client() as reader,
        await second.client() as opener,
    ):
        await private.listen_privately(private_address(tmp_path, 2))
        second.cursors.new_id = peers[1].new_cursor_id
        cursor_id = (await opener.command("db", WATCH))["cursor"]["id"]
        second.cursors.cursors[cursor_id].put(*(event(number, 2**20) for number in range(12)))
        reader.writer.transport.pause_reading()  # type: ignore[attr-defined]
        reader.send("db", get_more(cursor_id))
        await until(lambda: first.process.counters.bytes_out > 2**20)
        assert cursor_id in second.cursors.cursors
        reader.writer.transport.abort()
        await until(lambda: not second.cursors.cursors)
    for each in peers:
        each.close()


async def test_a_kill_that_a_worker_does_not_obey_ends_in_time(tmp_path: Path) -> None:
    peers = Peers(1, MARK, 2, tmp_path, lambda message: None)
    async with facade() as router, await router.client() as opener:
        cursor_id = (await opener.command("db", WATCH))["cursor"]["id"]
        other = peers.owner(new_cursor_id(MARK, 2))
        assert other is not None
        await other.kill_cursor(cursor_id, None)  # nobody listens
        assert router.cursors.cursors
        async with Listener(router.process, for_workers=True) as private:
            await private.listen_privately(private_address(tmp_path, 2))
            await other.kill_cursor(cursor_id, None)
        assert not router.cursors.cursors
    peers.close()


async def test_kills_take_turns_and_are_those_of_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they may take longer than one may, and a refused one stops no other."""
    peers, killed = Peers(1, MARK, 2, tmp_path, lambda message: None), []
    other = peers.owner(new_cursor_id(MARK, 2))
    assert other is not None
    monkeypatch.setattr(peers_module, "_ANSWER_TIMEOUT", 0.5)
    one_at_a_time = asyncio.Lock()

    async def command(_database: str, command: dict[str, Any]) -> dict[str, Any]:
        async with one_at_a_time:
            await asyncio.sleep(0.05)
        if command["cursors"] == [3]:
            raise CommandError(ErrorCode.Unauthorized, "it is another user's")
        killed.append((*command["cursors"], command[ON_BEHALF_OF]))
        return {"ok": 1.0}

    monkeypatch.setattr(other, "_link", SimpleNamespace(command=command))
    await asyncio.gather(*(other.kill_cursor(number, f"u{number}") for number in range(20)))
    assert killed == [(number, f"u{number}") for number in range(20) if number != 3]


MARKS = st.integers(0, 2**15 - 1)


@given(cursor_id=st.integers(-(2**63), 2**63 - 1), mark=MARKS)
def test_an_id_without_the_mark_has_no_worker(cursor_id: int, mark: int) -> None:
    marked = cursor_id >= 0 and cursor_id >> 48 == mark
    owner = worker_of(mark, cursor_id)
    assert owner is None or marked
    assert owner is None or 1 <= owner <= MOST_WORKERS

"""The pass-through: all but change streams goes unchanged to the upstream mongos and back."""

import asyncio
from typing import Any

import bson
import pytest
from bson import Int64
from bson.timestamp import Timestamp

from router.server import listener
from router.upstream.upstream_mongos import UpstreamMongos
from shard_client.wire.connection import is_loopback
from tests.doubles.scripted_server import Asked, answer_ok, scripted_server
from tests.harness.facade import WATCH, facade, facade_before
from tests.harness.ports import free_port
from tests.harness.raw_client import MORE_TO_COME


async def test_messages_pass_unchanged_except_their_ids() -> None:
    async with facade_before(answer_ok) as (mongos, _, client):
        documents = [{"_id": number, "pad": "x" * 1000} for number in range(2000)]
        sent = {"insert": "c", "ordered": False, "lsid": {"id": b"1" * 16}, "txnNumber": Int64(3)}
        reply = await client.command("db", sent, sequences={"documents": documents})
        assert reply == {"you": "asked", "n": "insert", "ok": 1.0}
        (asked,) = mongos.asked
        assert asked.command == {**sent, "$db": "db"}
        assert bson.encode(documents[-1]) in asked.frame
        reply = await client.command("db", {"find": "c"}, compressed=True)
        assert reply.compressed
        assert reply["n"] == "find"
        assert mongos.connections == 1


async def test_unacknowledged_writes_reach_the_upstream_in_order() -> None:
    async with facade_before(answer_ok) as (mongos, _, client):
        for number in range(3):
            client.send("db", {"insert": "c", "n": number}, flags=MORE_TO_COME)
        last = client.send("db", {"count": "c"})
        assert (await client.receive()).response_to == last
        assert [each.command.get("n") for each in mongos.asked] == [0, 1, 2, None]


async def test_the_router_refuses_streams_if_the_upstream_has_none() -> None:
    async def unknown(asked: Asked) -> None:
        asked.reply({"ok": 0.0, "errmsg": "none here", "code": 59, "codeName": "CommandNotFound"})

    async with facade_before(unknown) as (mongos, _, client):
        for _ in range(2):
            reply = await client.command("db", {**WATCH, "maxTimeMS": "x"})
            assert (reply["code"], reply["codeName"]) == (2, "BadValue")
            assert "maxTimeMS" in reply["errmsg"]
        assert len(mongos.asked) == 2
        assert (await client.command("db", {"insert": "c"}))["errmsg"] == "none here"


async def test_a_stream_resumes_whose_cursor_is_gone_while_the_upstream_is_away() -> None:
    upstream = UpstreamMongos([("127.0.0.1", free_port())])
    async with facade(upstream) as router, await router.client() as client:
        reply = await client.command("db", {"getMore": Int64(5), "collection": "c"})
        assert (reply["code"], reply["errorLabels"]) == (6, ["ResumableChangeStreamError"])


async def test_max_time_limits_the_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    async with facade() as router, await router.client() as client:

        async def never(*_: object, **_named: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(router.cursors, "open", never)
        reply = await client.command("db", {**WATCH, "maxTimeMS": 10})
        assert (reply["code"], reply["codeName"]) == (50, "MaxTimeMSExpired")


async def test_cluster_times_of_replies_advance_the_clock() -> None:
    later = Timestamp(2_000_000_000, 5)

    async def script(asked: Asked) -> None:
        time = {"clusterTime": later, "signature": {"hash": b"\1" * 20, "keyId": Int64(9)}}
        asked.reply({"ok": 1.0, "$clusterTime": time, "operationTime": later})

    async with facade_before(script) as (_, _, client):
        await client.command("db", {"insert": "c"})
        reply = await client.command("admin", {"ping": 1})
        assert reply["operationTime"] == later
        assert reply["$clusterTime"]["signature"]["keyId"] == 9


async def test_a_client_s_time_does_not_advance_the_clock() -> None:
    async with facade() as router, await router.client() as client, await router.client() as other:
        before = router.process.clock.raw
        signature = {"hash": b"\1" * 20, "keyId": Int64(7), "pad": "x" * 100_000}
        ahead = Timestamp(int(router.process.now().timestamp()) + 300 * 86_400, 1)
        time = {"clusterTime": ahead, "signature": signature, "pad": "x" * 100_000}
        for command in ({"ping": 1}, {"hello": 1}, WATCH):
            assert (await client.command("db", {**command, "$clusterTime": time})).get("ok")
        reply = await other.command("admin", {"ping": 1})
        assert bson.encode(reply["$clusterTime"]) == before == router.process.clock.raw


async def test_workers_follow_another_worker_s_switch() -> None:
    async with scripted_server(answer_ok) as first, scripted_server(answer_ok) as second:
        both = UpstreamMongos([("127.0.0.1", first.port), ("127.0.0.1", second.port)])
        async with facade(both) as router, await router.client() as client:
            for chosen, generation, asked in ((1, 1, second), (0, 0, second), (0, 2, first)):
                both.follow(chosen, generation)
                count = len(asked.asked)
                await client.command("db", {"insert": "c"})
                assert len(asked.asked) == count + 1


async def test_a_reply_cut_off_upstream_closes_the_client_s_connection() -> None:
    async def script(asked: Asked) -> None:
        asked.writer.transport.abort()

    async with facade_before(script) as (_, router, client):
        client.send("db", {"insert": "c"})
        with pytest.raises(EOFError):
            await client.receive()
        async with await router.client() as other:
            assert (await other.command("admin", {"ping": 1}))["ok"] == 1


@pytest.mark.parametrize("remote", [False, True])
async def test_no_client_can_shut_down_the_upstream(
    remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if remote:
        monkeypatch.setattr(listener, "is_loopback", lambda _peername: False)
    async with facade_before(answer_ok) as (mongos, _, client):
        for command in ({"shutdown": 1}, {"shutdown": 1, "force": True}):
            reply = await client.command("admin", command)
            if remote:
                expected = (13, "shutdown must run from localhost when running db without auth")
                assert (reply["code"], reply["errmsg"]) == expected
            else:
                assert reply["code"] == 20
                assert "SIGTERM" in reply["errmsg"]
        reply = await client.command("db", {"shutdown": 1})
        assert reply["errmsg"] == "shutdown may only be run against the admin database."
        assert not mongos.asked


@pytest.mark.parametrize(
    ("peername", "local"),
    [
        (("127.0.0.1", 5), True),
        (("127.8.0.1", 5), True),
        (("::1", 5, 0, 0), True),
        (("::ffff:127.0.0.1", 5, 0, 0), True),
        (("10.0.0.1", 5), False),
        (("::ffff:10.0.0.1", 5, 0, 0), False),
        (("fe80::1%eth0", 5, 0, 2), False),
        (("example", 5), False),
        ("", False),
        (None, False),
    ],
)
def test_loopback_addresses_are_local(peername: Any, local: bool) -> None:
    assert is_loopback(peername) is local

"""The pass-through: all but change streams goes unchanged to the upstream mongos and back."""

import asyncio
from typing import Any

import bson
import pytest
from bson import Int64
from bson.timestamp import Timestamp

from router.catalog.upstream import UpstreamMongos
from tests.doubles.scripted_server import Asked, answer_ok, scripted_server
from tests.harness.facade import facade
from tests.harness.raw_client import EXHAUST_ALLOWED, MORE_TO_COME
from tests.harness.until import until

WATCH: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}


def upstream(port: int) -> UpstreamMongos:
    return UpstreamMongos([("127.0.0.1", port)])


async def test_messages_pass_unchanged_except_their_ids() -> None:
    async with (
        scripted_server(answer_ok) as mongos,
        facade(upstream(mongos.port)) as router,
        await router.client() as client,
    ):
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
        assert mongos.open == 1


async def test_unacknowledged_writes_reach_the_upstream_in_order() -> None:
    async with (
        scripted_server(answer_ok) as mongos,
        facade(upstream(mongos.port)) as router,
        await router.client() as client,
    ):
        for number in range(3):
            client.send("db", {"insert": "c", "n": number}, flags=MORE_TO_COME)
        last = client.send("db", {"count": "c"})
        assert (await client.receive()).response_to == last
        assert [each.command.get("n") for each in mongos.asked] == [0, 1, 2, None]


async def test_exhaust_replies_are_relayed_until_the_last() -> None:
    async def script(asked: Asked) -> None:
        first = asked.reply({"n": 1, "ok": 1.0}, flags=MORE_TO_COME)
        asked.reply({"n": 2, "ok": 1.0}, response_to=first)

    async with (
        scripted_server(script) as mongos,
        facade(upstream(mongos.port)) as router,
        await router.client() as client,
    ):
        command = {"getMore": Int64(77), "collection": "c"}
        asked = client.send("db", command, flags=EXHAUST_ALLOWED)
        first, second = await client.receive(), await client.receive()
        assert (first["n"], first.flags, first.response_to) == (1, MORE_TO_COME, asked)
        assert (second["n"], second.flags, second.response_to) == (2, 0, first.request_id)


async def test_the_router_refuses_streams_if_the_upstream_has_none() -> None:
    async def unknown(asked: Asked) -> None:
        asked.reply({"ok": 0.0, "errmsg": "none here", "code": 59, "codeName": "CommandNotFound"})

    async with (
        scripted_server(unknown) as mongos,
        facade(upstream(mongos.port)) as router,
        await router.client() as client,
    ):
        for _ in range(2):
            reply = await client.command("db", {**WATCH, "maxTimeMS": "x"})
            assert (reply["code"], reply["codeName"]) == (2, "BadValue")
            assert "maxTimeMS" in reply["errmsg"]
        assert len(mongos.asked) == 2
        assert (await client.command("db", {"insert": "c"}))["errmsg"] == "none here"


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

    async with (
        scripted_server(script) as mongos,
        facade(upstream(mongos.port)) as router,
        await router.client() as client,
    ):
        await client.command("db", {"insert": "c"})
        reply = await client.command("admin", {"ping": 1})
        assert reply["operationTime"] == later
        assert reply["$clusterTime"]["signature"]["keyId"] == 9


async def test_a_client_s_time_does_not_advance_the_clock() -> None:
    async with facade() as router, await router.client() as client, await router.client() as other:
        before = router.node.clock.raw
        signature = {"hash": b"\1" * 20, "keyId": Int64(7), "pad": "x" * 100_000}
        ahead = Timestamp(int(router.node.now().timestamp()) + 300 * 86_400, 1)
        time = {"clusterTime": ahead, "signature": signature, "pad": "x" * 100_000}
        for command in ({"ping": 1}, {"hello": 1}, WATCH):
            assert (await client.command("db", {**command, "$clusterTime": time})).get("ok")
        reply = await other.command("admin", {"ping": 1})
        assert bson.encode(reply["$clusterTime"]) == before == router.node.clock.raw


NUMBER = {"lsid": {"id": b"1" * 16}, "txnNumber": Int64(1)}
TRANSACTION = {**NUMBER, "autocommit": False}
RETRYABLE, TRANSIENT = ["RetryableWriteError"], ["TransientTransactionError"]


@pytest.mark.parametrize(
    ("command", "labels"),
    [
        ({"insert": "c"}, None),
        ({"find": "c"}, None),
        ({"insert": "c", **NUMBER}, RETRYABLE),
        ({"insert": "c", **NUMBER, "autocommit": True}, RETRYABLE),
        ({"insert": "c", **TRANSACTION, "startTransaction": True}, TRANSIENT),
        ({"find": "c", **TRANSACTION}, TRANSIENT),
        ({"commitTransaction": 1, **TRANSACTION}, RETRYABLE),
        ({"abortTransaction": 1, **TRANSACTION}, RETRYABLE),
    ],
)
async def test_an_unreachable_upstream_is_an_error_that_drivers_retry(
    command: dict[str, Any], labels: list[str] | None
) -> None:
    async with scripted_server(answer_ok) as gone:
        port = gone.port
    async with facade(upstream(port)) as router, await router.client() as client:
        reply = await client.command("db", command)
        assert (reply["code"], reply["codeName"]) == (6, "HostUnreachable")
        assert reply.get("errorLabels") == labels
        assert (await client.command("admin", {"ping": 1}))["ok"] == 1


async def test_workers_follow_another_worker_s_switch() -> None:
    async with scripted_server(answer_ok) as first, scripted_server(answer_ok) as second:
        both = UpstreamMongos([("127.0.0.1", first.port), ("127.0.0.1", second.port)])
        async with facade(both) as router, await router.client() as client:
            for chosen, generation, asked in ((1, 1, second), (0, 0, second), (0, 2, first)):
                both.follow(chosen, generation)
                count = len(asked.asked)
                await client.command("db", {"insert": "c"})
                assert len(asked.asked) == count + 1


async def test_an_unreachable_mongos_is_not_switched_to() -> None:
    async with scripted_server(answer_ok) as gone:
        port = gone.port
    both = UpstreamMongos([("127.0.0.1", port), ("127.0.0.1", port)])
    async with facade(both) as router, await router.client() as client:
        assert (await client.command("db", {"insert": "c"}))["code"] == 6
    assert (both.chosen, both.generation) == (0, 0)


async def test_a_reply_cut_off_upstream_closes_the_client_s_connection() -> None:
    async def script(asked: Asked) -> None:
        asked.writer.transport.abort()

    async with scripted_server(script) as mongos, facade(upstream(mongos.port)) as router:
        async with await router.client() as client:
            client.send("db", {"insert": "c"})
            with pytest.raises(EOFError):
                await client.receive()
        async with await router.client() as client:
            assert (await client.command("admin", {"ping": 1}))["ok"] == 1


async def test_an_idle_connection_that_was_cut_is_replaced() -> None:
    async with (
        scripted_server(answer_ok) as mongos,
        facade(upstream(mongos.port)) as router,
        await router.client() as client,
    ):
        await client.command("db", {"insert": "c"})
        mongos.asked[0].writer.transport.abort()
        await until(lambda: not mongos.open)
        # The router's end notices one turn later; a command before that would fail.
        await client.command("admin", {"ping": 1})
        assert (await client.command("db", {"insert": "c"}))["ok"] == 1
        assert mongos.names() == ["insert", "insert"]

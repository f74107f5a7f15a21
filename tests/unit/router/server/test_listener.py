"""The listener: order, streaming, bad input, disconnecting clients, shutdown."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from bson import Int64
from structlog.testing import capture_logs

from router.config.settings import Parameters, Settings
from router.tls.handshake import NO_TLS
from tests.harness.facade import WATCH, facade
from tests.harness.foreign_clients import client_hello
from tests.harness.raw_client import EXHAUST_ALLOWED, MORE_TO_COME, RawClient
from tests.harness.until import until

PING: dict[str, Any] = {"ping": 1}
INSERT: dict[str, Any] = {"insert": "c", "documents": [{"_id": 1}]}


async def test_a_tls_client_is_refused_immediately_where_tls_is_disabled() -> None:
    """The first bytes of its handshake could be the header of a long message."""
    async with facade() as router:
        with capture_logs() as logged:
            reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
            writer.write(client_hello())
            assert await reader.read() == b""
            writer.close()
        (line,) = [line for line in logged if line.get("id") == 22988]
        assert line["error"]["errmsg"] == NO_TLS
        await until(lambda: not router.process.counters.connections)


async def test_without_clients_an_idle_listener_sets_no_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.server.listener._LONGEST_CHECK", 0.01)
    async with facade() as router:
        async with await router.client():
            await until(lambda: router.process.counters.connections)
        await until(lambda: not router.process.counters.connections)
        await asyncio.sleep(0.02)
        loop = asyncio.get_running_loop()
        timers = Mock(wraps=loop.call_at)
        monkeypatch.setattr(loop, "call_at", timers)
        await asyncio.sleep(0.05)
        assert timers.call_count == 1, "that of this test"


async def hello_version(client: RawClient) -> dict[str, Any]:
    return (await client.command("admin", {"hello": 1}))["topologyVersion"]


async def test_hello_streams_to_clients_that_allow_exhaust() -> None:
    async with facade() as router, await router.client() as client:
        version = await hello_version(client)
        command = {"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 5}
        asked = client.send("admin", command, flags=EXHAUST_ALLOWED)
        first = await client.receive()
        second = await client.receive()
        assert first.response_to == asked
        assert second.response_to == first.request_id
        assert first.flags == second.flags == MORE_TO_COME
        router.process.server.topology.advance()
        while (reply := await client.receive())["topologyVersion"] == version:
            pass
        assert reply["topologyVersion"]["counter"] == version["counter"] + 1
        await router.listener.drain(1)
        while (reply := await client.receive())["ok"]:
            pass
        assert (reply["code"], reply.flags) == (91, 0)
        assert reply["topologyVersion"]["counter"] == version["counter"] + 2


async def test_hello_from_the_future_is_refused() -> None:
    async with facade() as router, await router.client() as client:
        version = {**await hello_version(client), "counter": Int64(9)}
        command = {"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 5}
        assert (await client.command("admin", command))["code"] == 51761


async def test_hello_in_an_op_query_is_answered() -> None:
    async with facade() as router, await router.client() as client:
        asked = client.send_query("admin.$cmd", {"ismaster": 1, "helloOk": True})
        reply = await client.receive()
        assert (reply.op_code, reply.response_to, reply["ismaster"]) == (1, asked, True)
        await_capable, query_failure, one_document = 8, 2, (0, 0, 1)  # as servers answer
        assert (reply.flags, reply.cursor) == (await_capable, one_document)
        client.send_query("admin.$cmd", {"find": "c"})
        reply = await client.receive()
        assert (reply.flags, reply.cursor, reply["code"]) == (await_capable, one_document, 352)
        client.send_query("db.c", {"a": 1})
        reply = await client.receive()
        assert (reply.flags, reply.cursor, reply["code"]) == (query_failure, one_document, 5739101)


async def test_a_hello_has_the_lifetime_of_sessions_that_is_set() -> None:
    settings = Settings(setParameter=Parameters(localLogicalSessionTimeoutMinutes=10))
    async with facade(settings=settings) as router, await router.client() as client:
        minutes = (await client.command("admin", {"hello": 1}))["logicalSessionTimeoutMinutes"]
        assert (minutes, type(minutes)) == (10, int)


async def test_an_internal_error_affects_only_its_client() -> None:
    async with facade() as router, await router.client() as client:
        router.process.cursors = None  # type: ignore[assignment]
        reply = await client.command("db", WATCH)
        assert (reply["code"], reply["codeName"]) == (1, "InternalError")
        assert (await client.command("admin", {"ping": 1}))["ok"] == 1


@pytest.mark.parametrize(
    ("commands", "labels"),
    [
        ([PING, {**INSERT, "txnNumber": Int64(1)}], ["RetryableWriteError"]),
        (
            [PING, {**INSERT, "txnNumber": Int64(1), "autocommit": False}],
            ["TransientTransactionError"],
        ),
        ([PING, INSERT], None),
        ([{"hello": 1}], ["RetryableWriteError"]),
    ],
    ids=["retryable write", "transaction", "neither", "handshake"],
)
async def test_draining_labels_what_is_refused_for_a_retry(
    commands: list[dict[str, Any]], labels: list[str] | None
) -> None:
    *before, last = commands
    async with facade() as router, await router.client() as client:
        for command in before:
            await client.command("admin", command)
        router.process.server.topology.quiesce(asyncio.get_running_loop().time() + 30)
        refused = await client.command("db", last)
        assert (refused["code"], refused.get("errorLabels")) == (91, labels)

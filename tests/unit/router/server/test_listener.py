"""The listener: order, streaming, bad input, disconnecting clients, shutdown."""

import asyncio
import struct
from typing import Any

import pytest
from bson import Int64
from structlog.testing import capture_logs

from router.tls.handshake import NO_TLS
from shard_client.wire.documents import encode
from shard_client.wire.frames import build_msg
from tests.doubles.fake_cursors import event
from tests.harness.facade import Facade, facade
from tests.harness.foreign_clients import GET, client_hello
from tests.harness.raw_client import EXHAUST_ALLOWED, MORE_TO_COME, RawClient
from tests.harness.until import until

WATCH: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}


async def open_stream(client: RawClient, **fields: Any) -> Int64:
    reply = await client.command("db", {**WATCH, **fields})
    return reply["cursor"]["id"]


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with facade() as router, await router.client() as client:
        asked = [client.send("admin", {"ping": 1, "comment": "x" * 2000}) for _ in range(50)]
        answered = [(await client.receive()).response_to for _ in asked]
        assert answered == asked


async def test_a_get_more_with_exhaust_allowed_gets_a_plain_reply() -> None:
    async with facade() as router, await router.client() as client:
        get_more = {"getMore": await open_stream(client), "collection": "c", "maxTimeMS": 1}
        reply = await client.command("db", get_more, flags=EXHAUST_ALLOWED)
        assert (reply["ok"], reply.flags) == (1, 0)


async def test_a_large_reply_arrives_whole() -> None:
    async with facade() as router, await router.client() as client:
        cursor_id = await open_stream(client)
        router.cursors.cursors[cursor_id].put(*(event(n, 4000) for n in range(3000)))
        reply = await client.command("db", {"getMore": cursor_id, "collection": "c"})
        assert [each["n"] for each in reply["cursor"]["nextBatch"]] == list(range(3000))


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
        await until(lambda: not router.node.counters.connections)


async def test_a_browser_is_told_that_this_is_not_the_port_for_http() -> None:
    async with facade() as router:
        with capture_logs() as logged:
            reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
            writer.write(GET)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"MongoDB over HTTP on the native driver port" in body
    (line,) = [line for line in logged if line.get("id") == 22988]
    assert line["error"]["codeName"] == "ProtocolError"


@pytest.mark.parametrize(("response_to", "answered"), [(0, True), (-1, True), (1, False)])
async def test_a_first_message_that_is_a_reply_is_refused(response_to: int, answered: bool) -> None:
    ping = build_msg(encode({"ping": 1, "$db": "admin"}), request_id=1, response_to=response_to)
    async with facade() as router:
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(ping)
        assert bool(await reader.read(1)) == answered
        writer.close()


async def test_unacknowledged_messages_get_no_reply() -> None:
    async with facade() as router, await router.client() as client:
        client.send("admin", {"ping": 1}, flags=MORE_TO_COME)
        client.send("db", {"insert": "c", "documents": [{}]}, flags=MORE_TO_COME)
        last = client.send("admin", {"ping": 1})
        assert (await client.receive()).response_to == last


async def test_document_sequences_are_not_fields_of_the_router_s_commands() -> None:
    async with facade() as router, await router.client() as client:
        command = {"killCursors": "c"}
        reply = await client.command("db", command, sequences={"cursors": [{}]})
        assert (reply["code"], reply["errmsg"]) == (
            40414,
            "BSON field 'killCursors.cursors' is missing but a required field",
        )


async def test_compression_is_negotiated_and_follows_the_client() -> None:
    async with facade() as router, await router.client() as client:
        hello = await client.command("admin", {"hello": 1, "compression": ["lz4", "zlib"]})
        assert hello["compression"] == ["zlib"]
        assert (await client.command("admin", {"ping": 1}, compressed=True)).compressed
        assert not (await client.command("admin", {"ping": 1})).compressed
        assert not (await client.command("admin", {"hello": 1}, compressed=True)).compressed


async def hello_version(client: RawClient) -> dict[str, Any]:
    return (await client.command("admin", {"hello": 1}))["topologyVersion"]


async def test_hello_waits_for_a_change_of_the_topology() -> None:
    async with facade() as router, await router.client() as client:
        version = await hello_version(client)
        command = {"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 60_000}
        client.send("admin", command)
        await until(lambda: router.node.counters.awaiting_hellos)
        router.node.topology.advance()
        reply = await client.receive()
        assert reply["topologyVersion"]["counter"] == version["counter"] + 1
        assert reply.flags == 0
        # An outdated topologyVersion is answered at once.
        assert (await client.command("admin", command))["ok"] == 1


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
        router.node.topology.advance()
        while (reply := await client.receive())["topologyVersion"] == version:
            pass
        assert reply["topologyVersion"]["counter"] == version["counter"] + 1
        await router.listener.drain(1)
        while (reply := await client.receive())["ok"]:
            pass
        assert (reply["code"], reply.flags) == (91, 0)
        assert reply["topologyVersion"]["counter"] == version["counter"] + 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"maxAwaitTimeMS": 5}, 51760),
        ({"topologyVersion": {"counter": Int64(0)}}, 51760),
        ({"topologyVersion": {"counter": Int64(-1)}, "maxAwaitTimeMS": 5}, 51758),
        ({"topologyVersion": {"counter": Int64(0)}, "maxAwaitTimeMS": -5}, 51759),
        ({"topologyVersion": 5, "maxAwaitTimeMS": 5}, 14),
    ],
)
async def test_hello_refuses_contradictions(fields: dict[str, Any], code: int) -> None:
    async with facade() as router, await router.client() as client:
        assert (await client.command("admin", {"hello": 1, **fields}))["code"] == code


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
        client.send_query("admin.$cmd", {"find": "c"})
        assert (await client.receive())["code"] == 352
        client.send_query("db.c", {"a": 1})
        reply = await client.receive()
        assert reply.flags & 2
        assert reply["code"] == 5739101


def framed(body: bytes, op_code: int = 2013, length: int | None = None) -> bytes:
    return struct.pack("<iiii", length or 16 + len(body), 7, 0, op_code) + body


PING = b"\x0f\0\0\0\x10ping\0\1\0\0\0\0"
BAD = {
    "length below a header": framed(b"", length=15),
    "length beyond the largest": framed(b"", length=48_000_001),
    "negative length": framed(b"", length=-1),
    "unknown opcode": framed(b"\0" * 8, 1234),
    "legacy insert": framed(b"\0" * 32, 2002),
    "no body": framed(b"\0\0\0\0"),
    "unknown flag": framed(b"\x04\0\0\0\0" + PING),
    "unknown section": framed(b"\0\0\0\0\5" + PING),
    "two bodies": framed(b"\0\0\0\0\0" + PING + b"\0" + PING),
    "body longer than the message": framed(b"\0\0\0\0\0\xff\0\0\0\x10ping\0\1\0\0\0\0"),
    "wrong checksum": framed(b"\1\0\0\0\0" + PING + b"\0\0\0\0"),
    "not BSON inside": framed(b"\0\0\0\0\0\x0f\0\0\0\x99ping\0\1\0\0\0\0"),
    "a bomb": framed(struct.pack("<iiB", 2013, 2**30, 2) + b"x", 2012),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_closes_only_its_own_connection(name: str) -> None:
    async with facade() as router, await router.client() as good:
        async with await router.client() as bad:
            bad.send_bytes(BAD[name])
            assert await bad.closed()
        assert (await good.command("admin", {"ping": 1}))["ok"] == 1
        assert router.node.counters.connections == 1


async def test_a_command_without_database_is_refused() -> None:
    async with facade() as router, await router.client() as client:
        client.send_bytes(framed(b"\0\0\0\0\0" + PING))
        assert (await client.receive())["code"] == 40571


async def test_an_internal_error_affects_only_its_client() -> None:
    async with facade() as router, await router.client() as client:
        router.node.cursors = None  # type: ignore[assignment]
        reply = await client.command("db", WATCH)
        assert (reply["code"], reply["codeName"]) == (1, "InternalError")
        assert (await client.command("admin", {"ping": 1}))["ok"] == 1


async def test_draining_refuses_new_commands_and_finishes_running_ones() -> None:
    async with facade() as router, await router.client() as running, await router.client() as new:
        cursor_id = await open_stream(running)
        running.send("db", {"getMore": cursor_id, "collection": "c", "maxTimeMS": 60_000})
        cursor = router.cursors.cursors[cursor_id]
        await cursor.waiting.wait()
        assert (await new.command("admin", {"ping": 1}))["ok"] == 1
        draining = asyncio.create_task(router.listener.drain(30))
        await until(lambda: router.node.topology.quiescing)
        reply = await new.command("db", WATCH)
        assert (reply["code"], reply["errorLabels"]) == (91, ["ResumableChangeStreamError"])
        assert (await new.command("admin", {"hello": 1}))["code"] == 91
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", router.port)
        cursor.put(event(1))
        assert len((await running.receive())["cursor"]["nextBatch"]) == 1
        await draining


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({"txnNumber": Int64(1)}, ["RetryableWriteError"]),
        ({"txnNumber": Int64(1), "autocommit": False}, ["TransientTransactionError"]),
        ({}, None),
    ],
    ids=["retryable write", "transaction", "neither"],
)
async def test_draining_labels_refused_writes_for_a_retry(
    fields: dict[str, Any], labels: list[str] | None
) -> None:
    async with facade() as router, await router.client() as client:
        await client.command("admin", {"ping": 1})
        router.node.topology.quiesce(asyncio.get_running_loop().time() + 30)
        insert = {"insert": "c", "documents": [{"_id": 1}], **fields}
        refused = await client.command("db", insert)
        assert (refused["code"], refused.get("errorLabels")) == (91, labels)


async def test_draining_labels_the_handshake_of_a_new_connection_for_a_retry() -> None:
    async with facade() as router, await router.client() as client:
        router.node.topology.quiesce(asyncio.get_running_loop().time() + 30)
        refused = await client.command("admin", {"hello": 1})
        assert (refused["code"], refused["errorLabels"]) == (91, ["RetryableWriteError"])


def kinds(router: Facade) -> dict[str, int]:
    return {name: count for name, count in router.node.counters.by_kind.items() if count}


async def test_commands_are_counted_by_kind() -> None:
    async with facade() as router, await router.client() as client:
        await client.command("db", {"insert": "c", "documents": []})
        await client.command("db", {"getMore": Int64(5), "collection": "c"})
        await client.command("admin", {"ping": 1})
        assert kinds(router) == {"insert": 1, "getmore": 1, "command": 1}

"""The feed over sockets: requests, lines of events, and how feeds end."""

import asyncio
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import bson
import pytest
from bson.json_util import CANONICAL_JSON_OPTIONS, RELAXED_JSON_OPTIONS, JSONOptions
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from router.commands.serving_process import ServingProcess
from router.config.settings import load_settings
from router.feed import json_lines as json_lines_module
from router.feed.feed import FeedPort
from router.feed.json_lines import json_lines
from router.feed.watch import Watch, parse_watch
from router.request import gradual_decoding
from shard_client.errors import CommandError
from tests.doubles.fake_cursors import FakeCursor, FakeCursors, event
from tests.harness.until import until

REFUSALS = ("BadValue", "FailedToParse", "TypeMismatch", "Unauthorized")


@asynccontextmanager
async def feed(
    request_wait: float = 0.02, access: Any = None, most: int = 10
) -> AsyncIterator[tuple[FakeCursors, int]]:
    cursors: Any = FakeCursors()
    settings = load_settings({"feed": {"requestWaitMs": request_wait * 1000}})
    process = ServingProcess(cursors=cursors, cluster=cursors, access=access, settings=settings)
    async with FeedPort(process, most=most, handshakes=None) as listening:
        yield cursors, await listening.listen(["127.0.0.1"], 0)


async def watch(
    port: int, line: dict[str, Any] | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if line is not None:
        writer.write(json.dumps(line).encode() + b"\n")
    return reader, writer


async def the_cursor(cursors: FakeCursors) -> FakeCursor:
    await until(lambda: cursors.cursors)
    (cursor,) = cursors.cursors.values()
    return cursor


@asynccontextmanager
async def watched(
    **fields: Any,
) -> AsyncIterator[tuple[FakeCursors, FakeCursor, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Watch a database; yield the cursors, that of the feed, and the client's connection."""
    async with feed() as (cursors, port):
        reader, writer = await watch(port, {"database": "db", **fields})
        yield cursors, await the_cursor(cursors), reader, writer
        writer.close()


async def test_a_half_closed_client_continues_reading() -> None:
    async with feed() as (cursors, port):
        reader, writer = await watch(port, {"database": "db"})
        writer.write_eof()
        cursor = await the_cursor(cursors)
        cursor.put(event(1))
        assert json.loads(await reader.readline())["n"] == 1
        writer.close()


async def test_text_that_is_not_utf_8_does_not_end_the_feed() -> None:
    async with watched() as (_, cursor, reader, _writer):
        damaged = bson.encode({"n": 1, "a?": "b?"}).replace(b"?", b"\xff")
        cursor.put(damaged, event(2))
        assert json.loads(await reader.readline()) == {"n": 1, "a\ufffd": "b\ufffd"}
        assert json.loads(await reader.readline())["n"] == 2


async def test_an_unexpected_error_of_a_stream_is_no_error_of_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("planted")

    with capture_logs() as logs:
        async with watched() as (_, cursor, reader, _writer):
            monkeypatch.setattr("router.feed.json_lines.decode", fail)
            cursor.put(event(1))
            assert await reader.read() == b""
    assert [each["event"] for each in logs if each["log_level"] == "error"] == [
        "Unexpected error in a feed"
    ]


async def test_encoding_for_all_feeds_holds_up_no_iteration_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    iteration, encoded = 0, Counter[int]()
    loop, main = asyncio.get_running_loop(), threading.get_ident()

    def tick() -> None:
        nonlocal iteration
        iteration += 1
        loop.call_soon(tick)

    def decode_counted(raw: bytes, options: Any) -> Any:
        assert threading.get_ident() == main, "a thread keeps the interpreter's lock"
        encoded[iteration] += len(raw)
        return bson.decode(raw)

    sizes = [*[10_000] * 20, 40_000, 1_000_000, *[100] * 1000]
    events = [bson.encode({"n": ["x" * 90] * (size // 100)}) for size in sizes]
    async with feed() as (cursors, port):
        clients = [await watch(port, {"database": "db"}) for _ in range(5)]
        await until(lambda: len(cursors.cursors) == len(clients))
        monkeypatch.setattr("router.feed.json_lines.decode", decode_counted)
        loop.call_soon(tick)
        for cursor in cursors.cursors.values():
            cursor.put(*events)
            cursor.end()
        texts = await asyncio.gather(*(reader.read() for reader, _writer in clients))
        for _reader, writer in clients:
            writer.close()
    for text in texts:
        assert [len(json.loads(line)["n"]) * 100 for line in text.splitlines()] == sizes
    assert max(encoded.values()) <= 32 * 1024


FIELDS = st.recursive(
    st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20) | st.floats() | st.booleans()
    | st.binary(max_size=20) | st.datetimes() | st.builds(bson.ObjectId)
    | st.just(bson.Code("f", {"a": 1})),
    lambda inner: st.lists(inner, max_size=5)
    | st.dictionaries(st.text("abc", min_size=1), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize("form", [RELAXED_JSON_OPTIONS, CANONICAL_JSON_OPTIONS])
@settings(max_examples=100, deadline=None)
@given(document=st.dictionaries(st.text("abc", min_size=1), FIELDS, min_size=5))
def test_a_large_event_has_the_line_of_a_small_one(
    document: dict[str, Any], form: JSONOptions
) -> None:
    raw, turns = bson.encode(document), 0

    async def turn(_cost: int) -> None:
        nonlocal turns
        turns += 1

    async def line() -> bytes:
        return b"".join([text async for text in json_lines([raw], form, turn)])

    whole = asyncio.run(line())
    with pytest.MonkeyPatch.context() as patch:
        for module in (gradual_decoding, json_lines_module):
            patch.setattr(module, "PIECE_SIZE", 20)
        assert asyncio.run(line()) == whole
    assert turns > 2


async def test_a_client_that_resets_its_connection_is_no_error() -> None:
    with capture_logs() as logs:
        async with watched() as (cursors, _cursor, _reader, writer):
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.close()
            await until(lambda: not cursors.cursors)
            await until(lambda: [each for each in logs if each.get("component") == "FEED"])
    assert [each for each in logs if each["log_level"] == "error"] == []


async def test_a_feed_starts_at_a_time() -> None:
    time = {"$timestamp": {"t": 1795163200, "i": 3}}
    async with watched(startAtOperationTime=time) as (cursors, *_):
        assert [opened.start for opened in cursors.opened] == [bson.Timestamp(1795163200, 3)]


async def test_a_quiet_stream_sends_its_token() -> None:
    async with watched(heartbeatMs=10) as (_, cursor, reader, _writer):
        place = json.loads(await reader.readline())["resolved"]["_data"]
        assert place.startswith("82")
        cursor.put(event(1))
        while "n" not in (line := json.loads(await reader.readline())):
            assert list(line) == ["resolved"]
        assert line["n"] == 1


async def test_an_overlong_line_closes_its_connection() -> None:
    async with feed(request_wait=5) as (cursors, port):
        reader, writer = await watch(port)
        writer.write(b"x" * (3 * 2**20))
        # Unread input resets the connection, so the error may not arrive.
        with suppress(ConnectionResetError):
            await reader.read()
        assert not cursors.opened
        writer.close()


async def test_a_slow_reader_pauses_the_feed() -> None:
    async with watched() as (_, cursor, reader, _writer):
        for start in range(0, 3000, 500):
            cursor.put(*(event(n, 10_000) for n in range(start, start + 500)))
            await asyncio.sleep(0)
        await until(lambda: not cursor.in_use)
        # 30 MB exceed the socket's buffers, so the feed stops reading its cursor.
        assert len(cursor.events) > 0
        for number in range(3000):
            assert json.loads(await reader.readline())["n"] == number


async def test_feeds_over_the_limit_are_refused() -> None:
    async with feed(most=1) as (cursors, port):
        _reader, first = await watch(port, {"database": "db"})
        await the_cursor(cursors)
        reader, second = await watch(port, {"database": "db"})
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert len(cursors.opened) == 1
        first.close()
        second.close()


@pytest.mark.parametrize("login", [True, False])
@pytest.mark.parametrize("depth", [500, 5_000])
async def test_a_deeply_nested_line_is_refused_with_one_line(depth: int, login: bool) -> None:
    line = b'{"pipeline": ' + b"[" * depth + b"]" * depth + b"}\n"
    access: Any = SimpleNamespace()
    with capture_logs() as logged:
        async with feed(request_wait=20, access=access if login else None) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(line)
            assert json.loads(await reader.readline())["error"]["codeName"] in REFUSALS
            assert await reader.read() == b""
            writer.close()
    assert not [each for each in logged if "exc_info" in each]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6)
    | st.sampled_from([{"$oid": "x"}, {"$date": "x"}, {"$numberLong": "x"}, {"$uuid": "x"},
                       {"$timestamp": {"t": 1, "i": 2}}, {"$binary": "x"}, {"_data": "82"},
                       {"$numberDecimal": "x"}, {"$regularExpression": {}}, {"$code": 1}]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4) | st.just("$match"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
NAMES = st.sampled_from(
    ["database", "collection", "pipeline", "json", "resumeAfter", "startAfter", "fullDocument",
     "startAtOperationTime", "fullDocumentBeforeChange", "showExpandedEvents", "heartbeatMs",
     "else"]
)  # fmt: skip


def test_fields_have_their_documented_names_alone() -> None:
    with pytest.raises(ValueError, match=r"heartbeat_ms is not a field. Did you mean heartbeatMs"):
        parse_watch('{"heartbeat_ms": 1000}')


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, VALUES | st.sampled_from(["db", "c", "canonical"]), max_size=4))
def test_any_json_object_is_parsed_or_refused(wanted: dict[str, object]) -> None:
    with suppress(ValueError, CommandError):
        assert isinstance(parse_watch(json.dumps(wanted)), Watch)

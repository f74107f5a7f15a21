"""A connection that has ended leaves nothing behind, although the collector has not run."""

import gc
import socket
import struct
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
from bson import Int64

from router.limits.client_limits import ClientLimits
from router.server.client_connection import ClientConnection
from router.upstream.upstream_mongos import UpstreamMongos
from shard_client.wire.frame_protocol import FrameStream
from tests.doubles.fake_cursors import event
from tests.doubles.scripted_server import Asked, scripted_server
from tests.harness.facade import WATCH, Facade, facade
from tests.harness.raw_client import RawClient
from tests.harness.until import until

T = TypeVar("T")
MIB = 1024 * 1024
LARGE = struct.pack("<iiii", 4 * MIB, 1, 0, 2013) + bytes(3 * MIB)


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def living(kind: type[T]) -> list[T]:
    # By its type, since a proxy of an object that has gone raises when it is asked for its class.
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def reset(client: RawClient) -> None:
    connection = client.writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


async def leaves_within_a_message(_router: Facade, client: RawClient) -> None:
    client.send_bytes(LARGE)
    await client.writer.drain()


async def leaves_during_a_get_more(router: Facade, client: RawClient) -> None:
    reply = await client.command("db", WATCH)
    cursor_id = Int64(reply["cursor"]["id"])
    client.send("db", {"getMore": cursor_id, "collection": "c", "maxTimeMS": 60_000})
    await router.cursors.cursors[cursor_id].waiting.wait()


async def leaves_with_a_reply_unread(router: Facade, client: RawClient) -> None:
    reply = await client.command("db", WATCH)
    cursor_id = Int64(reply["cursor"]["id"])
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    router.cursors.cursors[cursor_id].put(*(event(number, MIB) for number in range(12)))
    client.send("db", {"getMore": cursor_id, "collection": "c"})
    (connection,) = living(ClientConnection)
    await until(lambda: connection._stream.unsent)
    reset(client)


async def leaves_with_the_first_reply_unread(router: Facade, client: RawClient) -> None:
    router.cursors.first = [event(number, MIB) for number in range(12)]
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send("db", WATCH)
    await until(lambda: any(each._stream.unsent for each in living(ClientConnection)))
    router.cursors.first = []
    assert router.cursors.cursors
    reset(client)


async def leaves_during_a_relayed_command(router: Facade, client: RawClient) -> None:
    before = router.process.counters.passed_through
    client.send("db", {"insert": "c", "documents": [{"pad": "x" * 50_000}]})
    await client.writer.drain()
    await until(lambda: router.process.counters.passed_through > before)


async def misses_a_deadline(_router: Facade, client: RawClient) -> None:
    client.send_bytes(LARGE)
    await client.closed()


async def never_answers(_asked: Asked) -> None:
    """Leave the client's command in flight."""


@pytest.mark.parametrize(
    "visit",
    [
        leaves_within_a_message,
        leaves_during_a_get_more,
        leaves_with_a_reply_unread,
        leaves_with_the_first_reply_unread,
        leaves_during_a_relayed_command,
        misses_a_deadline,
    ],
)
async def test_nothing_is_left_of_a_closed_connection(
    visit: Callable[[Facade, RawClient], Awaitable[None]], uncollected: None
) -> None:
    limits = ClientLimits(message_time=0.3 if visit is misses_a_deadline else 30.0)
    async with scripted_server(never_answers) as server:
        upstream = UpstreamMongos((("127.0.0.1", server.port),))
        async with facade(upstream, client_limits=limits) as router:
            for _ in range(2):
                before, _peak = tracemalloc.get_traced_memory()
                async with await router.client() as client:
                    await visit(router, client)
                del client
                await until(lambda: not router.process.counters.connections)
                # No driver goes on with a cursor whose getMore or reply it did not await.
                await until(lambda: not router.cursors.cursors)
            await until(lambda: not living(ClientConnection))
            streams = living(FrameStream)
            assert sum(len(each._view) for each in streams) < 64 * 1024
            after, _peak = tracemalloc.get_traced_memory()
            assert after - before < MIB // 2

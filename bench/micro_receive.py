"""Receiving frames under uvloop: FrameStream against a plain asyncio.Protocol.

Run: .venv/bin/python -m bench.micro_receive

One process sends requests, another answers each with a frame. The figures are the first process's
CPU time per frame.
"""

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Callable
from typing import Any, cast

import uvloop

from shard_client.wire.documents import encode
from shard_client.wire.frame_protocol import FrameStream
from shard_client.wire.frames import build_msg, reply_body

SIZES = ((400, 20_000), (20_000, 10_000), (200_000, 3_000), (1_000_000, 800), (4_000_000, 150))
REQUEST = bytes(16)
KEEP = 8 * 1024 * 1024


class Chunks(asyncio.Protocol):
    """A receiver that collects a frame's chunks in data_received and joins them."""

    def __init__(self, connected: Callable[[Any], None]) -> None:
        self.connected = connected
        self.chunks: list[bytes] = []
        self.missing = 0
        self.frame: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and report the connection."""
        self.transport = cast(asyncio.Transport, transport)
        self.connected(self)

    def write(self, data: bytes) -> None:
        """Send a request."""
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Collect a chunk; complete ``receive`` with the last one."""
        if not self.chunks:
            self.missing = int.from_bytes(data[:4], "little")
        self.chunks.append(data)
        self.missing -= len(data)
        if not self.missing and self.frame is not None:
            frame = b"".join(self.chunks) if len(self.chunks) > 1 else data
            self.chunks = []
            self.frame.set_result(frame)

    async def receive(self) -> bytes:
        """Wait for a frame and return its body."""
        self.frame = asyncio.get_running_loop().create_future()
        return reply_body(memoryview(await self.frame))


class Stream(FrameStream):
    """A receiver that works as the router's connections do."""

    def __init__(self, connected: Callable[[Any], None]) -> None:
        super().__init__(connected, keep=KEEP)

    async def receive_body(self) -> bytes:
        """Wait for a frame and return its body."""
        body = await self.receive(reply_body)
        assert body is not None
        return body


def answer(address: tuple[str, int], size: int) -> None:
    """Answer each request with one frame of about ``size`` bytes."""
    frame = build_msg(encode({"pad": b"x" * (size - 50), "ok": 1.0}), request_id=1)
    with socket.create_connection(address) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while peer.recv(len(REQUEST)):
            peer.sendall(frame)


async def measure(size: int, count: int, kind: type[Chunks] | type[Stream]) -> float:
    """Return the CPU microseconds of receiving one frame."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Chunks | Stream] = loop.create_future()
    server = await loop.create_server(lambda: kind(made.set_result), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    peer = multiprocessing.get_context("spawn").Process(
        target=answer, args=(address, size), daemon=True
    )
    peer.start()
    protocol = await made
    receive = protocol.receive_body if isinstance(protocol, Stream) else protocol.receive
    begin = 0.0
    for number in range(count + count // 10):
        if number == count // 10:
            begin = time.process_time()
        protocol.write(REQUEST)
        await receive()
    used = time.process_time() - begin
    assert protocol.transport is not None
    protocol.transport.close()
    server.close()
    await asyncio.to_thread(peer.join)
    return used / count * 1e6


def main() -> None:
    """Measure frames of several sizes through both receivers, and print a table."""
    print("us of CPU a frame    data_received    FrameStream")
    for size, count in SIZES:
        plain = uvloop.run(measure(size, count, Chunks))
        stream = uvloop.run(measure(size, count, Stream))
        print(f"{size:10} bytes     {plain:10.1f}     {stream:10.1f}")


if __name__ == "__main__":
    main()

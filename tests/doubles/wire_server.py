"""A server built on the project's own frames, for connections: exhaust, checksums."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from shard_client.wire.documents import encode
from shard_client.wire.frame_protocol import FrameStream
from shard_client.wire.frames import (
    MORE_TO_COME,
    Message,
    OpMsg,
    build_msg,
    compress_frame,
    parse_message,
)

Answer = Callable[[FrameStream, Message, dict[str, Any]], Awaitable[None]]


def reply_to(message: Message, document: dict[str, Any], flags: int = 0) -> bytes:
    frame = build_msg(encode(document), request_id=77, response_to=message.request_id, flags=flags)
    return compress_frame(frame, message.compressor) if message.compressor else frame


class WireServer:
    """A server that answers hello by itself and all other commands by the test's function."""

    def __init__(self, answer: Answer | None) -> None:
        self.answer = answer
        self.messages: list[Message] = []
        self.streams: list[FrameStream] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def connected(self, stream: FrameStream) -> None:
        self.streams.append(stream)
        self.tasks.add(asyncio.get_running_loop().create_task(self.serve(stream)))

    async def serve(self, stream: FrameStream) -> None:
        while (frame := await stream.receive(bytes)) is not None:
            message = parse_message(frame)
            assert isinstance(message.payload, OpMsg)
            document = message.payload.document()
            self.messages.append(message)
            if "hello" in document:
                stream.write(reply_to(message, {"ok": 1.0, "setName": "rs"}))
            elif self.answer is not None and not message.payload.flags & MORE_TO_COME:
                await self.answer(stream, message, document)


@asynccontextmanager
async def serving(
    answer: Answer | None = None, **options: Any
) -> AsyncIterator[tuple[Any, WireServer]]:
    server = WireServer(answer)
    listener = await asyncio.get_running_loop().create_server(
        lambda: FrameStream(server.connected), "127.0.0.1", 0, **options
    )
    try:
        yield listener.sockets[0].getsockname()[:2], server
    finally:
        listener.close()
        for stream in server.streams:
            stream.abort()
        await asyncio.gather(*server.tasks)


async def echo(stream: FrameStream, message: Message, document: dict[str, Any]) -> None:
    stream.write(reply_to(message, {"ok": 1.0, "echo": document}))


async def silent(*_: Any) -> None:
    pass

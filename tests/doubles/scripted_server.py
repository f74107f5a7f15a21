"""A server that records messages and answers each by a test's script."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import bson

from shard_client.wire.frames import MORE_TO_COME

_HEADER = struct.Struct("<iiii")
_OP_MSG = 2013


@dataclass
class Asked:
    """One message as it arrived, with a method to answer it."""

    frame: bytes
    request_id: int
    flags: int
    command: dict[str, Any]
    writer: asyncio.StreamWriter

    def reply(self, document: dict[str, Any], *, flags: int = 0) -> None:
        """Reply with one document."""
        body = struct.pack("<IB", flags, 0) + bson.encode(document)
        reply_id = (5000 + self.request_id) & 0x7FFFFFFF
        header = _HEADER.pack(16 + len(body), reply_id, self.request_id, _OP_MSG)
        self.writer.write(header + body)


Script = Callable[[Asked], Awaitable[None]]


@dataclass
class ScriptedServer:
    """Records messages except hellos in ``asked``; ``connections`` counts the open ones."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0

    def names(self) -> list[str]:
        return [next(iter(each.command)) for each in self.asked]


@asynccontextmanager
async def scripted_server(script: Script) -> AsyncIterator[ScriptedServer]:
    """Listen on a free port until the block ends; hello is answered as by a mongos."""
    state = ScriptedServer()
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state.connections += 1
        writers.add(writer)
        try:
            while True:
                header = await reader.readexactly(16)
                length, request_id, _response_to, op_code = _HEADER.unpack(header)
                body = await reader.readexactly(length - 16)
                assert op_code == _OP_MSG
                (flags,) = struct.unpack_from("<I", body)
                (size,) = struct.unpack_from("<i", body, 5)
                command = bson.decode(body[5 : 5 + size])
                asked = Asked(header + body, request_id, flags, command, writer)
                if "hello" in command:
                    asked.reply({"msg": "isdbgrid", "maxWireVersion": 17, "ok": 1.0})
                    continue
                state.asked.append(asked)
                await script(asked)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            state.connections -= 1
            writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()
        for writer in list(writers):
            writer.transport.abort()


async def answer_ok(asked: Asked) -> None:
    """Answer each command that expects a reply with its name."""
    if not asked.flags & MORE_TO_COME:
        asked.reply({"you": "asked", "n": next(iter(asked.command)), "ok": 1.0})

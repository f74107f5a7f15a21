"""A client with its own message framing, which can also send what no driver sends."""

import asyncio
import struct
import zlib
from typing import Any, Self

import bson
from bson.codec_options import CodecOptions
from scramp import ScramClient

from tests.harness.until import PATIENCE

_HEADER = struct.Struct("<iiii")
_OP_REPLY, _OP_QUERY, _OP_COMPRESSED, _OP_MSG = 1, 2004, 2012, 2013
_ZLIB = 2
MORE_TO_COME, EXHAUST_ALLOWED = 2, 1 << 16


class Reply(dict[str, Any]):
    """A decoded reply with the fields of its header."""

    request_id: int
    response_to: int
    flags: int
    op_code: int
    compressed: bool
    cursor: tuple[int, int, int]
    """Of an OP_REPLY: cursorID, startingFrom and numberReturned."""


class RawClient:
    """One connection to a server. ``async with await RawClient.connect(port) as client``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._id = 100

    @classmethod
    async def connect(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**26))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)

    def send(
        self,
        database: str,
        command: dict[str, Any],
        *,
        flags: int = 0,
        sequences: dict[str, list[dict[str, Any]]] | None = None,
        compressed: bool = False,
    ) -> int:
        """Send an OP_MSG and return its id."""
        body = struct.pack("<I", flags) + b"\0" + bson.encode({**command, "$db": database})
        for name, documents in (sequences or {}).items():
            content = name.encode() + b"\0" + b"".join(map(bson.encode, documents))
            body += b"\1" + struct.pack("<i", len(content) + 4) + content
        return self._frame(_OP_MSG, body, compressed)

    def send_query(self, namespace: str, query: dict[str, Any]) -> int:
        """Send an OP_QUERY, as old drivers do."""
        body = struct.pack("<i", 0) + namespace.encode() + b"\0" + struct.pack("<ii", 0, -1)
        return self._frame(_OP_QUERY, body + bson.encode(query), False)

    def _frame(self, op_code: int, body: bytes, compressed: bool) -> int:
        self._id += 1
        if compressed:
            body = struct.pack("<iiB", op_code, len(body), _ZLIB) + zlib.compress(body)
            op_code = _OP_COMPRESSED
        self.writer.write(_HEADER.pack(16 + len(body), self._id, 0, op_code) + body)
        return self._id

    async def receive(self) -> Reply:
        """Return the next reply; raise EOFError if the server has closed the connection."""
        (_, request_id, response_to, op_code), body = await self._receive_frame(PATIENCE)
        compressed = op_code == _OP_COMPRESSED
        if compressed:
            op_code, _size, compressor = struct.unpack_from("<iiB", body)
            assert compressor == _ZLIB
            body = zlib.decompress(body[9:])
        start = 20 if op_code == _OP_REPLY else 5
        reply = Reply(bson.decode(body[start:], CodecOptions()))
        reply.request_id, reply.response_to, reply.op_code = request_id, response_to, op_code
        reply.flags = struct.unpack_from("<I", body)[0]
        reply.compressed = compressed
        if op_code == _OP_REPLY:
            reply.cursor = struct.unpack_from("<qii", body, 4)
        return reply

    async def receive_raw(self, seconds: float, options: CodecOptions[Any]) -> Any:
        """Return the next reply's document, decoded with ``options``; raise EOFError at the end.

        Args:
            seconds: the timeout.
            options: codec options, which select the document class such as RawBSONDocument.
        """
        _, body = await self._receive_frame(seconds)
        return bson.decode(body[5:], options)

    async def _receive_frame(self, seconds: float) -> tuple[tuple[int, ...], bytes]:
        async with asyncio.timeout(seconds):
            try:
                header = _HEADER.unpack(await self.reader.readexactly(16))
                return header, await self.reader.readexactly(header[0] - 16)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise EOFError("the server closed the connection") from error

    async def command(self, database: str, command: dict[str, Any], **how: Any) -> Reply:
        """Send a command and return its reply, which must respond to it."""
        request_id = self.send(database, command, **how)
        reply = await self.receive()
        assert reply.response_to == request_id
        return reply

    async def log_in(self, user: str) -> None:
        """Log in as a user of ``admin`` whose password is its name."""
        mechanism = "SCRAM-SHA-256"
        scram = ScramClient([mechanism], user, user)
        start = {"saslStart": 1, "mechanism": mechanism, "options": {"skipEmptyExchange": True}}
        first = scram.get_client_first().encode()
        reply = await self.command("admin", {**start, "payload": first})
        scram.set_server_first(bytes(reply["payload"]).decode())
        step = {"saslContinue": 1, "conversationId": reply["conversationId"]}
        final = scram.get_client_final().encode()
        reply = await self.command("admin", {**step, "payload": final})
        assert reply.get("done"), reply

    async def closed(self) -> bool:
        """Wait until the server has closed the connection; discard what it still sends."""
        async with asyncio.timeout(PATIENCE):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                pass
        return True


async def get_more_in_flight(
    holder: RawClient, other: RawClient, database: str, cursor_id: int, **fields: Any
) -> asyncio.Task[Reply]:
    """Start a getMore of a minute; return the task with its reply once the cursor is in use.

    Args:
        holder: the connection of the getMore.
        other: a connection whose short getMores are refused as soon as the cursor is in use.
        database: the cursor's database.
        cursor_id: a cursor on the collection ``c``, without events.
        fields: further fields of both getMores.
    """
    get_more = {"getMore": cursor_id, "collection": "c", **fields}
    async with asyncio.timeout(PATIENCE):
        while True:
            holder.send(database, {**get_more, "maxTimeMS": 60_000})
            answer = asyncio.create_task(holder.receive())
            while not answer.done():  # done with code 143 if a short getMore arrived first
                reply = await other.command(database, {**get_more, "maxTimeMS": 1})
                if reply.get("code") == 143:
                    return answer

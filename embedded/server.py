"""The network side of an embedded server: receives frames, runs commands, sends replies.

Source: docs/protocol.md#wire-protocol (frames, streaming hello).
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import cast

import structlog
from bson.errors import InvalidDocument

from embedded.client import Client
from embedded.errors import CommandError, ErrorCode, internal_error
from embedded.storage.bson_values import Document, without_dbrefs
from shard_client.errors import ProtocolError
from shard_client.wire.documents import encode
from shard_client.wire.frames import (
    EXHAUST_ALLOWED,
    HEADER_SIZE,
    MORE_TO_COME,
    Message,
    OpMsg,
    OpQuery,
    build_msg,
    build_op_reply,
    compress_frame,
    frame_length,
    parse_message,
)
from shard_client.wire.tls import TlsContexts

log = structlog.get_logger()

_MAX_CONNECTIONS = 4_000
_MAX_WAITING_BYTES = 48_000_000
"""Bytes of frames read ahead of the running command, above which the server stops reading."""

_HELLOS = frozenset({"hello", "isMaster", "ismaster"})


RunCommand = Callable[[str, Document, Client], Awaitable[Document]]
"""Runs a command on a database and returns its complete reply; errors become ``ok: 0``.

The server cancels the call when the client's connection ends. A ``hello`` with ``topologyVersion``
and ``maxAwaitTimeMS`` waits here; the server repeats it if the client allows exhaust.
"""


class Server:
    """Listens on one port of 127.0.0.1 and runs the commands of every connection.

    Each connection runs its commands one after the other in its own task. A protocol error closes
    only the connection on which it occurs. With ``tls``, every connection uses TLS.
    """

    def __init__(self, run_command: RunCommand, tls: TlsContexts | None = None) -> None:
        self._run_command = run_command
        self._tls = tls
        self._listening: asyncio.Server | None = None
        self._address: tuple[str, int] | None = None
        # A dictionary, so that connections are closed in the order in which they were opened.
        self._open: dict[_Connection, None] = {}
        self._numbers = count(1)

    async def start(self, port: int = 0) -> None:
        """Listen on ``port``; 0 picks a free one.

        Raises:
            OSError: the port is taken.
        """
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls.incoming
        self._listening = await loop.create_server(self._accept, "127.0.0.1", port, ssl=context)
        host, port = self._listening.sockets[0].getsockname()[:2]
        self._address = (str(host), int(port))

    async def stop(self) -> None:
        """Stop listening, close all connections and cancel their commands."""
        if self._listening is not None:
            self._listening.close()
        tasks = [task for connection in list(self._open) if (task := connection.abort())]
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listening is not None:
            await self._listening.wait_closed()

    @property
    def address(self) -> tuple[str, int]:
        """The current or last host and port.

        Raises:
            RuntimeError: the server has not been started.
        """
        if self._address is None:
            raise RuntimeError("the server has not been started")
        return self._address

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def _accept(self) -> "_Connection":
        return _Connection(self._run_command, next(self._numbers), self._open)


class _Connection(asyncio.Protocol):
    """Splits one client's bytes into frames, runs them in order and sends the replies."""

    def __init__(
        self, run_command: RunCommand, number: int, connections: "dict[_Connection, None]"
    ) -> None:
        self._run_command = run_command
        self._client = Client(connection_id=number)
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._request_ids = count(1)

    # Methods of asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._client.peer = f"{peer[0]}:{peer[1]}" if peer else ""
        if len(self._connections) >= _MAX_CONNECTIONS:
            log.warning("connection refused", reason="too many connections", peer=self._client.peer)
            transport.abort()
            return
        self._connections[self] = None
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            self._cut()
        except ProtocolError as error:
            self._give_up(error)

    def _cut(self) -> None:
        start = 0
        while len(self._buffer) - start >= HEADER_SIZE:
            length = frame_length(self._buffer, start)
            if len(self._buffer) - start < length:
                break
            self._frames.put_nowait(bytes(self._buffer[start : start + length]))
            self._waiting_bytes += length
            start += length
        del self._buffer[:start]
        if self._waiting_bytes > _MAX_WAITING_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, _error: Exception | None) -> None:
        self._connections.pop(self, None)
        if self._task is not None:
            self._task.cancel()
        self._writable.set()

    def abort(self) -> asyncio.Task[None] | None:
        """Close the connection immediately; return the task that runs its commands."""
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()
        return self._task

    # Commands

    def _give_up(self, error: Exception) -> None:
        log.warning("connection closed", reason=str(error), peer=self._client.peer)
        if self._transport is not None:
            self._transport.abort()

    async def _serve(self) -> None:
        assert self._transport is not None
        try:
            while True:
                frame = await self._frames.get()
                self._waiting_bytes -= len(frame)
                if self._waiting_bytes <= _MAX_WAITING_BYTES:
                    self._transport.resume_reading()
                await self._answer(parse_message(frame))
        except (ProtocolError, InvalidDocument) as error:
            self._give_up(error)
        finally:
            self._transport.abort()

    async def _answer(self, message: Message) -> None:
        payload = message.payload
        if isinstance(payload, OpQuery):
            await self._answer_query(message, payload)
        elif isinstance(payload, OpMsg):
            await self._answer_msg(message, payload)
        else:
            raise ProtocolError(f"opcode {message.op_code} is not a request")

    async def _answer_query(self, message: Message, query: OpQuery) -> None:
        database, _, target = query.namespace.partition(".")
        command = query.document()
        if target != "$cmd" or next(iter(command), "") not in _HELLOS:
            error = CommandError(
                ErrorCode.UnsupportedOpQueryCommand, "Unsupported OP_QUERY command: use OP_MSG"
            )
            reply = error.to_reply()
        else:
            reply = await self._run_command(database, command, self._client)
        await self._write(
            build_op_reply(
                encode(reply), request_id=next(self._request_ids), response_to=message.request_id
            )
        )

    async def _answer_msg(self, message: Message, payload: OpMsg) -> None:
        command = payload.document()
        if b"$ref\0" in payload.body or any(
            b"$ref\0" in document for batch in payload.sequences.values() for document in batch
        ):
            command = without_dbrefs(command)
        database = command.pop("$db", None)
        if not isinstance(database, str) or not command:
            raise ProtocolError("an OP_MSG has no command or no $db")
        is_stream = self._may_stream(payload, command)
        response_to = message.request_id
        while True:
            reply = await self._run(database, command)
            if payload.flags & MORE_TO_COME:
                return
            more = is_stream and reply.get("ok") == 1.0
            request_id = next(self._request_ids)
            frame = build_msg(
                encode(reply),
                request_id=request_id,
                response_to=response_to,
                flags=MORE_TO_COME if more else 0,
            )
            if message.compressor and next(iter(command)) not in _HELLOS:
                frame = compress_frame(frame, message.compressor)
            await self._write(frame)
            if not more:
                return
            command["topologyVersion"] = reply["topologyVersion"]
            response_to = request_id

    @staticmethod
    def _may_stream(payload: OpMsg, command: Document) -> bool:
        return bool(
            payload.flags & EXHAUST_ALLOWED
            and next(iter(command)) in _HELLOS
            and "topologyVersion" in command
            and "maxAwaitTimeMS" in command
        )

    async def _run(self, database: str, command: Document) -> Document:
        try:
            return await self._run_command(database, command, self._client)
        except Exception as error:
            # A bug in a command must not end this connection or others.
            log.exception("command failed", command=next(iter(command)), peer=self._client.peer)
            return internal_error(error).to_reply()

    async def _write(self, frame: bytes) -> None:
        await self._writable.wait()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

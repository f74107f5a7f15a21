"""A one-member replica set that replays prepared replies at low cost.

It implements the parts of the wire protocol that the router and Motor use. It has its own message
framing, so that it does not share defects with the project's.
"""

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import bson
from bson import Int64, Timestamp

from tests.doubles.scripted_member import hello_of

_HEADER = struct.Struct("<iiii")
_OP_REPLY, _OP_QUERY, _OP_MSG = 1, 2004, 2013
_NOW = Timestamp(1_800_000_000, 1)


class Tape(Protocol):
    """One change stream as a member replays it."""

    def open(self, command: dict[str, Any]) -> bytes:
        """Return the BSON reply to the opening `aggregate`."""

    def more(self, batch_size: int) -> tuple[bytes, bool]:
        """Return the BSON reply to a `getMore`, and whether it waits as with awaitData."""


@dataclass
class ReplayMember:
    """A replica set of one member that replays tapes.

    Args:
        set_name: the replica set's name.
        play: returns the tape to replay for an opening `aggregate`.
        documents: the documents that a `find` returns, by collection name.
        wire_version: the maxWireVersion in `hello`; 17 is MongoDB 6.0.
        seconds_per_byte: the time that a `getMore` takes for each byte of its reply.
    """

    set_name: str
    play: Callable[[dict[str, Any]], Tape]
    documents: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    wire_version: int = 17
    seconds_per_byte: float = 0.0
    now: Timestamp = _NOW
    tapes: dict[int, Tape] = field(default_factory=dict)
    opened: list[dict[str, Any]] = field(default_factory=list)
    connections: set[asyncio.Transport] = field(default_factory=set)
    port: int = 0
    _server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen on a free loopback port; return the set's host string."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Wire(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return f"{self.set_name}/127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Close the listening socket and every connection."""
        assert self._server is not None
        self._server.close()
        for transport in list(self.connections):
            transport.abort()
        await self._server.wait_closed()

    def answer(self, command: dict[str, Any]) -> tuple[bytes, bool]:
        """Return the reply to ``command`` and whether it waits for maxTimeMS first."""
        name = next(iter(command))
        if name == "getMore":
            tape = self.tapes.get(command["getMore"])
            if tape is None:
                missing = {"ok": 0.0, "errmsg": "cursor not found", "code": 43}
                return bson.encode(missing), False
            return tape.more(command.get("batchSize", 0) or 1 << 30)
        if name == "aggregate":
            self.opened.append(command)
            tape = self.play(command)
            body = tape.open(command)
            reply = bson.decode(body)
            if reply["ok"] and reply["cursor"]["id"]:
                self.tapes[reply["cursor"]["id"]] = tape
            return body, False
        return bson.encode(self._control(name, command)), False

    def _control(self, name: str, command: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = {}
        if name.lower() in ("hello", "ismaster"):
            reply = hello_of(self.set_name, self.port, self.wire_version)
        elif name == "find":
            found = self.documents.get(command["find"], [])
            namespace = f"{command['$db']}.{command['find']}"
            reply = {"cursor": {"firstBatch": found, "id": Int64(0), "ns": namespace}}
        elif name == "killCursors":
            killed = [number for number in command["cursors"] if number in self.tapes]
            for number in killed:
                del self.tapes[number]
            reply = {"cursorsKilled": killed, "cursorsNotFound": [], "cursorsAlive": []}
        elif name == "serverStatus":
            reply = {"metrics": {"cursor": {"open": {"total": Int64(len(self.tapes))}}}}
        elif name == "buildInfo":
            reply = {"version": "6.0.15", "versionArray": [6, 0, 15, 0]}
        clock = {"clusterTime": self.now, "signature": {"hash": bytes(20), "keyId": Int64(0)}}
        return {**reply, "ok": 1.0, "$clusterTime": clock, "operationTime": self.now}


class _Wire(asyncio.Protocol):
    """One connection, with at most one pending `getMore`, as the router sends them."""

    def __init__(self, member: ReplayMember) -> None:
        self._member = member
        self._buffer = bytearray()
        self._pending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass
        self._member.connections.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._member.connections.discard(self._transport)
        if self._pending is not None:
            self._pending.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 16:
            length, request_id, _, op_code = _HEADER.unpack_from(self._buffer)
            if len(self._buffer) < length:
                return
            frame = bytes(self._buffer[16:length])
            del self._buffer[:length]
            self._handle(request_id, op_code, frame)

    def _handle(self, request_id: int, op_code: int, frame: bytes) -> None:
        if op_code == _OP_QUERY:
            after_name = frame.index(b"\0", 4) + 9
            body, _ = self._member.answer(bson.decode(frame[after_name:]))
            self._send(request_id, _OP_REPLY, struct.pack("<iqii", 8, 0, 0, 1), body)
            return
        (size,) = struct.unpack_from("<i", frame, 5)
        command = bson.decode(frame[5 : 5 + size])
        body, waits = self._member.answer(command)
        seconds = len(body) * self._member.seconds_per_byte if "getMore" in command else 0.0
        if waits:
            seconds = command.get("maxTimeMS", 1000) / 1000
        if seconds:
            loop = asyncio.get_running_loop()
            self._pending = loop.call_later(
                seconds, self._send, request_id, _OP_MSG, bytes(5), body
            )
        else:
            self._send(request_id, _OP_MSG, bytes(5), body)

    def _send(self, request_id: int, op_code: int, start: bytes, body: bytes) -> None:
        length = 16 + len(start) + len(body)
        self._transport.writelines([_HEADER.pack(length, 1, request_id, op_code), start, body])


_KEYS: list[bytes] = []


def _array_keys(count: int) -> list[bytes]:
    while len(_KEYS) < count:
        _KEYS.append(b"\x03%d\0" % len(_KEYS))
    return _KEYS[:count]


def cursor_body(
    cursor_id: int, namespace: str, events: list[bytes], pbrt: str, *, first: bool = False
) -> bytes:
    """Return a cursor reply as BSON; the events are joined without decoding."""
    size = sum(map(len, events)) + sum(map(len, _array_keys(len(events)))) + 5
    ns = namespace.encode() + b"\0"
    before = b"\x12id\0%b\x02ns\0%b%b%b%b" % (
        struct.pack("<q", cursor_id),
        struct.pack("<i", len(ns)),
        ns,
        b"\x04firstBatch\0" if first else b"\x04nextBatch\0",
        struct.pack("<i", size),
    )
    after = b"\0\x03postBatchResumeToken\0" + bson.encode({"_data": pbrt}) + b"\0"
    cursor_size = 4 + len(before) + size - 5 + len(after)
    time = struct.pack("<II", _NOW.inc, _NOW.time)
    tail = b"\x01ok\0" + struct.pack("<d", 1.0) + b"\x11operationTime\0" + time + b"\0"
    head = b"\x03cursor\0" + struct.pack("<i", cursor_size) + before
    body_size = 4 + 8 + cursor_size + len(tail)
    parts = [struct.pack("<i", body_size) + head] * (2 * len(events) + 2)
    parts[1:-1:2], parts[2:-1:2] = _array_keys(len(events)), events
    parts[-1] = after + tail
    return b"".join(parts)

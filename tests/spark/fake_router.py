"""A made-up history behind a socket: just enough of mongos for pymongo to watch it."""

from __future__ import annotations

import contextlib
import socketserver
import struct
import threading
import time
from typing import Any

import bson
from bson.int64 import Int64
from bson.timestamp import Timestamp

from spark_sink.positions import AtTime, FromNow, Position, Token
from tests.spark.history import FakeStream, History

_HEADER = struct.Struct("<iiii")
_OP_REPLY, _OP_QUERY, _OP_MSG = 1, 2004, 2013
_TOKENS_ONLY = {"$project": {"_id": 1}}


class FakeRouter:
    """Serves a History on a port of its own, from threads, until it is closed."""

    def __init__(self) -> None:
        self.history = History()
        self.lock = threading.RLock()
        self.commands: list[dict[str, Any]] = []
        self._cursors: dict[int, tuple[FakeStream, bool]] = {}
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.router = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def uri(self) -> str:
        return f"mongodb://127.0.0.1:{self._server.server_address[1]}"

    @property
    def open_cursors(self) -> int:
        with self.lock:
            return len(self._cursors)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def insert(self, count: int, **document: Any) -> None:
        with self.lock:
            first = len(self.history.events)
            for number in range(first, first + count):
                self.history.insert(number, **document)

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            name = next(iter(command))
            self.commands.append(command)
            reply = getattr(self, f"_{name.lower()}", self._ok)(command)
            now = self.history.now
        clock = {"clusterTime": now, "signature": {"hash": bytes(20), "keyId": Int64(0)}}
        return {**reply, "ok": 1.0, "$clusterTime": clock, "operationTime": now}

    def _ok(self, command: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _hello(self, command: dict[str, Any]) -> dict[str, Any]:
        return {
            "isWritablePrimary": True,
            "ismaster": True,
            "helloOk": True,
            "msg": "isdbgrid",
            "maxBsonObjectSize": 16_777_216,
            "maxMessageSizeBytes": 48_000_000,
            "maxWriteBatchSize": 100_000,
            "logicalSessionTimeoutMinutes": 30,
            "minWireVersion": 0,
            "maxWireVersion": 17,
        }

    _ismaster = _hello

    def _aggregate(self, command: dict[str, Any]) -> dict[str, Any]:
        stage, *rest = command["pipeline"]
        stream = FakeStream(self.history, _position(stage["$changeStream"]), batch=1000)
        cursor_id = len(self.commands)
        self._cursors[cursor_id] = (stream, _TOKENS_ONLY in rest)
        token = stream.resume_token
        return _cursor(cursor_id, "firstBatch", [], token)

    def _getmore(self, command: dict[str, Any]) -> dict[str, Any]:
        cursor_id = command["getMore"]
        stream, tokens_only = self._cursors[cursor_id]
        wanted = command.get("batchSize", 100_000)
        events: list[Any] = []
        until = time.monotonic() + command.get("maxTimeMS", 1000) / 1000
        while len(events) < wanted:
            event = stream.try_next()
            if event is not None:
                events.append({"_id": event["_id"]} if tokens_only else event)
            elif events or time.monotonic() >= until:
                break
            else:
                self._wait()
        return _cursor(cursor_id, "nextBatch", events, stream.resume_token)

    def _wait(self) -> None:
        """Let others in for a moment, as a server does while a getMore waits for data."""
        self.lock.release()
        time.sleep(0.01)
        self.lock.acquire()

    def _killcursors(self, command: dict[str, Any]) -> dict[str, Any]:
        for cursor_id in command["cursors"]:
            if cursor_id in self._cursors:
                self._cursors.pop(cursor_id)[0].close()
        return {"cursorsKilled": command["cursors"]}


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client that was killed
            self._serve()

    def _serve(self) -> None:
        router: FakeRouter = self.server.router  # type: ignore[attr-defined]
        stream = self.request.makefile("rb")
        while header := stream.read(16):
            length, request_id, _, op_code = _HEADER.unpack(header)
            payload = stream.read(length - 16)
            if op_code == _OP_QUERY:
                start = payload.index(b"\0", 4) + 1 + 8
                reply = bson.encode(router.answer(bson.decode(payload[start:])))
                body = struct.pack("<iqii", 8, 0, 0, 1) + reply
                op_code = _OP_REPLY
            else:
                reply = bson.encode(router.answer(bson.decode(payload[5:])))
                body = struct.pack("<iB", 0, 0) + reply
            self.request.sendall(_HEADER.pack(16 + len(body), 0, request_id, op_code) + body)


def _position(options: dict[str, Any]) -> Position:
    token = options.get("startAfter") or options.get("resumeAfter")
    if token is not None:
        return Token(token)
    start: Timestamp | None = options.get("startAtOperationTime")
    return FromNow() if start is None else AtTime(start)


def _cursor(cursor_id: int, name: str, events: list[Any], token: Any) -> dict[str, Any]:
    return {
        "cursor": {
            name: events,
            "id": Int64(cursor_id),
            "ns": "admin.$cmd.aggregate",
            "postBatchResumeToken": token,
        }
    }

"""A scripted replica set of one member: an oplog in a list, cursors, faults on demand.

It is much simpler than the embedded mongod, so that tests of the router's cursors control exactly
what a shard does and when.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import bson
from bson import Int64, Timestamp

from shard_client.errors import ProtocolError
from shard_client.wire.frames import OP_MSG, build_msg, build_op_reply, frame_length, parse_message

_UUID = "11" * 16
_START = Timestamp(100, 1)
_PROCESS = bson.ObjectId()
_PRIMARY = {"mode": "primary"}


def event_token(ts: Timestamp, number: int = 1, uuid: str = _UUID) -> str:
    """Return the version 1 token of an insert of ``{_id: number}``;
    docs/protocol.md#resume-tokens."""
    digits = f"2B{number << 1:02X}" if number < 128 else f"2C{number << 1:04X}"
    time = f"{ts.time:08X}{ts.inc:08X}"
    return f"82{time}2B022C0100296E5A1004{uuid}46645F696400{digits}0004"


def mark_token(ts: Timestamp) -> str:
    """Return the version 1 high water mark of ``ts``."""
    return f"82{ts.time:08X}{ts.inc:08X}2B0229296E04"


def hello_of(
    set_name: str, port: int, wire_version: int, *, primary: bool = True
) -> dict[str, Any]:
    """Return the answer to a hello of the only member of a set; "cfg" is a config server's."""
    me = f"127.0.0.1:{port}"
    return {
        "isWritablePrimary": primary,
        "ismaster": primary,
        "secondary": not primary,
        "helloOk": True,
        "setName": set_name,
        "setVersion": 1,
        "hosts": [me],
        "me": me,
        **({"primary": me} if primary else {}),
        **({"configsvr": 2} if set_name == "cfg" else {}),
        "maxBsonObjectSize": 16777216,
        "maxMessageSizeBytes": 48000000,
        "maxWriteBatchSize": 100000,
        "minWireVersion": 0,
        "maxWireVersion": wire_version,
    }


@dataclass
class _Cursor:
    cursor_id: int
    namespace: str
    after: str
    pipeline: Sequence[dict[str, Any]]
    read: bool = False


@dataclass
class ScriptedMember:
    """One member of a replica set.

    Attributes:
        entries: the oplog: (cluster time, event or None for a no-op).
        hosts: the addresses of all members if there are several.
        slow: seconds that a command takes, by command name.
        oplog_size: the oplog's size that collStats reports; if 0, collStats fails.
        unreplicated: whether no-op writes never reach a majority.
        waiting: the number of getMores that wait for the oplog to grow.
        waits: whether getMores wait for events at all.
        noted_times: the maxClusterTime of each note request.
        matches: returns whether a pipeline lets an event through.
        belongs: returns whether an event belongs to a cursor's namespace.
    """

    set_name: str
    documents: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    listed: list[dict[str, Any]] = field(default_factory=list)
    primary: bool = True
    notes: bool = True
    wire_version: int = 17
    now: Timestamp = _START
    port: int = 0
    entries: list[tuple[Timestamp, dict[str, Any] | None]] = field(default_factory=list)
    cursors: dict[int, _Cursor] = field(default_factory=dict)
    commands: Counter[str] = field(default_factory=Counter)
    opened: list[dict[str, Any]] = field(default_factory=list)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    failures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    hang: set[str] = field(default_factory=set)
    slow: dict[str, float] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    oplog_size: int = 0
    unreplicated: bool = False
    waiting: int = 0
    waits: bool = True
    noted_times: list[Timestamp] = field(default_factory=list)
    matches: Callable[[Sequence[dict[str, Any]], dict[str, Any]], bool] = lambda *_: True
    belongs: Callable[[str, dict[str, Any]], bool] = lambda *_: True
    _ids: int = 1000
    _server: asyncio.Server | None = None
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, port: int = 0) -> "ScriptedMember":
        """Listen on loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Stop listening and cut all connections."""
        if self._server is not None:
            self._server.close()
            self.cut()
            self._server = None

    def stop_waiting(self) -> None:
        """Answer all getMores at once from now on, also those that wait for events."""
        self.waits = False
        self._wake()

    def cut(self) -> None:
        """Cut all connections."""
        for writer in list(self.writers):
            writer.transport.abort()

    @property
    def host(self) -> str:
        """The host string of config.shards."""
        return f"{self.set_name}/127.0.0.1:{self.port}"

    def insert(self, ts: Timestamp | int, number: int = 1, uuid: str = _UUID, **fields: Any) -> str:
        """Write an event of the collection with this UUID; return its token."""
        if isinstance(ts, int):
            ts = Timestamp(ts, 1)
        token = event_token(ts, number, uuid)
        event = {"_id": {"_data": token}, "operationType": "insert", "clusterTime": ts}
        event |= {"fullDocument": {"_id": number}, **fields}
        self._append(ts, event)
        return token

    def update(self, second: int, number: int) -> None:
        """Write the update of the document ``{_id: number}`` of the collection c."""
        ts = Timestamp(second, 1)
        event = {"_id": {"_data": event_token(ts, number)}, "clusterTime": ts}
        event |= {"operationType": "update", "ns": {"db": "db", "coll": "c"}}
        described: dict[str, Any] = {"updatedFields": {}, "removedFields": []}
        event |= {"documentKey": {"_id": number}, "updateDescription": described}
        self._append(ts, event)

    def noop(self, ts: Timestamp | int) -> None:
        """Write a no-op."""
        self._append(Timestamp(ts, 1) if isinstance(ts, int) else ts, None)

    def _append(self, ts: Timestamp, event: dict[str, Any] | None) -> None:
        self.now = max(self.now, ts)
        self.entries.append((ts, event))
        if event is not None:
            self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def fail(self, command: str, code: int, message: str = "scripted", times: int = 1) -> None:
        """Make the next ``times`` ``command`` requests fail."""
        error = {"ok": 0.0, "errmsg": message, "code": code, "codeName": "Scripted"}
        self.failures.setdefault(command, []).extend([error] * times)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(frame_length(head) - 4)
                message = parse_message(frame)
                command = message.payload.document()
                if next(iter(command)) in self.hang:
                    self.commands[next(iter(command))] += 1
                    await reader.read()
                    return
                reply = bson.encode(await self._answer(command))
                build = build_msg if message.op_code == OP_MSG else build_op_reply
                writer.write(build(reply, request_id=1, response_to=message.request_id))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ProtocolError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _answer(self, command: dict[str, Any]) -> dict[str, Any]:
        name = next(iter(command))
        self.commands[name] += 1
        if "$clusterTime" in command:
            self.now = max(self.now, command["$clusterTime"]["clusterTime"])
        if self.failures.get(name):
            return {**self.failures[name].pop(0), **self._times()}
        await asyncio.sleep(self.slow.get(name, 0.0))
        handler = getattr(self, f"_{name.lower()}", None)
        if handler is None:
            return {"ok": 0.0, "errmsg": f"no such command: '{name}'", "code": 59}
        reply = await handler(command)
        return {"ok": 1.0, **reply, **self._times()}

    def _times(self) -> dict[str, Any]:
        signature = {"hash": bytes(20), "keyId": Int64(0)}
        return {
            "$clusterTime": {"clusterTime": self.now, "signature": signature},
            "operationTime": self.entries[-1][0] if self.entries else Timestamp(1, 1),
        }

    async def _hello(self, command: dict[str, Any]) -> dict[str, Any]:
        if "topologyVersion" in command:
            await asyncio.sleep(command.get("maxAwaitTimeMS", 0) / 1000)
        hello = hello_of(self.set_name, self.port, self.wire_version, primary=self.primary)
        hello["topologyVersion"] = {"processId": _PROCESS, "counter": Int64(0)}
        return {**hello, "hosts": self.hosts or hello["hosts"]}

    _ismaster = _hello

    async def _ping(self, command: dict[str, Any]) -> dict[str, Any]:
        return {}

    async def _find(self, command: dict[str, Any]) -> dict[str, Any]:
        if not self.primary and "$readPreference" not in command:
            return {"ok": 0.0, "errmsg": "not primary and secondaryOk=false", "code": 13435}
        documents = self.documents.get(command["find"], [])
        namespace = f"{command['$db']}.{command['find']}"
        return {"cursor": {"firstBatch": documents, "id": Int64(0), "ns": namespace}}

    async def _listcollections(self, command: dict[str, Any]) -> dict[str, Any]:
        named = [each for each in self.listed if each["name"] == command["filter"]["name"]]
        return {"cursor": {"firstBatch": named, "id": Int64(0), "ns": "db.$cmd.listCollections"}}

    async def _appendoplognote(self, command: dict[str, Any]) -> dict[str, Any]:
        if not self.notes:
            return {"ok": 0.0, "errmsg": "not authorized", "code": 13}
        self.noted_times.append(command["maxClusterTime"])
        last = self.entries[-1][0] if self.entries else Timestamp(1, 1)
        if last >= command["maxClusterTime"]:
            return {"ok": 0.0, "errmsg": "stale", "code": 209, "codeName": "StaleClusterTime"}
        top = max(self.now, last)
        self.noop(max(Timestamp(top.time, top.inc + 1), command["maxClusterTime"]))
        if self.unreplicated:
            late = {"code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting timed out"}
            return {"writeConcernError": late}
        return {}

    async def _collstats(self, command: dict[str, Any]) -> dict[str, Any]:
        if not self.oplog_size:
            return {"ok": 0.0, "errmsg": "not authorized", "code": 13}
        return {"maxSize": self.oplog_size}

    async def _aggregate(self, command: dict[str, Any]) -> dict[str, Any]:
        if not self.primary and command.get("$readPreference", _PRIMARY)["mode"] == "primary":
            return {"ok": 0.0, "errmsg": "not primary", "code": 10107}
        self.opened.append(command)
        options = command["pipeline"][0]["$changeStream"]
        token = options.get("resumeAfter") or options.get("startAfter")
        start = token["_data"] if token else mark_token(options["startAtOperationTime"])
        collection = command["aggregate"]
        collection = "$cmd.aggregate" if collection == 1 else collection
        self._ids += 1
        cursor = _Cursor(self._ids, f"{command['$db']}.{collection}", start, command["pipeline"])
        self.cursors[cursor.cursor_id] = cursor
        return {
            "cursor": {
                "firstBatch": [],
                "postBatchResumeToken": {"_data": start},
                "id": Int64(cursor.cursor_id),
                "ns": cursor.namespace,
            }
        }

    async def _getmore(self, command: dict[str, Any]) -> dict[str, Any]:
        number = command["getMore"]
        cursor = self.cursors.get(number)
        if cursor is None:
            return {"ok": 0.0, "errmsg": f"cursor id {number} not found", "code": 43}
        cursor.read = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + command["maxTimeMS"] / 1000
        while True:
            moved = self._moved
            events = self._beyond(cursor)
            if events or not self.waits:
                break
            self.waiting += 1
            try:
                async with asyncio.timeout_at(deadline):
                    await moved.wait()
            except TimeoutError:
                events = self._beyond(cursor)
                break
            finally:
                self.waiting -= 1
            if number not in self.cursors:
                return {"ok": 0.0, "errmsg": "killed", "code": 237}
        batch = events[: command["batchSize"]]
        last = batch[-1]["_id"]["_data"] if batch else cursor.after
        full = len(batch) == command["batchSize"]
        closed = bool(batch) and batch[-1]["operationType"] == "invalidate" and not full
        if len(batch) == len(events) and self.entries and not closed:
            last = max(last, mark_token(self.entries[-1][0]))
        cursor.after = max(cursor.after, last)
        if closed:
            del self.cursors[number]
        reply = {
            "nextBatch": batch,
            "postBatchResumeToken": {"_data": cursor.after},
            "id": Int64(0 if closed else number),
            "ns": cursor.namespace,
        }
        return {"cursor": reply | ({"invalidated": True} if closed else {})}

    def _beyond(self, cursor: _Cursor) -> list[dict[str, Any]]:
        token = cursor.after
        events = [event for _, event in self.entries if event is not None]
        shown = [
            event
            for event in events
            if event["_id"]["_data"] > token
            and self.belongs(cursor.namespace, event)
            and self.matches(cursor.pipeline, event)
        ]
        for index, event in enumerate(shown):
            if event["operationType"] == "invalidate":
                return shown[: index + 1]
        return shown

    async def _killcursors(self, command: dict[str, Any]) -> dict[str, Any]:
        killed = [number for number in command["cursors"] if self.cursors.pop(number, None)]
        self._wake()
        return {"cursorsKilled": killed, "cursorsNotFound": []}


def invalidate(member: ScriptedMember, second: int) -> str:
    """Write an invalidate; return its token."""
    token = member.insert(second, 2).replace("0100296E", "0100296F")
    event = member.entries[-1][1]
    assert event is not None
    event.update({"_id": {"_data": token}, "operationType": "invalidate"})
    return token

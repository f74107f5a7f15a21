"""Drain change streams at a client's full speed: raw frames, events counted but not decoded.

``drain`` runs this module as a program.
"""

import argparse
import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import bson

from bench.kernel import cpu_of
from bench.programs import run_json
from bench.watchers import framed

_HEADER = 21
_LENGTH = struct.Struct("<i")
_LARGEST_REPLY = 17 * 1024 * 1024

# The start of each event. In a change event only the token is a document with the name _id.
_FRONT = b"\x03_id\0"


def drain(
    ports: list[str],
    events: int,
    start: str,
    *arguments: str,
    cpu_of: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, float]:
    """Drain one stream on each port, all in parallel, until ``events`` events have arrived.

    ``start`` is a cluster time, "SECONDS:INCREMENT"; ``cpu_of`` has process ids by the names of
    their figures: the CPU in µs per event from the streams' opening on. Returns these, ``rate`` in
    events a second, and ``opening``, the time to open the streams in ms.
    """
    wanted = ("--events", str(events), "--start", start, "--cpu-of", json.dumps(cpu_of or {}))
    return run_json("-m", "bench.drain", *ports, *wanted, *arguments)


def main() -> None:
    """Drain one stream on each port in parallel; print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ports", type=int, nargs="+", help="one stream on each, in parallel")
    parser.add_argument("--events", type=int, required=True, help="number of events to read")
    parser.add_argument("--start", required=True, help="startAtOperationTime as SECONDS:INCREMENT")
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--full-document", help="the fullDocument option")
    parser.add_argument("--namespace", help="DATABASE.COLLECTION; default: the whole cluster")
    parser.add_argument(
        "--cpu-of", type=json.loads, default={}, help="processes whose CPU is reported, by name"
    )
    args = parser.parse_args()
    with ThreadPoolExecutor(len(args.ports)) as threads:
        begun = time.perf_counter()
        streams = list(threads.map(partial(_Stream, args), args.ports))
        opened = time.perf_counter()
        before = cpu_of(args.cpu_of)
        events = sum(threads.map(_Stream.drain, streams))
        ended = time.perf_counter()
    used = cpu_of(args.cpu_of)
    figures = {name: (used[name] - before[name]) / events * 1e6 for name in used}
    figures["rate"], figures["opening"] = events / (ended - opened), (opened - begun) * 1e3
    print(json.dumps(figures))


class _Stream:
    """A change stream that receives all replies into one buffer, the cheapest way to receive."""

    def __init__(self, args: argparse.Namespace, port: int) -> None:
        self._share = args.events // len(args.ports)
        self._memory = memoryview(bytearray(_LARGEST_REPLY))
        self._socket = socket.create_connection(("127.0.0.1", port))
        database, _, collection = (args.namespace or "admin").partition(".")
        start = bson.Timestamp(*map(int, args.start.split(":")))
        stage: dict[str, Any] = {"startAtOperationTime": start}
        if not collection:
            stage["allChangesForCluster"] = True
        if args.full_document:
            stage["fullDocument"] = args.full_document
        pipeline: list[dict[str, Any]] = [{"$changeStream": stage}]
        target: Any = collection or 1
        opening = {"aggregate": target, "pipeline": pipeline, "cursor": {}, "$db": database}
        reply = bson.decode(self._call(opening))
        if not reply["ok"]:
            raise SystemExit(f"the stream did not open: {reply}")
        cursor = reply["cursor"]
        self._events = len(cursor["firstBatch"])
        named = collection or "$cmd.aggregate"
        self._more = {"getMore": cursor["id"], "collection": named, "$db": database}
        if args.batch_size:
            self._more["batchSize"] = args.batch_size

    def drain(self) -> int:
        """Read this stream's share of the events; return how many arrived."""
        with self._socket:
            while self._events < self._share:
                self._events += _count(self._call(self._more))
        return self._events

    def _call(self, command: dict[str, Any]) -> memoryview:
        """Send a command and return the reply's body, valid until the next call."""
        self._socket.sendall(framed(command))
        memory, received, length = self._memory, 0, _HEADER
        while received < length:
            arrived = self._socket.recv_into(memory[received:])
            if not arrived:
                raise SystemExit("the peer has closed the connection")
            received += arrived
            if received >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(memory)
        return memory[_HEADER:length]


def _count(body: memoryview) -> int:
    """Return the number of events in a reply: the last event's array index plus one."""
    window = 4096
    while True:
        start = max(0, len(body) - window)
        tail = bytes(body[start:])
        front = tail.rfind(_FRONT)
        if front >= 16:
            # In front of the token: a type byte, the index as text, a zero byte, the event's
            # length.
            index = tail.rfind(b"\x03", 0, front - 5) + 1
            return int(tail[index : front - 5]) + 1
        if not start:
            reply = bson.decode(tail)
            if not reply.get("ok"):
                raise SystemExit(f"the stream failed: {reply}")
            return 0
        window *= 4


if __name__ == "__main__":
    main()

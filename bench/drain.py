"""Drain change streams as fast as a client can: raw frames, events counted but not decoded."""

import argparse
import contextlib
import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import bson

# In each event's token, and once more in the postBatchResumeToken of a reply.
TOKEN = b"\x02_data\0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ports", type=int, nargs="+", help="one stream on each, all in parallel")
    parser.add_argument("--events", type=int, required=True, help="stop after so many")
    parser.add_argument("--start", help="startAtOperationTime as SECONDS:INCREMENT")
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument(
        "--distinct", action="store_true", help="give each stream stages that no other one has"
    )
    parser.add_argument(
        "--second-connection", action="store_true", help="read on another connection than opened"
    )
    args = parser.parse_args()
    begun = time.perf_counter()
    with ThreadPoolExecutor(len(args.ports)) as threads:
        events = sum(threads.map(lambda each: _drain(*each, args), enumerate(args.ports)))
    print(json.dumps({"events": events, "seconds": time.perf_counter() - begun}))


def _drain(number: int, port: int, args: argparse.Namespace) -> int:
    share = args.events // len(args.ports)
    stage: dict[str, Any] = {"allChangesForCluster": True}
    if args.start:
        stage["startAtOperationTime"] = bson.Timestamp(*map(int, args.start.split(":")))
    pipeline: list[dict[str, Any]] = [{"$changeStream": stage}]
    if args.distinct:
        pipeline.append({"$match": {"fullDocument.n": {"$gte": -number}}})
    with contextlib.ExitStack() as owned:
        connection, stream = _connect(port, owned)
        opening = {"aggregate": 1, "pipeline": pipeline, "cursor": {}}
        reply = _call(connection, stream, {**opening, "$db": "admin"})
        opened = bson.decode(reply)
        if not opened["ok"]:
            raise SystemExit(f"the stream did not open: {opened}")
        events = reply.count(TOKEN) - 1
        if args.second_connection:
            connection, stream = _connect(port, owned)
        more = {"getMore": opened["cursor"]["id"], "collection": "$cmd.aggregate", "$db": "admin"}
        if args.batch_size:
            more["batchSize"] = args.batch_size
        while events < share:
            reply = _call(connection, stream, more)
            tokens = reply.count(TOKEN)
            if not tokens:
                raise SystemExit(f"the stream failed: {bson.decode(reply)}")
            events += tokens - 1
    return events


def _connect(port: int, owned: contextlib.ExitStack) -> tuple[socket.socket, Any]:
    connection = owned.enter_context(socket.create_connection(("127.0.0.1", port)))
    return connection, connection.makefile("rb", buffering=1 << 20)


def _call(connection: socket.socket, stream: Any, command: dict[str, Any]) -> bytes:
    body = bson.encode(command)
    connection.sendall(struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body)
    (length,) = struct.unpack("<i", stream.read(4))
    return stream.read(length - 4)[17:]


if __name__ == "__main__":
    main()

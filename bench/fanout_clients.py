"""Many clients of one stream in one process: raw frames, events counted but not decoded.

The process opens all cursors, prints a line and waits for a line on stdin. Then it drains all
cursors in parallel and prints its totals as JSON.
"""

import argparse
import asyncio
import json
import struct
import sys
import time
from typing import Any, cast

import bson
import uvloop

# An event begins with its token. The tokens of this benchmark are 112 characters long.
EVENT_START = b"\x03_id\0\x81\0\0\0\x02_data\0"

_LENGTH = struct.Struct("<i")


class Client(asyncio.Protocol):
    """One client connection: ``ask`` sends one command, ``drain`` reads a cursor.

    ``events`` and ``batches`` count what ``drain`` has received.
    """

    def __init__(self) -> None:
        self.events = 0
        self.batches = 0
        self._parts: list[bytes] = []
        self._have = 0
        self._waiter: asyncio.Future[bytes] | None = None
        self._more = b""
        self._wanted = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail ``drain`` if it has not finished."""
        if not self._done.done():
            self._done.set_exception(exc or ConnectionError("the router closed a connection"))

    def data_received(self, data: bytes) -> None:
        """Collect a frame; pass it to ``ask``, or count its events and send the next getMore."""
        self._parts.append(data)
        self._have += len(data)
        if self._have < 4:
            return
        if len(self._parts[0]) < 4:
            self._parts = [b"".join(self._parts)]
        if self._have < _LENGTH.unpack_from(self._parts[0])[0]:
            return
        reply = b"".join(self._parts)
        self._parts, self._have = [], 0
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            waiter.set_result(reply)
            return
        self.batches += 1
        self.events += reply.count(EVENT_START)
        if self.events < self._wanted:
            self._transport.write(self._more)
        elif not self._done.done():
            self._done.set_result(None)

    async def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command and return its reply."""
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(framed(command))
        return bson.decode((await self._waiter)[21:])

    async def drain(self, cursor: int, wanted: int) -> None:
        """Send getMores until ``wanted`` events have arrived.

        Raises:
            ConnectionError: the router closed the connection before that.
        """
        more = {"getMore": bson.Int64(cursor), "collection": "$cmd.aggregate", "$db": "admin"}
        self._more, self._wanted = framed(more), wanted
        self._transport.write(self._more)
        await self._done


def framed(command: dict[str, Any]) -> bytes:
    """Return a command as an OP_MSG frame."""
    body = bson.encode(command)
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body


async def _run(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    start = bson.Timestamp(*map(int, args.start.split(":")))
    stage = {"$changeStream": {"allChangesForCluster": True, "startAtOperationTime": start}}
    clients, cursors = [], []
    for number in range(args.clients):
        pipeline: list[dict[str, Any]] = [stage]
        if args.tenants is not None:
            pipeline.append({"$match": {"fullDocument.tenant": args.tenants + number}})
        opening = {"aggregate": 1, "pipeline": pipeline, "cursor": {}, "$db": "admin"}
        _, client = await loop.create_connection(Client, "127.0.0.1", args.port)
        reply = await client.ask(opening)
        if not reply["ok"]:
            raise SystemExit(f"a stream did not open: {reply}")
        clients.append(client)
        cursors.append(reply["cursor"]["id"])
    print("open", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for client, cursor in zip(clients, cursors, strict=True):
            group.create_task(client.drain(cursor, args.events))
    result = {
        "events": sum(client.events for client in clients),
        "batches": sum(client.batches for client in clients),
        "seconds": time.perf_counter() - begun,
    }
    print(json.dumps(result), flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)


def main() -> None:
    """Open the clients, drain them when a line arrives on stdin, and print the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument(
        "--events", type=int, required=True, help="number of events for each client"
    )
    parser.add_argument(
        "--tenants", type=int, help="the first client's tenant; without it there are no filters"
    )
    parser.add_argument("--start", required=True, help="startAtOperationTime SECONDS:INCREMENT")
    uvloop.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()

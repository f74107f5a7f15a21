"""Many clients in one process: raw frames, events counted, and decoded only for their arrival.

The process opens all streams and prints a line. With ``--events`` it waits for a line on stdin and
drains all streams in parallel; without, it reads until a line arrives on stdin, or the event of the
document ``--until``. If the line is a number, it reads on until the events of so many documents
have arrived. Then it prints its totals and the times at which documents' events arrived as JSON.
"""

import argparse
import asyncio
import json
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import bson
import uvloop

from tests.harness.until import until

_LENGTH = struct.Struct("<i")
# Once in each event's token, and once in the reply's own.
_TOKEN = b"\x02_data\0"


class Client(asyncio.Protocol):
    """One client's connection: ``open`` opens its stream, ``read`` sends getMores."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0
        self._more = b""
        self._take: Callable[[bytes], object] = self._opened
        self._reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits for a reply, and ``done`` if it has not finished."""
        for waiting in (self._reply, self.done):
            if not waiting.done():
                waiting.set_exception(exc or ConnectionError("the server closed a connection"))

    def data_received(self, data: bytes) -> None:
        """Collect a reply, and take it when it is whole."""
        self._parts.append(data)
        self._have += len(data)
        if self._have < _LENGTH.size:
            return
        if len(self._parts[0]) < _LENGTH.size:
            self._parts = [b"".join(self._parts)]
        if self._have < _LENGTH.unpack_from(self._parts[0])[0]:
            return
        reply = b"".join(self._parts)
        self._parts, self._have = [], 0
        self._take(reply[21:])

    async def open(self, collection: str, database: str, pipeline: list[dict[str, Any]]) -> None:
        """Open a stream of a collection, or of the cluster if it is empty."""
        target: Any = collection or 1
        opening = {"aggregate": target, "pipeline": pipeline, "cursor": {}, "$db": database}
        self._transport.write(framed(opening))
        reply = bson.decode(await self._reply)
        if not reply["ok"]:
            raise SystemExit(f"a stream did not open: {reply}")
        named = collection or "$cmd.aggregate"
        cursor = bson.Int64(reply["cursor"]["id"])
        self._more = framed({"getMore": cursor, "collection": named, "$db": database})

    def read(self, take: Callable[[bytes], bool]) -> None:
        """Send getMores until ``take`` returns False for a reply; ``done`` completes then."""

        def next_one(body: bytes) -> None:
            if take(body):
                self._transport.write(self._more)
            elif not self.done.done():
                self.done.set_result(None)

        self._take = next_one
        self._transport.write(self._more)

    def _opened(self, body: bytes) -> None:
        self._reply.set_result(body)


class Totals:
    """The totals of all clients.

    Args:
        wanted: events that each client reads; None to read until the process is told to stop.
        expected: events of all clients after which a line is printed.
        until: the number of the document whose event is the last that the first client reads.
    """

    def __init__(self, wanted: int | None, expected: int | None, until: int | None) -> None:
        self.events = self.batches = 0
        self.arrivals: dict[int, float] = {}
        self._until = until
        self._wanted = wanted
        self._expected = expected

    def reader(self, is_decoded: bool) -> Callable[[bytes], bool]:
        """Return what takes one client's replies, and says whether it needs more."""
        got = 0

        def take(body: bytes) -> bool:
            nonlocal got
            now = time.perf_counter()
            self.batches += 1
            if is_decoded or b"\x01ok\0\0\0\0\0\0\0\0\0" in body:
                reply = bson.decode(body)
                if not reply["ok"]:
                    raise SystemExit(f"a stream failed: {reply}")
                batch = reply["cursor"]["nextBatch"]
                self.arrivals.update((event["documentKey"]["_id"], now) for event in batch)
            count = len(batch) if is_decoded else body.count(_TOKEN) - 1
            self.events += count
            got += count
            if self._expected is not None and self.events >= self._expected:
                self._expected = None
                print("all", flush=True)
            if is_decoded and self._until in self.arrivals:
                return False
            return self._wanted is None or got < self._wanted

        return take


def framed(command: dict[str, Any]) -> bytes:
    """Return a command as an OP_MSG frame."""
    body = bson.encode(command)
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body


def _watched(args: argparse.Namespace, number: int) -> tuple[str, str, list[dict[str, Any]]]:
    """Return the collection, the database and the pipeline of client ``number``'s stream."""
    stage: dict[str, Any] = {}
    if args.start:
        stage["startAtOperationTime"] = bson.Timestamp(*map(int, args.start.split(":")))
    if args.cluster:
        stage["allChangesForCluster"] = True
    pipeline: list[dict[str, Any]] = [{"$changeStream": stage}]
    if args.watch == "distinct":
        pipeline.append({"$match": {"documentKey._id": {"$gte": -number}}})
    elif args.watch == "tenant":
        pipeline.append({"$match": {"fullDocument.tenant": number}})
    collection = f"events{number}" if args.watch == "collection" else "events"
    return ("", "admin", pipeline) if args.cluster else (collection, "bench", pipeline)


async def _run(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    totals, clients = Totals(args.events, args.expect, args.until), list[Client]()
    for each in range(args.first, args.first + args.clients):
        _, client = await loop.create_connection(Client, "127.0.0.1", args.port)
        await client.open(*_watched(args, each))
        clients.append(client)
        if args.events is None:
            client.read(totals.reader(each == args.first))
    print("open", flush=True)
    told = loop.run_in_executor(None, sys.stdin.readline)
    ended = asyncio.gather(*(client.done for client in clients))
    if args.events is None:
        await asyncio.wait((told, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
        elif number := told.result().strip():
            await until(lambda: len(totals.arrivals) >= int(number), 60)
    else:
        await told
        for client in clients:
            client.read(totals.reader(False))
        await ended
    figures = {"events": totals.events, "batches": totals.batches, "arrivals": totals.arrivals}
    print(json.dumps(figures), flush=True)
    if args.events is not None:
        await loop.run_in_executor(None, sys.stdin.readline)
    ended.cancel()
    with suppress(asyncio.CancelledError):
        await ended


def main() -> None:
    """Run the clients that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first client's number")
    parser.add_argument(
        "--watch",
        choices=("equal", "distinct", "tenant", "collection"),
        default="equal",
        help="what client N watches: the collection events, the same with a filter of its own, "
        "tenant N's documents in it, or the collection eventsN",
    )
    parser.add_argument("--cluster", action="store_true", help="watch the cluster instead")
    parser.add_argument("--start", help="startAtOperationTime SECONDS:INCREMENT; default: now")
    parser.add_argument("--events", type=int, help="number of events that each client drains")
    parser.add_argument("--until", type=int, help="end with the event of the document of this _id")
    parser.add_argument("--expect", type=int, help="print a line when so many events have arrived")
    uvloop.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()

"""Many clients in one process that watch from now on: raw frames, decoded for one client only.

The process opens all streams, prints a line and reads until a line arrives on stdin. Then it prints
as JSON the number of events and the time at which the first client received each document's event.
"""

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import bson
import uvloop

from bench.fanout_clients import framed

_AT_ONCE = 20
"""The number of streams that are opened at the same time."""


async def _watch(port: int, number: int, filters: str, found: "_Found") -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26)

    async def ask(command: dict[str, Any]) -> bytes:
        writer.write(framed(command))
        length = int.from_bytes(head := await reader.readexactly(4), "little")
        return (head + await reader.readexactly(length - 4))[21:]

    pipeline: list[dict[str, Any]] = [{"$changeStream": {}}]
    if filters == "distinct":
        pipeline.append({"$match": {"documentKey._id": {"$gte": -number}}})
    elif filters == "tenant":
        pipeline.append({"$match": {"fullDocument.tenant": number}})
    collection = f"events{number}" if filters == "collection" else "events"
    async with found.opening:
        opening = {"aggregate": collection, "pipeline": pipeline, "cursor": {}, "$db": "bench"}
        reply = bson.decode(await ask(opening))
    if not reply["ok"]:
        raise SystemExit(f"a stream did not open: {reply}")
    more = {"getMore": bson.Int64(reply["cursor"]["id"]), "collection": collection, "$db": "bench"}
    found.opened(number)
    try:
        while not found.stop.is_set():
            found.take(number, await ask(more))
    finally:
        writer.close()


class _Found:
    """The totals of all clients."""

    def __init__(self, clients: int, expected: int | None, *, all_arrivals: bool) -> None:
        self.opening = asyncio.Semaphore(_AT_ONCE)
        self.all_open = asyncio.Event()
        self.stop = asyncio.Event()
        self.events = 0
        self.replies = 0
        self.arrived: dict[int, float] = {}
        self._left = clients
        self._expected = expected
        self._all_arrivals = all_arrivals

    def opened(self, _: int) -> None:
        """Count one more open stream."""
        self._left -= 1
        if not self._left:
            self.all_open.set()

    def take(self, number: int, body: bytes) -> None:
        """Count a reply; the first client's replies are decoded and give the arrival times."""
        self._take(number, body)
        if self._expected is not None and self.events >= self._expected:
            self._expected = None
            print("all", flush=True)

    def _take(self, number: int, body: bytes) -> None:
        now = time.perf_counter()
        self.replies += 1
        if number and not self._all_arrivals:
            # The text occurs once in each event's token and once in the reply's own token.
            self.events += body.count(b"\x02_data\0") - 1
            return
        reply = bson.decode(body)
        if not reply["ok"]:
            raise SystemExit(f"a stream failed: {reply}")
        batch = reply["cursor"]["nextBatch"]
        self.events += len(batch)
        for event in batch:
            self.arrived[event["documentKey"]["_id"]] = now


async def _run(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    found = _Found(args.clients, args.expect, all_arrivals=args.all_arrivals)
    tasks = [
        asyncio.ensure_future(_watch(args.port, number, args.watch, found))
        for number in range(args.clients)
    ]
    failed = asyncio.ensure_future(asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION))
    opened = asyncio.ensure_future(found.all_open.wait())
    await asyncio.wait((opened, failed), return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        await asyncio.gather(*tasks)
    print("open", flush=True)
    told = loop.run_in_executor(None, sys.stdin.readline)
    await asyncio.wait((told, failed), return_when=asyncio.FIRST_COMPLETED)
    result = {"events": found.events, "replies": found.replies, "arrived": found.arrived}
    print(json.dumps(result), flush=True)
    # Closing the connections ends the streams.
    for task in tasks:
        task.cancel()


def main() -> None:
    """Run the watchers that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument(
        "--watch",
        choices=("equal", "distinct", "tenant", "collection"),
        default="equal",
        help="what client N watches: the collection events, the same with a filter of its own, "
        "tenant N's documents in it, or the collection eventsN",
    )
    parser.add_argument("--expect", type=int, help="print a line when so many events have arrived")
    parser.add_argument(
        "--all-arrivals", action="store_true", help="take the arrival times of all clients' events"
    )
    uvloop.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()

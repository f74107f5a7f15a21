"""A config server and shards that replay prepared events: print their host strings, then serve.

All of them run in one process, so that more shards do not mean more processes on the same cores.
``replayed_cluster`` runs this module as a program.
"""

import argparse
import asyncio
import contextlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any

import bson
import uvloop
from bson import Timestamp

from bench.events import END, START, shard_events
from bench.programs import Program, port_of
from router.allocator import collect_less_often, keep_freed_memory
from tests.doubles.replay import ReplayMember, cursor_body

_NAMESPACE = "admin.$cmd.aggregate"
_REPLY_BYTES = 16_000_000


@dataclass(frozen=True, slots=True)
class ReplayedCluster:
    """Replaying shards and a config server: ``events`` on all shards."""

    events: int
    ports: list[str]
    configdb: str


@contextlib.contextmanager
def replayed_cluster(
    shards: int, events: int, size: int, *arguments: str
) -> Iterator[ReplayedCluster]:
    """Run a replayed cluster during the block.

    Args:
        shards: how many shards.
        events: how many events on all shards together; rounded down to a multiple of ``shards``.
        size: bytes of an event.
        arguments: further arguments of ``bench.replaying_cluster``.
    """
    events -= events % shards
    wanted = ("--shards", str(shards), "--events", str(events), "--size", str(size))
    with Program("bench.replaying_cluster", *wanted, *arguments) as program:
        started = json.loads(program.line())
        ports = [port_of(host) for host in started["shards"].values()]
        yield ReplayedCluster(events, ports, started["configdb"])


def main() -> None:
    """Serve the cluster that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--events", type=int, required=True, help="on all shards together")
    parser.add_argument("--size", type=int, default=600, help="bytes of an event")
    parser.add_argument(
        "--most", type=int, default=1 << 30, help="largest number of events in a reply"
    )
    parser.add_argument("--pace", type=float, help="events a second that a shard delivers at most")
    uvloop.run(_serve(parser.parse_args()))


async def _serve(args: argparse.Namespace) -> None:
    hosts = {}
    for number in range(args.shards):
        events = shard_events(number, args.shards, args.events, args.size)
        shard = _member(f"s{number}", PreparedEvents(events, args.most))
        if args.pace:
            shard.seconds_per_byte = 1 / args.pace / args.size
        hosts[f"s{number}"] = await shard.start()
    config = _member("cfg", PreparedEvents([]))
    config.documents["shards"] = [
        {"_id": name, "host": host, "state": 1, "topologyTime": Timestamp(1, number)}
        for number, (name, host) in enumerate(hosts.items(), 1)
    ]
    configdb = await config.start()
    keep_freed_memory()
    collect_less_often()
    print(json.dumps({"shards": hosts, "configdb": configdb}), flush=True)
    await asyncio.Event().wait()


class PreparedEvents:
    """Ordered events, prepared once for all tapes that replay them.

    Args:
        events: pairs of token data and event.
        most: the largest number of events in a reply, regardless of the batch size.
    """

    def __init__(self, events: list[tuple[str, bytes]], most: int = 1 << 30) -> None:
        self._most = most
        self.tokens = [token for token, _ in events]
        self.events = [event for _, event in events]
        # In a reply, an event takes its own bytes and about eight for the array.
        self._ends = list(accumulate(len(event) + 8 for event in self.events))

    def stop(self, start: int, count: int) -> int:
        """Return the end of a reply with at most ``count`` events from ``start`` on."""
        room = _REPLY_BYTES + (self._ends[start - 1] if start else 0)
        most = start + min(count, self._most)
        return min(most, bisect_right(self._ends, room, start), len(self.events))


class EventTape:
    """Replays prepared events in replies of the requested size, then only watermarks.

    It begins after a resume token, or at a start time, as the streams of the Spark source need.
    """

    def __init__(self, cursor_id: int, events: PreparedEvents) -> None:
        self._cursor_id, self._events = cursor_id, events
        self._at = 0

    def open(self, command: dict[str, Any]) -> bytes:
        """Return an empty first batch; events before the start are skipped."""
        options = command["pipeline"][0].get("$changeStream", {})
        token, time = options.get("resumeAfter"), options.get("startAtOperationTime")
        start = START
        if token is not None:
            start = token["_data"]
            self._at = bisect_right(self._events.tokens, start)
        elif time is not None and self._events.tokens:
            key = f"82{time.time:08X}{time.inc:08X}"
            if key > START:
                self._at = bisect_left(self._events.tokens, key)
                start = f"{key}2B0229296E04"
        return cursor_body(self._cursor_id, _NAMESPACE, [], start, first=True)

    def more(self, batch_size: int) -> tuple[bytes, bool]:
        """Return the next events, at most 16 MB."""
        prepared, start = self._events, self._at
        stop = self._at = prepared.stop(start, batch_size)
        batch = prepared.events[start:stop]
        more = stop < len(prepared.events)
        pbrt = prepared.tokens[stop - 1] if batch and more else END
        return cursor_body(self._cursor_id, _NAMESPACE, batch, pbrt), not batch


def _member(name: str, events: PreparedEvents) -> ReplayMember:
    """A member that replays events; of a stream that projects to tokens it sends the tokens."""
    ids = count(1)
    tokens = [(token, bson.encode({"_id": {"_data": token}})) for token in events.tokens]
    bare = PreparedEvents(tokens)

    def play(command: dict[str, Any]) -> EventTape:
        only_tokens = command["pipeline"][-1] == {"$project": {"_id": 1}}
        sent = bare if only_tokens else events
        return EventTape(next(ids), sent)

    return ReplayMember(name, play)


if __name__ == "__main__":
    main()

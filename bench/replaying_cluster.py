"""A config server and shards that replay prepared events: print their host strings, then serve.

All of them run in one process, so that more shards do not mean more processes on the same cores.
``replayed_cluster`` runs this module as a program.
"""

import argparse
import asyncio
import contextlib
import json
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import bson
import uvloop
from bson import Timestamp

from bench.events import END, START, shard_events
from bench.programs import Program, port_of
from router.allocator import collect_less_often, keep_freed_memory
from tests.doubles.replay import EventTape, PreparedEvents, ReplayMember, cursor_body


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


class _SeekingTape(EventTape):
    """A tape that begins at a stream's start time, as the streams of the Spark source need."""

    def open(self, command: dict[str, Any]) -> bytes:
        """Answer with an empty first batch; a start time sets the location."""
        reply = super().open(command)
        time = command["pipeline"][0].get("$changeStream", {}).get("startAtOperationTime")
        key = "" if time is None else f"82{time.time:08X}{time.inc:08X}"
        tokens = self._events.tokens
        if tokens and key > START:
            self._at = bisect_left(tokens, key)
            mark = f"{key}2B0229296E04"
            return cursor_body(self._cursor_id, self._namespace, [], mark, first=True)
        return reply


def _member(name: str, events: PreparedEvents) -> ReplayMember:
    """A member that replays events; of a stream that projects to tokens it sends the tokens."""
    ids = count(1)
    tokens = [(token, bson.encode({"_id": {"_data": token}})) for token in events.tokens]
    bare = PreparedEvents(tokens)

    def play(command: dict[str, Any]) -> EventTape:
        only_tokens = command["pipeline"][-1] == {"$project": {"_id": 1}}
        sent = bare if only_tokens else events
        return _SeekingTape(next(ids), "admin.$cmd.aggregate", START, sent, END)

    return ReplayMember(name, play)


if __name__ == "__main__":
    main()

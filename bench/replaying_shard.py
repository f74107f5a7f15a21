"""One replaying shard, or the config server, as a process: prints its host string, then serves."""

import argparse
import asyncio
import json

import uvloop
from bson import Timestamp

from bench.events import END, START, dealt
from shard_client.allocation import collect_less_often, keep_freed_memory
from tests.harness.replay import EventTape, PreparedEvents, ReplayMember


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--events", type=int, default=0)
    parser.add_argument("--size", type=int, default=600)
    parser.add_argument("--config", help="JSON object shard id -> host: be the config server")
    uvloop.run(_serve(parser.parse_args()))


async def _serve(args: argparse.Namespace) -> None:
    events = PreparedEvents(dealt(args.shard, args.shards, args.events, args.size))
    ids = iter(range(1_000 * (args.shard + 1), 1 << 62))

    def play(command: dict[str, object]) -> EventTape:
        return EventTape(next(ids), "admin.$cmd.aggregate", START, events, END)

    member = ReplayMember(args.name, play)
    if args.config:
        shards = json.loads(args.config)
        member.documents["shards"] = [
            {"_id": name, "host": host, "state": 1, "topologyTime": Timestamp(1, number + 1)}
            for number, (name, host) in enumerate(shards.items())
        ]
    keep_freed_memory()
    collect_less_often()
    print(await member.start(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()

"""`python -m tests.differential --seeds N`: random streams through mongos and through the router.

Starts a cluster of MongoDB's own servers (MERGEROUTER_MONGO_BIN) and a router in front of its
mongos, runs the seeds on it, several at a time, and prints the differences. ``--seed N`` replays
one seed and prints each step.
"""

import argparse
import asyncio
import json
import sys
import time
from functools import partial
from pathlib import Path

from tests.differential.seeds import Clients, Outcome, Servers, run_all, run_seed
from tests.differential.servers import running


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="the number of seeds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this seed and print each step")
    parser.add_argument("--jobs", type=int, default=6, help="seeds at a time")
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--on", type=Path, help="a JSON file that names running servers")
    parser.add_argument("--report", type=Path, help="write all differences to this file")
    parser.add_argument("--share-filters", default="auto", help="auto, always or never")
    parser.add_argument("--share-scopes", default="auto", help="auto, always or never")
    parser.add_argument("--share-from", help="the number of streams from which on auto shares")
    args = parser.parse_args()
    parameters = {"shareFilters": args.share_filters, "shareScopes": args.share_scopes}
    if args.share_from is not None:
        parameters |= dict.fromkeys(("shareFiltersFrom", "shareScopesFrom"), args.share_from)
    with running(args.shards, args.on, parameters) as servers:
        return asyncio.run(_run(servers, args))


async def _run(servers: Servers, args: argparse.Namespace) -> int:
    clients = Clients(servers)
    begun = time.perf_counter()
    try:
        if args.seed is not None:
            outcomes = [await run_seed(servers, clients, args.seed, print)]
            _show(outcomes[0])
        else:
            seeds = range(args.first, args.first + args.seeds)
            done = partial(_keep, report=args.report)
            outcomes = await run_all(servers, clients, seeds, args.jobs, done)
    finally:
        await clients.close()
    took = time.perf_counter() - begun
    failed = [outcome.seed for outcome in outcomes if outcome.differences]
    streams = sum(outcome.streams for outcome in outcomes)
    events = sum(outcome.events for outcome in outcomes)
    print(f"{len(outcomes)} seeds in {took:.1f} s, {streams} streams, {events} events")
    print(f"seeds that differ: {failed}" if failed else "no difference")
    return 1 if failed else 0


def _keep(outcome: Outcome, report: Path | None) -> None:
    _show(outcome)
    if report is not None and outcome.differences:
        with report.open("a") as file:
            json.dump({"seed": outcome.seed, "found": outcome.differences}, file)
            file.write("\n")


def _show(outcome: Outcome) -> None:
    if outcome.differences:
        print(
            f"seed {outcome.seed}: {len(outcome.differences)} of {outcome.streams} streams differ"
        )
        for each in outcome.differences:
            print("  " + each)
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

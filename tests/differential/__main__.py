"""`python -m tests.differential --seeds N`: random streams through mongos and through the router.

Starts a cluster of MongoDB's own servers (MERGEROUTER_MONGO_BIN) and routers in front of its
mongos, one for each way of sharing, runs the seeds on them, several at a time, and prints the
differences. A seed's number determines its theme and its router. ``--seed N`` replays one seed and
prints each step.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tests.differential.seeds import Clients, Outcome, Servers, run_all, run_seed, theme_of
from tests.differential.servers import WAYS, running
from tests.differential.workload import THEMES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="the number of seeds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this seed and print each step")
    parser.add_argument("--jobs", type=int, default=6, help="seeds at a time")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no seed after this time")
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument(
        "--log", type=Path, help="append each seed's outcome to this file; skip the seeds in it"
    )
    parser.add_argument(
        "--sharing", nargs="+", choices=WAYS, default=list(WAYS), help="how the routers share"
    )
    parser.add_argument(
        "--themes", nargs="+", choices=THEMES, default=list(THEMES), help="skip other seeds"
    )
    args = parser.parse_args()
    with running(args.shards, args.sharing) as servers:
        return asyncio.run(_run(servers, args))


async def _run(servers: Servers, args: argparse.Namespace) -> int:
    clients = Clients(servers)
    begun = time.perf_counter()
    logged = _read(args.log)
    known = {outcome.seed for outcome in logged}
    try:
        if args.seed is not None:
            outcomes = [await run_seed(servers, clients, args.seed, print)]
            _show(outcomes[0])
        else:
            numbers = range(args.first, args.first + args.seeds)
            seeds = (n for n in numbers if n not in known and theme_of(n) in args.themes)
            done = partial(_keep, log=args.log)
            seconds = 60 * args.minutes
            outcomes = await run_all(servers, clients, seeds, args.jobs, done, seconds)
    finally:
        await clients.close()
    print(f"{len(outcomes)} seeds in {time.perf_counter() - begun:.1f} s")
    return _sum_up([*logged, *outcomes])


def _sum_up(outcomes: list[Outcome]) -> int:
    """Print the sums of outcomes; return the exit status."""
    failed = [outcome for outcome in outcomes if outcome.differences]
    streams = sum(outcome.streams for outcome in outcomes)
    events = sum(outcome.events for outcome in outcomes)
    print(f"{len(outcomes)} seeds in all, {streams} streams, {events} events")
    kinds = Counter(f"{outcome.theme}, sharing {outcome.sharing}" for outcome in failed)
    print(
        f"seeds that differ: {[outcome.seed for outcome in failed]}" if failed else "no difference"
    )
    for kind, count in kinds.items():
        print(f"  {kind}: {count}")
    return 1 if failed else 0


def _read(log: Path | None) -> list[Outcome]:
    if log is None or not log.exists():
        return []
    return [Outcome(**json.loads(line)) for line in log.read_text().splitlines()]


def _keep(outcome: Outcome, log: Path | None) -> None:
    _show(outcome)
    if log is not None:
        with log.open("a") as file:
            file.write(json.dumps({**asdict(outcome), "log": []}) + "\n")


def _show(outcome: Outcome) -> None:
    if outcome.differences:
        print(
            f"seed {outcome.seed} ({outcome.theme}, sharing {outcome.sharing}): "
            f"{len(outcome.differences)} of {outcome.streams} streams differ"
        )
        for each in outcome.differences:
            print("  " + each)
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.simulation --seeds 1000 --jobs 2``; ``--seed N`` replays one with a trace."""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from random import Random

from tests.simulation.plan import draw
from tests.simulation.repeatable import with_fixed_hashes
from tests.simulation.sabotage import SABOTAGE
from tests.simulation.scenario import Result, simulate

_CHUNK = 10
_SHOWN = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--seed", type=int, help="replay this seed with a trace")
    parser.add_argument("--shards", type=int, help="shards at the start, not 2 or 3 by seed")
    parser.add_argument("--quiet", action="store_true", help="with --seed: no trace")
    parser.add_argument("--digests", action="store_true", help="print each seed's digest")
    parser.add_argument("--sabotage", choices=sorted(SABOTAGE), help="break a rule on purpose")
    parser.add_argument("--until-found", action="store_true", help="stop when the defect is found")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    if given.seed is None and not given.until_found:
        return run_many(seeds, given.jobs, given.shards, given.sabotage, digests=given.digests)
    if given.seed is not None:
        with _sabotaged(given.sabotage):
            return replay(given.seed, given.shards, quiet=given.quiet)
    if given.sabotage is None:
        parser.error("--until-found needs --sabotage")
    return find(seeds, given.shards, given.sabotage)


def find(seeds: range, shards: int | None, sabotage: str) -> int:
    """Run seeds with the defect ``sabotage`` until one fails; succeed if it does not without.

    Where an exception is raised changes with the code around it, so no seed finds it for ever:
    only seeds that plant exceptions are run for that defect.
    """
    for tried, seed in enumerate(seeds, 1):
        if sabotage == "exception" and not draw(Random(f"plan {seed}")).planted:
            continue
        with _sabotaged(sabotage):
            result = simulate(seed, shards=shards)
        if result.problems:
            for problem in simulate(seed, shards=shards).problems:
                print(f"seed {seed} fails without the defect: {problem[:600]}")
                return 1
            print(f"found by seed {seed}, the {tried}th: {result.problems[0][:600]}")
            return 0
    print(f"not found by {len(seeds)} seeds")
    return 1


def replay(seed: int, shards: int | None, *, quiet: bool) -> int:
    """Run one seed and print its trace and result."""
    result = simulate(seed, None if quiet else print, shards=shards)
    for problem in result.problems:
        print(f"seed {seed}: {problem}")
    moves = f"moves {result.moves.to_shared} to shared, {result.moves.to_own} to own"
    took = f"{result.events} events, {moves}, {result.virtual_seconds:.1f} s"
    print(f"seed {seed}: {took}, digest {result.digest}")
    return 1 if result.problems else 0


def run_many(
    seeds: range, jobs: int, shards: int | None, sabotage: str | None, *, digests: bool = False
) -> int:
    """Run seeds in parallel, each process with the defect ``sabotage``; print those that fail."""
    began = time.monotonic()
    failed: list[int] = []
    events = to_shared = to_own = 0
    chunk = _CHUNK if shards is None else 1
    chunks = [seeds[at : at + chunk] for at in range(0, len(seeds), chunk)]
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed(
            [pool.submit(_run_chunk, chunk, shards, sabotage) for chunk in chunks]
        ):
            for result in future.result():
                events += result.events
                to_shared += result.moves.to_shared
                to_own += result.moves.to_own
                if digests:
                    print(f"seed {result.seed}: digest {result.digest}")
                if result.problems:
                    failed.append(result.seed)
                    for problem in result.problems[:_SHOWN]:
                        print(f"seed {result.seed}: {problem[:600]}", flush=True)
    took = time.monotonic() - began
    print(f"{len(seeds)} seeds, {events} events, {took:.0f} s, {len(failed)} failed", flush=True)
    print(f"streams moved {to_shared} times to shared ones, {to_own} times to their own")
    if failed:
        print(f"failing seeds: {' '.join(map(str, sorted(failed)))}")
        same = "" if shards is None else f" --shards {shards}"
        print(f"replay one with: python -m tests.simulation --seed N{same}")
    return 1 if failed else 0


def _run_chunk(seeds: range, shards: int | None, sabotage: str | None) -> list[Result]:
    with _sabotaged(sabotage):
        return [simulate(seed, shards=shards) for seed in seeds]


def _sabotaged(name: str | None) -> AbstractContextManager[None]:
    return SABOTAGE[name]() if name else nullcontext()


if __name__ == "__main__":
    with_fixed_hashes()
    sys.exit(main())

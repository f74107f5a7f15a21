"""``python -m tests.simulation --seeds 1000 --jobs 2``; ``--seed N`` replays one with a trace."""

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext

from tests.simulation.repeatable import with_fixed_hashes
from tests.simulation.sabotage import SABOTAGE
from tests.simulation.scenario import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--seed", type=int, help="replay this one, with a trace")
    parser.add_argument("--quiet", action="store_true", help="with --seed: no trace")
    parser.add_argument("--sabotage", choices=sorted(SABOTAGE), help="break a rule on purpose")
    parser.add_argument("--until-found", action="store_true", help="stop at the first failure")
    given = parser.parse_args()
    with SABOTAGE[given.sabotage]() if given.sabotage else nullcontext():
        if given.seed is not None:
            return replay(given.seed, quiet=given.quiet)
        seeds = range(given.first, given.first + given.seeds)
        if given.until_found:
            return find(seeds)
        return run_many(seeds, given.jobs)


def find(seeds: range) -> int:
    """Run seeds until one fails; succeed if one does."""
    for tried, seed in enumerate(seeds, 1):
        result = simulate(seed)
        if result.problems:
            print(f"found by seed {seed}, the {tried}th: {result.problems[0][:600]}")
            return 0
    print(f"not found by {len(seeds)} seeds")
    return 1


def replay(seed: int, *, quiet: bool) -> int:
    """Run one seed and say what happened."""
    result = simulate(seed, None if quiet else print)
    for problem in result.problems:
        print(f"seed {seed}: {problem}")
    took = f"{result.events} events, {result.virtual_seconds:.1f} s"
    print(f"seed {seed}: {took}, digest {result.digest}")
    return 1 if result.problems else 0


def run_many(seeds: range, jobs: int) -> int:
    """Run seeds in parallel and print those that fail."""
    began = time.monotonic()
    failed: list[int] = []
    events = 0
    chunks = [seeds[at : at + 10] for at in range(0, len(seeds), 10)]
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(_run_chunk, chunk) for chunk in chunks]):
            for seed, problems, count in future.result():
                events += count
                if problems:
                    failed.append(seed)
                    for problem in problems[:3]:
                        print(f"seed {seed}: {problem[:600]}", flush=True)
    took = time.monotonic() - began
    print(f"{len(seeds)} seeds, {events} events, {took:.0f} s, {len(failed)} failed", flush=True)
    if failed:
        print(f"failing seeds: {' '.join(map(str, sorted(failed)))}")
        print("replay one with: python -m tests.simulation --seed N")
    return 1 if failed else 0


def _run_chunk(seeds: range) -> list[tuple[int, list[str], int]]:
    return list(_results(seeds))


def _results(seeds: range) -> Iterator[tuple[int, list[str], int]]:
    for seed in seeds:
        result = simulate(seed)
        yield seed, result.problems, result.events


if __name__ == "__main__":
    with_fixed_hashes()
    sys.exit(main())

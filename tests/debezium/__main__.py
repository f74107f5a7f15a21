"""`python -m tests.debezium --seeds N`: Debezium's messages beside ours, on real servers.

Each seed runs Debezium's own engine on a random workload, through a mongos and through a router in
front of it, and compares its messages with each other and with ours. ``--seed N`` replays one.
"""

import argparse
import sys
import time

from tests.debezium.engine import reason_to_skip
from tests.debezium.seeds import run_seed
from tests.harness.clusters import real_servers_named, start_real_cluster
from tests.harness.routers import start_router


def main() -> int:
    """Run the seeds; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.debezium", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="the number of seeds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--steps", type=int, default=400, help="the steps of a seed's workload")
    args = parser.parse_args()
    reason = reason_to_skip()
    if reason is None and not real_servers_named():
        reason = "needs MongoDB's servers: set MERGEROUTER_MONGO_BIN"
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.seeds)
    failed = []
    with (
        start_real_cluster(2, noop_interval=1) as cluster,
        start_router(cluster.configdb, f"mongodb://{cluster.mongos}") as router,
    ):
        for seed in seeds:
            begun = time.perf_counter()
            outcome = run_seed(cluster, router.uri, seed, args.steps)
            seconds = time.perf_counter() - begun
            print(
                f"seed {seed}: {outcome.messages} messages, {len(outcome.differences)} differences,"
                f" {seconds:.0f} s",
                flush=True,
            )
            for each in outcome.differences[:40]:
                print(f"  {each}")
            failed += [seed] if outcome.differences else []
    print(f"seeds that differ: {failed}" if failed else "no difference")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The long form: ``python -m tests.faults --minutes 30`` runs seeds, each on a new cluster.

A run with a problem leaves its report and the routers' logs under ``build/faults``, and the exit
status is then 1. Needs MERGEROUTER_MONGO_BIN.
"""

import argparse
import random
import sys
import time
from pathlib import Path

from tests.faults.run import Report, run_faults, shard_the_data
from tests.faults.schedule import Faults, random_faults
from tests.harness.clusters import REAL_SERVERS, real_servers_named, start_real_cluster

_LOGS = Path("build/faults")
_PARAMETERS: tuple[dict[str, object], ...] = (
    {},
    {"replyTimeoutMs": 1000, "connectTimeoutMs": 1000},
)
"""The routers' parameters, chosen by seed: the defaults, and short timeouts."""


def run_seed(seed: int, seconds: float) -> Report:
    """Run faults for some seconds on a new cluster."""
    chance = random.Random(seed)
    until = time.monotonic() + seconds

    def let_happen(faults: Faults) -> None:
        while time.monotonic() < until:
            faults.run_all(*random_faults(chance))
            time.sleep(chance.uniform(0, 2))
        faults.run("remove_shard")

    with start_real_cluster(2, members=3, mongoses=2) as cluster:
        shard_the_data(cluster)
        parameters = _PARAMETERS[seed % len(_PARAMETERS)]
        return run_faults(
            cluster, seed, let_happen, parameters=parameters, logs=_LOGS / f"seed-{seed}"
        )


def main() -> int:
    """Run seeds until the time is over; print each result and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--minutes-each", type=float, default=3.0, help="of faults for each seed")
    options = parser.parse_args()
    if not real_servers_named():
        print(f"set {REAL_SERVERS} to the folder of mongod and mongos", file=sys.stderr)
        return 2
    until, seed, bad = time.monotonic() + options.minutes * 60, options.seed, []
    faults = events = 0
    while time.monotonic() < until:
        left = until - time.monotonic()
        report = run_seed(seed, min(options.minutes_each * 60, left))
        faults += report.faults
        events += report.events
        print(f"seed {seed}: {len(report.problems)} problems")
        print(
            "\n".join(f"  {line}" for line in (*report.summary, *report.problems[:20])), flush=True
        )
        if report.problems:
            bad.append(seed)
        seed += 1
    print(f"{faults} faults, {events} events at watchers; seeds with problems: {bad or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

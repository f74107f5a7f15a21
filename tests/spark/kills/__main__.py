"""``python -m tests.spark.kills --seeds 10``: jobs that are killed, each seed on a new cluster.

On real servers where MERGEROUTER_MONGO_BIN names them. With ``--store`` the tables are on a local
stand-in of S3, which fails, and the job's hosts stall. A seed with a problem leaves the job's
folder and log under ``build/kills``, and the exit status is then 1.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from spark_sink import local_session
from tests.harness.object_store import ObjectStore, object_store
from tests.spark.kills.run import KINDS, STORE_KINDS, run_seed
from tests.spark.quick_session import QUICK

_FOLDERS = Path("build/kills")


def main() -> int:
    """Run the seeds; print each outcome and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--extra", type=int, default=4, help="faults beside one of each kind")
    parser.add_argument("--store", action="store_true", help="tables on an object store")
    parser.add_argument("--kinds", help="the kinds of faults, with commas; all by default")
    given = parser.parse_args()
    kinds = STORE_KINDS if given.store else KINDS
    kinds = tuple(given.kinds.split(",")) if given.kinds else kinds
    with object_store() if given.store else nullcontext() as store:
        if store is not None:
            os.environ.update(store.environment)  # of the session's processes, and of the job's
        return _run(given, kinds, store)


def _run(given: argparse.Namespace, kinds: Sequence[str], store: ObjectStore | None) -> int:
    spark, bad = local_session("kills", settings=QUICK), []
    for seed in range(given.first, given.first + given.seeds):
        folder = _FOLDERS.resolve() / f"seed-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        begun = time.monotonic()
        outcome = run_seed(seed, folder, spark, given.extra, kinds, store)
        print(f"seed {seed}, {time.monotonic() - begun:.0f} s: {outcome}", flush=True)
        print("".join(f"  {problem}\n" for problem in outcome.problems[:20]), end="", flush=True)
        if outcome.problems:
            bad.append(seed)
    spark.stop()
    print(f"seeds with problems: {bad or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.spark.kills --seeds 10``: jobs that are killed, each seed on a new cluster.

On real servers where MERGEROUTER_MONGO_BIN names them. A seed with a problem leaves the job's
folder and log under ``build/kills``, and the exit status is then 1.
"""

import argparse
import os
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from spark_sink import local_session
from tests.harness.object_store import ObjectStore, object_store
from tests.spark.cluster.nodes import SparkNodes, spark_nodes
from tests.spark.conftest import DEPLOYMENTS
from tests.spark.kills.run import KINDS, ON_CLUSTER, ON_STORE, run_seed
from tests.spark.quick_session import QUICK

_FOLDERS = Path("build/kills")


def main() -> int:
    """Run the seeds; print each outcome and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--extra", type=int, default=4, help="faults beside one of each kind")
    parser.add_argument("--store", action="store_true", help="tables on a stand-in of S3")
    parser.add_argument("--cluster", action="store_true", help="the same, on a cluster of Spark")
    parser.add_argument("--kinds", nargs="+", help="the kinds of faults, if not all")
    parser.add_argument("--reads", choices=DEPLOYMENTS, default=DEPLOYMENTS[0])
    given = parser.parse_args()
    with ExitStack() as stack:
        nodes = store = None
        if given.store or given.cluster:
            # The session that verifies and its Python workers take the variables at their start.
            store = stack.enter_context(object_store())
            os.environ.update(store.environment)
        if given.cluster:
            nodes = stack.enter_context(
                spark_nodes(Path(stack.enter_context(TemporaryDirectory())))
            )
        return _run(given, nodes, store)


def _run(given: argparse.Namespace, nodes: SparkNodes | None, store: ObjectStore | None) -> int:
    kinds = given.kinds or (ON_CLUSTER if nodes else ON_STORE if store else KINDS)
    spark, bad = local_session("kills", settings=QUICK), []
    for seed in range(given.first, given.first + given.seeds):
        folder = _FOLDERS.resolve() / f"seed-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        begun = time.monotonic()
        outcome = run_seed(seed, folder, spark, given.extra, kinds, given.reads, nodes, store)
        print(f"seed {seed}, {time.monotonic() - begun:.0f} s: {outcome}", flush=True)
        print("".join(f"  {problem}\n" for problem in outcome.problems[:20]), end="", flush=True)
        if outcome.problems:
            bad.append(seed)
    spark.stop()
    print(f"seeds with problems: {bad or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

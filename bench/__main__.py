"""`python -m bench [suite...]`: measure, print tables, store the figures."""

import argparse
import os
from importlib import import_module
from pathlib import Path

from bench.suite import Options, Suite, conditions_now, markdown_lines, write_results

# The suites in the order in which they run: each is a module of this package with a SUITE.
SUITES = (
    "throughput", "latency", "beside_mongos", "sharing", "lookup", "spark", "debezium",
)  # fmt: skip
NEED_REAL_SERVERS = ("beside_mongos", "sharing", "lookup", "debezium")
"""The suites that need MongoDB's own servers, `sharing` and `debezium` for a part."""


def main() -> None:
    """Run the suites that the command line names, and print and store their figures."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"one of {', '.join(SUITES)}")
    parser.add_argument("--quick", action="store_true", help="about a minute; rough figures")
    parser.add_argument("--real", action="store_true", help=f"run {', '.join(NEED_REAL_SERVERS)}")
    parser.add_argument("--runs", type=int, default=3, help="number of runs for each figure")
    parser.add_argument(
        "--quiet",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="quiet time before a write (latency)",
    )
    args = parser.parse_args()
    if unknown := set(args.suites) - set(SUITES):
        parser.error(f"no such suite: {', '.join(unknown)}")
    binaries = os.environ.get("MERGEROUTER_MONGO_BIN")
    options = Options(
        quick=args.quick,
        runs=1 if args.quick else args.runs,
        quiet=args.quiet,
        real_binaries=Path(binaries) if binaries else None,
    )
    print(conditions_now(args.quick)["machine"])
    for name in args.suites or (NEED_REAL_SERVERS if args.real else SUITES):
        suite: Suite = import_module(f"bench.{name}").SUITE
        print(f"\n== {suite.question}")
        conditions = conditions_now(args.quick)
        tables = suite.run(options)
        for table in tables:
            print("\n".join(markdown_lines(table)))
        for path in write_results(suite, options, tables, conditions) if tables else ():
            print(f"written: {path}")


if __name__ == "__main__":
    main()

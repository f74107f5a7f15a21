"""`python -m bench [suite...]`: measure, print tables, store the figures."""

import argparse
from importlib import import_module

from bench.suite import Options, Table, conditions_now, markdown_lines, write_results

SUITES = {
    "throughput": "How much can one router merge?",
    "latency": "How late does an event come while other members are idle?",
    "beside_mongos": "How does the router compare to mongos, and what does watching cost?",
    "sharing": "What do many streams of one scope cost?",
    "lookup": "What do looked-up documents cost, one by one and in batches?",
    "spark": "What do the Spark source and jobs cost, and how fast are they?",
    "debezium": "What do Debezium and the Spark source cost, and how fast are they?",
}
"""The question of each suite, in the order in which they run: bench/NAME.py answers it."""


def main() -> None:
    """Run the suites that the command line names, and print and store their figures."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"one of {', '.join(SUITES)}")
    parser.add_argument("--quick", action="store_true", help="about a minute; rough figures")
    parser.add_argument("--runs", type=int, default=3, help="how often each figure is taken")
    args = parser.parse_args()
    if unknown := set(args.suites) - set(SUITES):
        parser.error(f"no such suite: {', '.join(unknown)}")
    options = Options(quick=args.quick, runs=1 if args.quick else args.runs)
    print(conditions_now(options)["machine"])
    for name in args.suites or SUITES:
        print(f"\n== {SUITES[name]}")
        conditions = conditions_now(options)
        tables: list[Table] = import_module(f"bench.{name}").run(options)
        for table in tables:
            print("\n".join(markdown_lines(table)))
        if tables:
            print(f"written: {write_results(name, SUITES[name], tables, conditions)}")


if __name__ == "__main__":
    main()

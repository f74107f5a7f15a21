"""Run pymongo's own change stream tests on the router and print the results.

    python -m tests.drivers

With ``MERGEROUTER_MONGO_BIN``, the cluster has real servers. The tests then also run on its mongos,
and each must have the same result on the router.
"""

import sys

import pymongo
from rich.console import Console
from rich.table import Table

from tests.drivers.download_cache import DownloadError
from tests.drivers.pymongo_tests import (
    ASYNCHRONOUS,
    SYNCHRONOUS,
    Outcome,
    pymongo_tests,
    through_router,
)


def main() -> int:
    """Run all tests; return 1 if any failed or had a different result on a mongos."""
    try:
        folder = pymongo_tests()
    except DownloadError as error:
        print(f"pymongo's tests cannot be had: {error}")
        return 1
    table = Table("tests", "tokens", "server", "passed", "skipped", "failed", "more", "seconds")
    table.title = f"pymongo {pymongo.version}"
    table.caption = "more: the specification's tests for replica sets, passed/skipped/failed"
    wrong = False
    for file in (SYNCHRONOUS, ASYNCHRONOUS):
        for token_version in (1, 2):
            outcome, of_mongos = through_router(folder, file, token_version, mongos_too=True)
            _add(table, file, token_version, "router", outcome)
            wrong |= bool(outcome.failed)
            if outcome.failed:
                print(outcome.output)
            if of_mongos is None:
                continue
            _add(table, file, token_version, "mongos", of_mongos)
            for test in of_mongos.tests.keys() | outcome.tests.keys():
                direct, routed = of_mongos.tests.get(test), outcome.tests.get(test)
                if direct != routed:
                    wrong = True
                    print(f"{test}: {direct} with the mongos, {routed} through the router")
            break  # real servers have their version's tokens only
    Console(width=100).print(table)
    return int(wrong)


def _add(table: Table, file: str, token_version: int, server: str, outcome: Outcome) -> None:
    count, more = outcome.count(), outcome.count_widened()
    table.add_row(
        file.removeprefix("test/").removesuffix(".py"),
        str(token_version),
        server,
        *(str(count[became]) for became in ("passed", "skipped", "failed")),
        f"{more['passed']}/{more['skipped']}/{more['failed']}",
        f"{outcome.seconds:.1f}",
    )


if __name__ == "__main__":
    sys.exit(main())

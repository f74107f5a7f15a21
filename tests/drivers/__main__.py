"""Run pymongo's own change stream tests on the router and print the results.

    python -m tests.drivers

With ``MERGEROUTER_MONGO_BIN``, the cluster has real servers. The tests then also run on its mongos,
and each must have the same result on the router.
"""

import sys

import pymongo

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
    print(f"pymongo {pymongo.version}")
    wrong = False
    for file in (SYNCHRONOUS, ASYNCHRONOUS):
        for token_version in (1, 2):
            outcome, of_mongos = through_router(folder, file, token_version, mongos_too=True)
            _show(file, token_version, "router", outcome)
            wrong |= bool(outcome.failed)
            if outcome.failed:
                print(outcome.output)
            if of_mongos is None:
                continue
            _show(file, token_version, "mongos", of_mongos)
            for test in of_mongos.tests.keys() | outcome.tests.keys():
                direct, routed = of_mongos.tests.get(test), outcome.tests.get(test)
                if direct != routed:
                    wrong = True
                    print(f"{test}: {direct} with the mongos, {routed} through the router")
            break  # real servers have their version's tokens only
    return int(wrong)


def _show(file: str, token_version: int, server: str, outcome: Outcome) -> None:
    count, more = dict(outcome.count()), dict(outcome.count_widened())
    print(f"{file}, tokens of version {token_version}, through the {server}: {count};")
    print(f"  the specification's tests for replica sets: {more}; {outcome.seconds:.1f} s")


if __name__ == "__main__":
    sys.exit(main())

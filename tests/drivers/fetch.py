"""Fetches what the tests use of other projects, before they run and with time to do so.

    python -m tests.drivers.fetch

What cannot be had is told, and is no failure: the tests that need it are skipped with the reason.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from tests.drivers.download_cache import DownloadError
from tests.drivers.node_packages import node_packages
from tests.drivers.pymongo_tests import pymongo_tests

NODE_TESTS = Path(__file__).parents[1] / "integration" / "node"
_SECONDS = 600.0


def main() -> int:
    """Fetch pymongo's tests and the packages of the tests with Node."""
    fetched: dict[str, Callable[[], Path]] = {
        "pymongo's tests": lambda: pymongo_tests(_SECONDS),
        "Node's driver and mongosh": lambda: node_packages(NODE_TESTS / "package.json", _SECONDS),
    }
    for name, fetch in fetched.items():
        try:
            print(f"{name}: {fetch()}", flush=True)
        except DownloadError as error:
            print(f"{name} cannot be had: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

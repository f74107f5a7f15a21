"""Download other projects' files for the tests beforehand, with long timeouts.

    python -m tests.drivers.fetch

A failed download is reported but is no error: the tests that need it are skipped with the reason.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from tests.drivers.download_cache import DownloadError
from tests.drivers.node_packages import node_packages
from tests.drivers.pymongo_tests import pymongo_tests

NODE_TESTS = Path(__file__).parents[1] / "integration" / "node"
AXE = Path(__file__).parents[1] / "harness" / "axe"
_SECONDS = 600.0


def main() -> int:
    """Download pymongo's tests and the Node packages."""
    fetched: dict[str, Callable[[], Path]] = {
        "pymongo's tests": lambda: pymongo_tests(_SECONDS),
        "Node's driver and mongosh": lambda: node_packages(NODE_TESTS / "package.json", _SECONDS),
        "axe's rules": lambda: node_packages(AXE / "package.json", _SECONDS),
    }
    for name, fetch in fetched.items():
        try:
            print(f"{name}: {fetch()}", flush=True)
        except DownloadError as error:
            print(f"{name} cannot be had: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A cluster for all tests that leave it unchanged; other tests start their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.clusters import TestCluster, start_cluster
from tests.harness.node import NodePrograms

_HERE = Path(__file__).parent
_SHARING = {
    "test_admin",
    "test_docs_commands",
    "test_facade_drivers",
    "test_facade_lifecycle",
    "test_tracing",
    "test_two_routers",
    "test_workers",
}
"""The files whose tests share this module's cluster; each folder has a cluster of its own."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    """Return a cluster of two shards."""
    with start_cluster(shards=2) as started:
        yield started


@pytest.fixture(scope="session")
def node() -> NodePrograms:
    """Return what runs Node's driver and mongosh."""
    return NodePrograms()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One process of pytest-xdist runs the tests that share a cluster.
    assert {path.stem for path in _HERE.glob("test_*.py")} >= _SHARING
    for item in items:
        folder = item.path.parent
        if folder == _HERE and item.path.stem in _SHARING:
            item.add_marker(pytest.mark.xdist_group("integration"))
        elif folder.parent == _HERE:
            item.add_marker(pytest.mark.xdist_group(folder.name))

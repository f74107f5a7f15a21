"""Two shards with a key file and users of graded rights, and routers in front of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.clusters import TestCluster, start_cluster
from tests.harness.server_settings import ServerSettings, write_key_file
from tests.integration.security.clients import Servers, start_routers


@pytest.fixture(scope="package")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_key_file(tmp_path_factory.mktemp("security"))


@pytest.fixture(scope="package")
def secured(key_file: Path) -> Iterator[TestCluster]:
    """Two shards whose members log in with the key file."""
    with start_cluster(2, settings=ServerSettings(noop_interval=1, key_file=key_file)) as real:
        yield real


@pytest.fixture(scope="package")
def servers(
    secured: TestCluster, key_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    with start_routers(secured, key_file, tmp_path_factory.mktemp("router")) as started:
        yield started

"""Logins on real servers with a key file."""

import base64
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from router.catalog.cluster import CONFIG, Cluster
from shard_client.errors import CommandError
from shard_client.replica_set.motor_control import NO_PRIMARY
from shard_client.wire.access import Access
from shard_client.wire.authentication import Credentials, read_key_file
from tests.harness.clusters import RealCluster, start_real_cluster
from tests.harness.server_settings import ServerSettings


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("security") / "key"
    path.write_text(base64.b64encode(secrets.token_bytes(96)).decode())
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def secured(key_file: Path) -> Iterator[RealCluster]:
    """Two shards; users of graded rights."""
    with start_real_cluster(2, settings=ServerSettings(noop_interval=1, key_file=key_file)) as real:
        yield real


async def test_a_member_by_key_file(secured: RealCluster, key_file: Path) -> None:
    cluster = Cluster(secured.configdb, access=Access(read_key_file(key_file)))
    try:
        assert (await cluster.shards()).hosts == secured.shards
        for target in (*secured.shards, CONFIG):
            connection = await cluster.connect(target)
            status = await connection.command("admin", {"connectionStatus": 1}, timeout=5)
            assert status["authInfo"]["authenticatedUsers"] == [{"user": "__system", "db": "local"}]
            cluster.release(connection)
    finally:
        await cluster.close()


async def test_the_driver_logs_in_too(secured: RealCluster, key_file: Path) -> None:
    cluster = Cluster(secured.configdb, access=Access(read_key_file(key_file)))
    try:
        await cluster.shards()
        replica_set = cluster.replica_set("shard0")
        assert replica_set is not None
        primary = await replica_set.primary(10)
        # The driver asks the primary again, with a query that takes a login, and selects it.
        replica_set.invalidate(primary)
        with capture_logs() as logged:
            assert await replica_set.primary(5) == primary
        assert NO_PRIMARY not in [line["event"] for line in logged]
    finally:
        await cluster.close()


async def test_a_wrong_key(secured: RealCluster) -> None:
    wrong = Credentials("__system", "local", ("d3JvbmcK",))
    cluster = Cluster(secured.configdb, access=Access(wrong))
    try:
        with pytest.raises(CommandError, match=r"cannot log in to 127.0.0.1:.* as __system@local"):
            await cluster.shards()
    finally:
        await cluster.close()

"""The router as a client of the members: a key file, or a user of least privilege."""

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pymongo
import pytest
import yaml
from structlog.testing import capture_logs

from router.catalog.cluster import CONFIG, Cluster
from shard_client.errors import CommandError
from shard_client.replica_set.motor_control import NO_PRIMARY
from shard_client.replica_set.replica_set import PRIMARY
from shard_client.wire.authentication import Access, Credentials, read_key_file
from tests.harness.clusters import Client, TestCluster, on_real_servers
from tests.harness.routers import start_router
from tests.harness.until import PATIENCE
from tests.integration.security.clients import Servers, client

PAGE = Path(__file__).parents[3] / "docs" / "security.md"


async def test_a_member_by_key_file(secured: TestCluster, key_file: Path) -> None:
    cluster = Cluster(secured.configdb, access=Access(read_key_file(key_file)))
    try:
        assert (await cluster.shards()).hosts == secured.shards
        for target in (*secured.shards, CONFIG):
            connection = await cluster.connect(target)
            status = await connection.command("admin", {"connectionStatus": 1}, timeout=PATIENCE)
            assert status["authInfo"]["authenticatedUsers"] == [{"user": "__system", "db": "local"}]
            cluster.release(connection)
    finally:
        await cluster.close()


async def test_the_driver_logs_in_too(secured: TestCluster, key_file: Path) -> None:
    cluster = Cluster(secured.configdb, access=Access(read_key_file(key_file)))
    try:
        await cluster.shards()
        replica_set = cluster.replica_set("shard0")
        assert replica_set is not None
        primary = await replica_set.select(PRIMARY, 10)
        # The driver asks the primary again, with a query that requires a login, and selects it.
        replica_set.invalidate(primary)
        with capture_logs() as logged:
            assert await replica_set.select(PRIMARY, 5) == primary
        assert NO_PRIMARY not in [line["event"] for line in logged]
    finally:
        await cluster.close()


async def test_a_wrong_key_is_named_in_the_error(secured: TestCluster) -> None:
    wrong = Credentials("__system", "local", ("d3JvbmcK",))
    cluster = Cluster(secured.configdb, access=Access(wrong))
    try:
        with pytest.raises(CommandError, match=r"cannot log in to .* as __system@local"):
            await cluster.shards()
    finally:
        await cluster.close()


def privileges() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the privileges of docs/security.md on a shard, and through mongos."""
    _, _, section = PAGE.read_text().partition("### With least privilege, without the key file\n")
    on_shards, more = map(dedent, re.findall(r"(?<=\n\n)(?: {4,}.*\n)+", section)[:2])
    found = re.search(r"runCommand\((.*?)\)\n", on_shards, re.DOTALL)
    assert found is not None
    # The shell's documents are YAML, too.
    least = yaml.safe_load(found[1])["privileges"]
    return least, [*least, *yaml.safe_load(f"[{more}]")]


@on_real_servers("roles of one's own")
def test_a_router_of_least_privilege(
    secured: TestCluster, servers: Servers, tmp_path: Path
) -> None:
    """The roles of docs/security.md are enough, and times that servers signed are handed out."""
    on_shards, through_mongos = privileges()
    login = {"user": "least", "pwd": "least"}
    for shard in secured.shards:
        create_least(secured.direct(shard), on_shards)
    create_least(pymongo.MongoClient(secured.mongos_uri), through_mongos)
    password = tmp_path / "password"
    password.write_text(login["pwd"])
    password.chmod(0o600)
    config = tmp_path / "router.yaml"
    config.write_text(f"security:\n  user: least\n  passwordFile: {password}\n")
    with (
        start_router(secured.configdb, config=config) as router,
        client(f"127.0.0.1:{router.port}", "writer") as watcher,
        client(servers.mongos, "writer") as writer,
        watcher.start_session() as session,
    ):
        with watcher.db.watch(session=session) as watching:
            inserted = writer.db.c.insert_one({}).inserted_id
            assert watching.next()["documentKey"] == {"_id": inserted}
        assert session.cluster_time is not None
        assert session.cluster_time["signature"]["keyId"] != 0
        with writer.start_session() as other:
            other.advance_cluster_time(session.cluster_time)
            assert writer.db.command("find", "c", session=other)["ok"]
        refusals = [line for line in router.logs() if "not authorized" in str(line)]
        assert not refusals, [str(line)[:400] for line in refusals]


def create_least(connected: Client, privileges: list[dict[str, Any]]) -> None:
    with connected:
        role = {"createRole": "mergerouter", "privileges": privileges, "roles": []}
        connected.admin.command(role)
        connected.admin.command("createUser", "least", pwd="least", roles=["mergerouter"])

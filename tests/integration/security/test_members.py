"""The router as a client of the members, and its logins: by key file or by user."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from pymongo.errors import OperationFailure
from structlog.testing import capture_logs

from router.catalog.cluster import Cluster
from router.catalog.server_checks import ServerChecks
from router.catalog.shard_list import CONFIG
from router.tools.tail import cause_and_remedy
from shard_client.errors import CommandError
from shard_client.replica_set.motor_replica_set import NO_PRIMARY
from shard_client.replica_set.replica_set import PRIMARY
from shard_client.wire.authentication import Access, Credentials, read_key_file
from spark_sink.errors import SourceError, stream_refused
from spark_sink.jobs.job_settings import JobSettings
from spark_sink.jobs.router_beside import router_beside
from spark_sink.stream.router_client import require_cluster
from tests.harness.admin import get
from tests.harness.clusters import Client, TestCluster, on_real_servers
from tests.harness.ports import free_port
from tests.harness.routers import run_command, start_router
from tests.harness.server_settings import ROOT, write_secret
from tests.harness.until import PATIENCE
from tests.integration.security.clients import Servers, client

PAGE = Path(__file__).parents[3] / "docs" / "security.md"


async def test_a_member_by_key_file(secured: TestCluster, key_file: Path) -> None:
    cluster = Cluster(secured.configdb, access=Access(read_key_file(key_file)))
    try:
        assert (await cluster.shards()).hosts == secured.shards
        for target in (*secured.shards, CONFIG):
            status = await cluster.command(target, "admin", {"connectionStatus": 1}, PATIENCE)
            assert status["authInfo"]["authenticatedUsers"] == [{"user": "__system", "db": "local"}]
    finally:
        await cluster.close()


async def test_the_driver_logs_in_too(secured: TestCluster, key_file: Path) -> None:
    cluster = Cluster(secured.configdb, access=Access(read_key_file(key_file)))
    try:
        await cluster.shards()
        replica_set = cluster.replica_set("shard0")
        primary = await replica_set.select(PRIMARY, 10)
        # The driver asks the primary again, with a query that requires a login, and selects it.
        replica_set.distrust(primary)
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


Granted = dict[str, list[dict[str, Any]]]
"""Privileges by the target that grants them."""


@pytest.fixture(scope="module")
def least(secured: TestCluster) -> Granted:
    """Create the role and the user of docs/security.md, ``least``; return what is granted where."""
    _, _, section = PAGE.read_text().partition("### With least privilege, without the key file\n")
    _, on_shards, more = map(dedent, re.findall(r"(?<=\n\n)(?: {4,}.*\n)+", section)[:3])
    command = re.search(r"runCommand\((.*?)\)\n", on_shards, re.DOTALL)
    assert command is not None
    role = yaml.safe_load(command[1])  # the shell's documents are YAML, too
    granted = dict.fromkeys(secured.shards, role["privileges"])
    granted[CONFIG] = [*role["privileges"], *yaml.safe_load(f"[{more}]")]
    for target, privileges in granted.items():
        with connected(secured, target) as client_there:
            client_there.admin.command({**role, "privileges": privileges})
            client_there.admin.command("createUser", "least", pwd="least", roles=["mergerouter"])
    return granted


def connected(secured: TestCluster, target: str) -> Client:
    """Return an administrator's client of a shard, or of the mongos for the config server."""
    return Client(secured.mongos_uri) if target == CONFIG else secured.direct(target)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write the settings of a router with the user ``least``."""
    password = write_secret(tmp_path / "password", "least")
    path = tmp_path / "router.yaml"
    path.write_text(f"security:\n  user: least\n  passwordFile: {password}\n")
    return path


@pytest.mark.usefixtures("least")
@on_real_servers("roles of one's own")
def test_a_router_of_least_privilege(secured: TestCluster, servers: Servers, config: Path) -> None:
    """The roles of docs/security.md are enough, and times that servers signed are handed out."""
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


async def problems(secured: TestCluster) -> dict[str | None, str]:
    """Return what checks of the servers say of the user ``least``, by target."""
    cluster = Cluster(secured.configdb, access=Access(Credentials("least", "admin", ("least",))))
    checks = ServerChecks(cluster)
    try:
        results = await checks.results(whole=True)
        return {each.target: each.text for each in results if each.is_problem}
    finally:
        await checks.close()
        await cluster.close()


@on_real_servers("roles of one's own")
async def test_each_missing_privilege_is_named(secured: TestCluster, least: Granted) -> None:
    assert not await problems(secured)
    for target in ("shard0", CONFIG):
        for number, privilege in enumerate(least[target]):
            if target == CONFIG and number == 0:
                continue  # it has no streams but that of config.shards
            for action in privilege["actions"]:
                rest = {**privilege, "actions": [it for it in privilege["actions"] if it != action]}
                others = [each for each in least[target] if each is not privilege]
                with granting(secured, target, [*others, *([rest] if rest["actions"] else [])]):
                    told = await problems(secured)
                assert told.keys() == {target}, (action, privilege, told)
                assert "grants the router's user least@admin too little" in told[target]
                assert f"It lacks {action} on " in told[target]
    assert not await problems(secured)


_ON_SHARD, _LIST = "shard shard0 grants the router's user", "config server refuses the router"
_DIRECT_READ = {"failCommands": ["find"], "errorCode": 13, "namespace": "config.shards"}
"""What MongoDB 8.0 does to a user without the role directShardOperations."""


@on_real_servers("roles of one's own")
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(("refused", "problem"), [("stream", _ON_SHARD), ("list", _LIST)])
def test_a_refusal_is_told_to_everybody_as_one(
    secured: TestCluster, least: Granted, config: Path, refused: str, problem: str
) -> None:
    streams, *others = least["shard0"]
    with ExitStack() as stack:
        if refused == "stream":
            fewer = [{**streams, "actions": ["find"]}, *others]
            stack.enter_context(granting(secured, "shard0", fewer))
        else:
            stack.enter_context(failing(secured.direct("config"), _DIRECT_READ))
        router = stack.enter_context(start_router(secured.configdb, config=config, admin_port=0))
        watcher = stack.enter_context(client(f"127.0.0.1:{router.port}", "writer"))
        with pytest.raises(OperationFailure, match="refuses the router's user least@admin") as seen:
            watcher.db.watch()
        assert seen.value.code == 13
        # These advise the user of the client otherwise.
        assert "the user in option" not in str(stream_refused(seen.value))
        assert "The user in" not in cause_and_remedy(seen.value)
        ready = get(router.admin_port, "/readyz")
        assert (ready.status, problem in ready.text) == (503, True)
        lane_or_router = problem.removeprefix("shard shard0 ")
        assert lane_or_router in get(router.admin_port, "/status.json").text
        said = "\n".join(router.lines)
        assert "refuses the router's user" in said
        for each in (said, ready.text, get(router.admin_port, "/").text):
            assert "does not answer:" not in each
            assert NO_PRIMARY not in each


@contextmanager
def failing(server: Client, data: dict[str, Any]) -> Iterator[None]:
    """Let commands of clients that are no servers fail for the block."""
    fail_point = {"configureFailPoint": "failCommand"}
    with server:
        server.admin.command({**fail_point, "mode": "alwaysOn", "data": data})
        try:
            yield
        finally:
            server.admin.command({**fail_point, "mode": "off"})


@contextmanager
def granting(secured: TestCluster, target: str, privileges: list[dict[str, Any]]) -> Iterator[None]:
    """Let the role of ``least`` grant other privileges for the block."""
    role: dict[str, Any] = {"updateRole": "mergerouter"}
    with connected(secured, target) as client_there:
        shown = {"rolesInfo": "mergerouter", "showPrivileges": True}
        [before] = client_there.admin.command(shown)["roles"]
        client_there.admin.command({**role, "privileges": privileges})
        try:
            yield
        finally:
            client_there.admin.command({**role, "privileges": before["privileges"]})


def test_a_router_takes_key_file_and_user_from_a_configuration_file(
    secured: TestCluster, key_file: Path, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    password = write_secret(tmp_path / "password", ROOT)
    config = tmp_path / "router.yaml"
    config.write_text(
        f"sharding: {{configDB: {secured.configdb}}}\n"
        f"upstream: mongodb://{secured.mongos}\n"
        f"net: {{port: 1}}\n"  # the connection string has another port
        f"security: {{keyFile: {key_file}, user: {ROOT}, passwordFile: {password}}}\n"
    )
    uri = f"mongodb://{ROOT}:{ROOT}@{address}/"
    with (
        router_beside(JobSettings(out=str(tmp_path / "job"), uri=uri, router_config=str(config))),
        Client(uri) as client,
        client.shop.orders.watch() as stream,
    ):
        require_cluster({"uri": uri})
        client.shop.orders.insert_one({"_id": "of a job's own router"})
        assert next(stream)["operationType"] == "insert"
    with pytest.raises(SourceError, match="cannot be reached"):
        require_cluster({"uri": uri})


def test_a_refused_login_on_the_upstream_is_told(
    secured: TestCluster, key_file: Path, tmp_path: Path
) -> None:
    """The quickstart's is accepted."""
    secret = write_secret(tmp_path / "password", "wrong")
    config = tmp_path / "router.yaml"
    config.write_text(
        f"sharding: {{configDB: '{secured.configdb}'}}\nnet: {{port: 0}}\n"
        f"upstream: mongodb://{secured.mongos}\n"
        f"security: {{keyFile: {key_file}, user: router, passwordFile: {secret}}}\n"
    )
    checked = run_command("check-config", "--config", config)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert "FAIL login on the upstream as router" in checked.stdout
    assert "ok   shard shard0" in checked.stdout
    assert "wrong" not in checked.stdout.replace(str(secret), "")

"""A wrong server in each place that the settings name: no start, no write, a cause and a remedy."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pymongo
import pymongo.errors
import pytest

from tests.harness.admin import get
from tests.harness.clusters import Client, TestCluster, on_real_servers, start_cluster
from tests.harness.ports import free_port
from tests.harness.routers import RouterProcess, run_command, start_router
from tests.harness.server_settings import ServerSettings, write_key_file
from tests.harness.switched_port import SwitchedPort
from tests.harness.until import wait_for

_CONFIGURATION = 78
_NO_MONGOS = "answers, but is no mongos: name a mongos of the cluster in upstream (--upstream)"
_NO_CONFIG_SERVER = (
    "answers, but is no config server: name the cluster's config server in sharding.configDB"
)


class Servers(NamedTuple):
    """A cluster, and another one without shards."""

    cluster: TestCluster
    other: TestCluster

    def configdb(self, name: str) -> str:
        """Return the host string of the cluster's config server, or of another server."""
        if name in self.cluster.shards:
            return self.cluster.shards[name]
        if name == "mongos":
            return f"cfg/{self.cluster.mongos}"
        return {"config": self.cluster, "other config": self.other}[name].configdb

    def upstream(self, name: str) -> str:
        """Return the connection string of a server by its name."""
        if name in ("mongos", "other mongos"):
            return {"mongos": self.cluster, "other mongos": self.other}[name].mongos_uri
        return f"mongodb://{self.configdb(name).partition('/')[2]}/"


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with start_cluster(1) as cluster, start_cluster(0) as other:
        yield Servers(cluster, other)


def check_config(*arguments: str) -> tuple[int, str]:
    done = run_command("check-config", *arguments)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("configdb", "upstream", "problem"),
    [
        ("config", "shard0", _NO_MONGOS),
        ("config", "config", _NO_MONGOS),
        ("config", "other mongos", "is a mongos of another cluster than the config server"),
        ("shard0", "mongos", _NO_CONFIG_SERVER),
        ("other config", "other mongos", "lists no shards, so there is nothing to stream"),
    ],
)
def test_the_wrong_server_ends_the_start_with_cause_and_remedy(
    servers: Servers, configdb: str, upstream: str, problem: str
) -> None:
    check_refused(
        problem,
        *("--configdb", servers.configdb(configdb), "--upstream", servers.upstream(upstream)),
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("config", "answers, but is a config server: name it in sharding.configDB"),
        pytest.param(
            "shard0",
            "is a shard: the cluster's other shards would be missing",
            marks=on_real_servers("documents that tell a shard"),
        ),
    ],
)
def test_a_part_of_a_cluster_is_not_taken_for_a_replica_set(
    servers: Servers, name: str, problem: str
) -> None:
    check_refused(problem, "--replicaSet", servers.configdb(name), workers=2)


def test_a_wrong_name_of_a_set_is_told_with_the_right_one(servers: Servers) -> None:
    address = servers.cluster.configdb.partition("/")[2]
    status, findings = check_config("--configdb", f"wrong/{address}")
    assert status == 1
    told = f"does not answer: {address} is a member of the set cfg, not of wrong."
    assert any(told in line for line in findings.splitlines() if line.startswith("FAIL")), findings


def check_refused(problem: str, *places: str, workers: int = 1) -> None:
    status, findings = check_config(*places)
    assert status == 1
    assert any(problem in line for line in findings.splitlines() if line.startswith("FAIL"))
    started = run_command("serve", *places, "--port=0", f"--workers={workers}")
    assert started.returncode == _CONFIGURATION, started.stdout + started.stderr
    assert problem in started.stdout + started.stderr


def test_the_keys_of_cluster_times_tell_another_cluster_s_mongos(tmp_path: Path) -> None:
    key_file = write_key_file(tmp_path)
    secured = {"settings": ServerSettings(key_file=key_file)}
    with start_cluster(0, **secured) as cluster, start_cluster(0, **secured) as other:
        for mongos, fits in ((cluster.mongos, True), (other.mongos, False)):
            config = tmp_path / "router.yaml"
            config.write_text(
                f"sharding: {{configDB: {cluster.configdb}}}\nsecurity: {{keyFile: {key_file}}}\n"
                f"upstream: mongodb://{mongos}\n"
            )
            _, findings = check_config("--config", str(config))
            assert ("ok   upstream" in findings) == fits
            assert ("is a mongos of another cluster" not in findings) == fits


def test_a_mongos_as_config_server_is_named_by_check_config(servers: Servers) -> None:
    status, findings = check_config("--configdb", servers.configdb("mongos"))
    assert status == 1
    assert "rs.conf()" in findings


def readiness(router: RouterProcess) -> tuple[int, str]:
    reply = get(router.admin_port, "/readyz")
    return reply.status, reply.text


def test_no_write_reaches_a_server_that_takes_the_place_of_the_mongos(servers: Servers) -> None:
    cluster = servers.cluster
    shard = cluster.shards["shard0"].partition("/")[2]
    with (
        SwitchedPort(cluster.mongos) as port,
        start_router(cluster.configdb, f"mongodb://{port.address}/", admin_port=0) as router,
        Client(router.uri, retryWrites=False) as client,
    ):
        client.place.c.insert_one({"_id": "before"})
        port.exchange(shard)
        with pytest.raises(pymongo.errors.PyMongoError, match="is no mongos: name a mongos"):
            client.place.c.insert_one({"_id": "astray"})
        with cluster.direct("shard0") as member:
            assert [each["_id"] for each in member.place.c.find()] == ["before"]
        wait_for(lambda: readiness(router)[0] == 503, "an unready router")
        assert _NO_MONGOS in readiness(router)[1]
        # The change stream needs no upstream.
        with client.place.c.watch() as stream:
            port.exchange(cluster.mongos)
            client.place.c.insert_one({"_id": "after"})
            assert next(stream)["documentKey"] == {"_id": "after"}
        wait_for(lambda: readiness(router) == (200, "ready\n"), "a ready router")


def test_a_config_server_that_turns_out_to_be_a_shard_opens_no_stream(servers: Servers) -> None:
    name, _, address = servers.cluster.shards["shard0"].partition("/")
    with (
        SwitchedPort(None) as port,
        start_router(f"{name}/{port.address}", admin_port=0) as router,
        Client(router.uri) as client,
    ):
        port.exchange(address)
        with pytest.raises(pymongo.errors.OperationFailure, match="is no config server"):
            client.place.c.watch()
        wait_for(lambda: _NO_CONFIG_SERVER in readiness(router)[1], "an unready router")


def test_a_router_is_not_its_own_upstream(servers: Servers) -> None:
    port = free_port()
    upstream = f"mongodb://127.0.0.1:{port}/"
    with (
        start_router(servers.cluster.configdb, upstream, port=port) as router,
        Client(router.uri, retryWrites=False) as client,
        pytest.raises(pymongo.errors.PyMongoError, match="is this router itself"),
    ):
        client.place.c.insert_one({})


def test_an_upstream_that_does_not_answer_yet_is_waited_for(servers: Servers) -> None:
    nowhere = f"mongodb://127.0.0.1:{free_port()}/"
    with start_router(servers.cluster.configdb, nowhere, admin_port=0) as router:
        (line,) = [each for each in router.logs() if each["msg"] == "A server fails its check"]
        assert "does not answer" in json.dumps(line)
        status, text = readiness(router)
        assert status == 200
        assert "does not answer" in text

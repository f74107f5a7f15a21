"""``clusterAuthMode: x509``: the router logs in to the members with its certificate."""

from collections.abc import Iterator
from typing import Any

import pymongo
import pytest

from tests.harness.certificates import Authority
from tests.harness.clusters import Client, TestCluster, on_real_servers, start_cluster
from tests.harness.routers import RouterProcess, start_router
from tests.harness.server_settings import ServerSettings, ServerTls

pytestmark = on_real_servers("logins with certificates")


@pytest.fixture(scope="module")
def by_certificate(authority: Authority) -> Iterator[TestCluster]:
    """A shard and a config server that log in to each other with certificates."""
    tls = ServerTls(authority.issue("member"), authority.file, cluster_auth=True)
    with start_cluster(1, settings=ServerSettings(noop_interval=1, tls=tls)) as real:
        yield real


def router_of(cluster: TestCluster, authority: Authority, **flags: Any) -> RouterProcess:
    return start_router(
        cluster.configdb,
        f"mongodb://{cluster.mongos}/",
        clusterAuthMode="x509",
        tlsAllowConnectionsWithoutCertificates=True,
        **authority.router_flags(authority.issue("gateway", subject=(("O", "public"),))),
        **flags,
    )


def test_the_router_logs_in_as_a_member_by_its_certificate(
    by_certificate: TestCluster, authority: Authority
) -> None:
    """Clients see one certificate; the one for servers has the members' subject."""
    member = authority.issue("router-member")
    with router_of(by_certificate, authority, tlsClusterFile=member) as router:
        with Client(
            f"mongodb://root:root@127.0.0.1:{router.port}/?tls=true&tlsCAFile={authority.file}"
        ) as client:
            # Notes of idle members and reading the keys of times take a member's rights.
            with client.db.c.watch(max_await_time_ms=500) as stream:
                stream.try_next()
                written = client.db.c.insert_one({}).inserted_id
                assert stream.next()["documentKey"] == {"_id": written}
            subject = client.admin.command("serverStatus")["security"]["SSLServerSubjectName"]
            assert subject == "CN=gateway,O=public"
        assert not [line for line in router.logs() if "cannot log in" in str(line)]


def test_a_certificate_of_no_member(by_certificate: TestCluster, authority: Authority) -> None:
    stranger = authority.issue("stranger", subject=(("O", "elsewhere"),))
    with (
        router_of(by_certificate, authority, tlsClusterFile=stranger) as router,
        Client(
            f"mongodb://root:root@127.0.0.1:{router.port}/?tls=true&tlsCAFile={authority.file}",
            serverSelectionTimeoutMS=2000,
        ) as client,
        pytest.raises(pymongo.errors.PyMongoError, match="the subject of its certificate"),
    ):
        client.db.c.watch()

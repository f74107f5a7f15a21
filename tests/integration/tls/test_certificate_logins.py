"""Logins by certificate: of users on the router, of the router as a member."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from bson import Int64
from pymongo.errors import OperationFailure

from tests.harness.certificates import Authority
from tests.harness.clusters import Client, TestCluster, on_real_servers, start_cluster
from tests.harness.routers import RouterProcess, start_router
from tests.harness.server_settings import ServerSettings, ServerTls
from tests.integration.tls.conftest import CLIENTS, SUBJECT, tls_router

pytestmark = on_real_servers("logins with certificates")


@pytest.fixture(scope="module", params=[True, False], ids=["upstream", "alone"])
def router(
    request: pytest.FixtureRequest, cluster: TestCluster, authority: Authority, key_file: Path
) -> Iterator[RouterProcess]:
    at_once = {"authFailedDelayMs": 0, "userCacheInvalidationIntervalSecs": 1}
    flags = {"has_upstream": request.param, "set_parameter": at_once}
    with tls_router(cluster, authority, key_file, **flags) as started:
        yield started


def client(port: int, authority: Authority, certificate: Path, **options: Any) -> Client:
    return Client(
        "127.0.0.1", port, tls=True, tlsCAFile=str(authority.file),
        tlsCertificateKeyFile=str(certificate), directConnection=True, **options,
    )  # fmt: skip


def test_a_certificate_user_reads_a_stream(
    router: RouterProcess, cluster: TestCluster, authority: Authority, reader_file: Path
) -> None:
    with (
        Client(cluster.mongos_uri) as root,
        client(router.port, authority, reader_file, authMechanism="MONGODB-X509") as reader,
    ):
        status = reader.admin.command("connectionStatus")["authInfo"]
        assert status["authenticatedUsers"] == [{"user": SUBJECT, "db": "$external"}]
        assert status["authenticatedUserRoles"] == [{"role": "read", "db": "db"}]
        with reader.db.certificates.watch(max_await_time_ms=500) as stream:
            stream.try_next()
            written = root.db.certificates.insert_one({}).inserted_id
            assert stream.next()["documentKey"] == {"_id": written}
        with pytest.raises(OperationFailure) as refused:
            reader.other.c.watch()
        assert refused.value.code == 13
        with reader.start_session() as session:
            watching = {"aggregate": "certificates", "pipeline": [{"$changeStream": {}}]}
            opened = reader.db.command({**watching, "cursor": {}}, session=session)
            assert reader.admin.command({"killSessions": []})["ok"]
            more = {"getMore": Int64(opened["cursor"]["id"]), "collection": "certificates"}
            with pytest.raises(OperationFailure) as gone:
                reader.db.command(more, session=session)
            assert gone.value.code == 43


def test_reads_and_writes_are_refused(
    router: RouterProcess, authority: Authority, reader_file: Path
) -> None:
    with client(router.port, authority, reader_file, authMechanism="MONGODB-X509") as reader:
        with pytest.raises(OperationFailure) as refused:
            reader.db.certificates.find_one()
        upstream = "upstream" in (refused.value.details or {})["errmsg"]
        assert refused.value.code == (13 if upstream else 59)
        assert upstream == any("--upstream" in word for word in router.process.args)


@pytest.mark.parametrize("certificate", ["reader", "stranger", "router", "server"])
def test_logins_are_answered_as_by_mongos(
    router: RouterProcess,
    cluster: TestCluster,
    authority: Authority,
    reader_file: Path,
    certificate: str,
) -> None:
    issue = {
        "reader": lambda: reader_file,
        "stranger": lambda: authority.issue("stranger", subject=CLIENTS),
        "router": lambda: authority.issue("router2"),
        "server": lambda: authority.issue("server2"),
    }
    file = issue[certificate]()
    asked: list[tuple[str, dict[str, Any]]] = [
        ("$external", {"authenticate": 1, "mechanism": "MONGODB-X509", "user": "CN=other"}),
        ("$external", {"authenticate": 1, "mechanism": "SCRAM-SHA-1", "user": "a"}),
        ("$external", {"authenticate": 1}),
        ("admin", {"authenticate": 1, "mechanism": "MONGODB-X509"}),
        ("admin", hello(user="CN=other")),
        ("admin", hello()),
        ("$external", {"authenticate": 1, "mechanism": "MONGODB-X509"}),
        ("$external", {"authenticate": 1, "mechanism": "MONGODB-X509", "user": SUBJECT}),
        ("admin", {"connectionStatus": 1}),
    ]
    answers = []
    for port in (int(cluster.mongos.rpartition(":")[2]), router.port):
        with client(port, authority, file, maxPoolSize=1) as connected:
            answers.append([answer(connected, *each) for each in asked])
    assert answers[1] == answers[0]


def hello(**fields: Any) -> dict[str, Any]:
    login = {"authenticate": 1, "mechanism": "MONGODB-X509", "db": "$external", **fields}
    return {"hello": 1, "speculativeAuthenticate": login}


def answer(connected: Client, database: str, command: dict[str, Any]) -> Any:
    try:
        reply = connected[database].command(command)
    except OperationFailure as error:
        # mongos appends a remark about its own settings.
        text = str((error.details or {})["errmsg"]).partition("client authentication")[0]
        return error.code, text
    if "hello" in command:
        return reply.get("speculativeAuthenticate")
    return {name: reply[name] for name in ("dbname", "user", "authInfo") if name in reply}


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

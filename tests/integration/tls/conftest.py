"""Two shards with a key file that take TLS connections only, and routers in front of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.certificates import Authority
from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.harness.routers import RouterProcess, start_router
from tests.harness.server_settings import ServerSettings, ServerTls, write_key_file

CLIENTS = (("O", "tests"), ("OU", "clients"))
"""The part of a subject that all certificates of clients have."""

SUBJECT = "CN=reader,OU=clients,O=tests"
"""The subject of the certificate of a user that may read the database ``db``."""

USER = "alice"
"""The name and the password of a user that may read and write the database ``db``."""


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="package")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="package")
def key_file(folder: Path) -> Path:
    return write_key_file(folder)


@pytest.fixture(scope="package")
def cluster(authority: Authority, key_file: Path) -> Iterator[TestCluster]:
    tls = ServerTls(authority.issue("server"), authority.file)
    settings = ServerSettings(noop_interval=1, key_file=key_file, tls=tls)
    with start_cluster(2, settings=settings) as real:
        with Client(real.mongos_uri) as root:
            roles = [{"role": "readWrite", "db": "db"}]
            root.admin.command("createUser", USER, pwd=USER, roles=roles)
        yield real


@pytest.fixture(scope="package")
def client_file(authority: Authority) -> Path:
    """The certificate of a client."""
    return authority.issue("client", subject=CLIENTS)


@pytest.fixture(scope="package")
def reader_file(authority: Authority, cluster: TestCluster) -> Path:
    """The certificate of the user that has its subject as name."""
    with Client(cluster.mongos_uri) as root:
        roles = [{"role": "read", "db": "db"}]
        root["$external"].command("createUser", SUBJECT, roles=roles)
        root.db.certificates.insert_one({})
    return authority.issue("reader", subject=CLIENTS)


@pytest.fixture(scope="package", params=[1, 2], ids=["one-process", "two-workers"])
def router(
    request: pytest.FixtureRequest, cluster: TestCluster, authority: Authority, key_file: Path
) -> Iterator[RouterProcess]:
    with tls_router(cluster, authority, key_file, workers=request.param, admin_port=0) as started:
        yield started


def tls_router(
    cluster: TestCluster,
    authority: Authority,
    key_file: Path,
    certificate: Path | None = None,
    *,
    has_upstream: bool = True,
    **flags: object,
) -> RouterProcess:
    """Start a router that accepts and makes only TLS connections, by default with a new one."""
    flags |= authority.router_flags(certificate or authority.issue("router"))
    upstream = f"mongodb://{cluster.mongos}/" if has_upstream else None
    return start_router(cluster.configdb, upstream, keyFile=key_file, **flags)


@pytest.fixture(scope="package")
def uri(router: RouterProcess, authority: Authority, client_file: Path) -> str:
    """The router's connection string for the user."""
    return (
        f"mongodb://{USER}:{USER}@127.0.0.1:{router.port}/?authSource=admin&tls=true"
        f"&tlsCAFile={authority.file}&tlsCertificateKeyFile={client_file}"
    )

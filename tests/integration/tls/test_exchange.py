"""Certificates that are exchanged while the router runs."""

import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from pymongo.errors import OperationFailure

from tests.harness.certificates import Authority
from tests.harness.clusters import Client, TestCluster
from tests.harness.routers import RouterProcess
from tests.harness.until import PATIENCE, wait_for
from tests.integration.tls.conftest import tls_router

BAD_CONFIGURATION = 140


@pytest.fixture(scope="module")
def file(authority: Authority) -> Path:
    """The router's certificate, which is replaced."""
    return authority.issue("first")


@pytest.fixture(scope="module", params=[1, 2], ids=["one-process", "two-workers"])
def router(
    request: pytest.FixtureRequest,
    cluster: TestCluster,
    authority: Authority,
    key_file: Path,
    file: Path,
) -> Iterator[RouterProcess]:
    authority.issue("first", file=file)
    flags = {"workers": request.param, "tlsAllowConnectionsWithoutCertificates": True}
    with tls_router(cluster, authority, key_file, file, admin_port=0, **flags) as started:
        yield started


def shown_names(router: RouterProcess, authority: Authority) -> set[str]:
    """Return the common names in the certificates of several new connections of drivers."""
    # The workers get connections in turn.
    return {shown_name(router.port, authority) for _ in range(6)}


def shown_name(port: int, authority: Authority) -> str:
    """Return the common name in the certificate of a new connection."""
    context = ssl.create_default_context(cafile=authority.file)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connected,
    ):
        der = connected.getpeercert(binary_form=True)
    assert der is not None
    subject = x509.load_der_x509_certificate(der).subject
    return str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def wait_for_admin_name(router: RouterProcess, authority: Authority, name: str) -> None:
    """Wait until the admin port shows a certificate; with workers their parent serves it."""
    wait_for(lambda: shown_name(router.admin_port, authority) == name, f"the certificate of {name}")


def test_certificates_are_exchanged_by_command_and_by_signal(
    router: RouterProcess, cluster: TestCluster, authority: Authority, file: Path
) -> None:
    uri = f"mongodb://root:root@127.0.0.1:{router.port}/?tls=true&tlsCAFile={authority.file}"
    with Client(uri) as root, root.db.exchange.watch(max_await_time_ms=500) as stream:
        stream.try_next()
        assert shown_names(router, authority) == {"first"}
        assert shown_name(router.admin_port, authority) == "first"

        authority.issue("second", file=file)
        assert root.admin.command("rotateCertificates")["ok"] == 1
        assert shown_names(router, authority) == {"second"}
        wait_for_admin_name(router, authority, "second")
        described = root.admin.command("serverStatus")["security"]
        assert described["SSLServerSubjectName"] == "CN=second,OU=servers,O=tests"
        assert described["SSLServerHasCertificateAuthority"] is True

        file.write_text("no certificate")
        with pytest.raises(OperationFailure, match="PEM form") as failed:
            root.admin.command("rotateCertificates")
        assert failed.value.code == BAD_CONFIGURATION
        assert shown_names(router, authority) == {"second"}
        assert shown_name(router.admin_port, authority) == "second"

        authority.issue("third", file=file)
        router.process.send_signal(signal.SIGHUP)
        wait_for(lambda: shown_names(router, authority) == {"third"}, "the exchange by SIGHUP")
        wait_for_admin_name(router, authority, "third")

        # The earlier connection and stream stay open. The monitoring reconnects at the exchange and
        # continues.
        written = root.db.exchange.insert_one({}).inserted_id
        assert stream.next()["documentKey"] == {"_id": written}
        with root.db.other.watch(max_await_time_ms=500) as another:
            another.try_next()
            written = root.db.other.insert_one({}).inserted_id
            assert another.next()["documentKey"] == {"_id": written}
    assert not [line for line in router.logs() if line.get("msg", "").startswith("No primary")]

"""Connections to servers whose TLS is not as it must be: refused, with the cause."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from shard_client.errors import NetworkError
from shard_client.wire.connection import Connection
from shard_client.wire.tls import Certificate, TlsContexts, TlsFiles
from tests.harness.certificates import Authority, only_tls_1_1
from tests.harness.until import PATIENCE


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("foreign"), "foreign")


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    return TlsFiles(authority.issue("router"), ca=authority.file)


def serving(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def old_server(certificate: Path) -> ssl.SSLContext:
    context = serving(certificate)
    only_tls_1_1(context)
    return context


async def failure(server: ssl.SSLContext | None, files: TlsFiles) -> str:
    """Return the error of a connection to a server with this context."""

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"no TLS")
        writer.close()

    async with await asyncio.start_server(end, "127.0.0.1", 0, ssl=server) as listening:
        address = ("127.0.0.1", listening.sockets[0].getsockname()[1])
        with pytest.raises(NetworkError) as raised:
            await Connection.open(address, timeout=PATIENCE, tls=TlsContexts(files).outgoing)
    return str(raised.value)


async def test_a_certificate_for_another_host(authority: Authority, files: TlsFiles) -> None:
    other = serving(authority.issue("other", hosts=("other.example",)))
    assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in await failure(
        other, files
    )
    # The setting lets the handshake succeed: this server then ends the connection.
    allowed = await failure(other, replace(files, invalid_hostnames=True))
    assert "certificate" not in allowed


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("expired", "certificate has expired"),
        ("foreign", "unable to get local issuer certificate"),
        ("revoked", "certificate revoked"),
        ("TLS 1.1", "the connection ended during the TLS handshake"),
    ],
)
async def test_a_bad_server_is_refused(
    authority: Authority, foreign: Authority, files: TlsFiles, fault: str, cause: str
) -> None:
    issuer = foreign if fault == "foreign" else authority
    certificate = issuer.issue("shard", days=-1 if fault == "expired" else 1)
    if fault == "revoked":
        files = replace(files, crl=authority.revoke(certificate))
    server = old_server(certificate) if fault == "TLS 1.1" else serving(certificate)
    assert cause in await failure(server, files)


def test_a_subject_is_written_as_servers_write_it(authority: Authority) -> None:
    subject = (("O", "tests"), ("OU", "clients"), ("emailAddress", "a,b@x"))
    certificate = Certificate.read(authority.issue("alice", subject=subject))
    # What mongod 6.0 has in serverStatus, in logs and as the name of the user.
    assert certificate.subject == "CN=alice,emailAddress=a\\,b@x,OU=clients,O=tests"
    values = {value for _, value in certificate.membership}
    assert values == {"tests", "clients"}

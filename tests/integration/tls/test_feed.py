"""The feed by TLS: logins with certificates and passwords, and the rights of their users."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.harness.certificates import Authority, only_tls_1_1
from tests.harness.clusters import Client, TestCluster, on_real_servers
from tests.harness.feed_client import Line, feed, refusal
from tests.harness.routers import RouterProcess
from tests.harness.until import PATIENCE
from tests.integration.tls.conftest import CLIENTS, SUBJECT, tls_router

DOCS = Path(__file__).parents[3] / "docs"
X509: dict[str, Any] = {"mechanism": "MONGODB-X509"}
QUIET: Line = {"database": "db", "collection": "certificates", "heartbeatMs": 10}


@pytest.fixture(scope="module", params=[1, 2], ids=["one-process", "two-workers"])
def router(
    request: pytest.FixtureRequest, cluster: TestCluster, authority: Authority, key_file: Path
) -> Iterator[RouterProcess]:
    """A router with a feed, which clients may also use without a certificate."""
    at_once = {"authFailedDelayMs": 0, "userCacheInvalidationIntervalSecs": 1}
    flags = {"tlsAllowConnectionsWithoutCertificates": True, "set_parameter": at_once}
    with tls_router(
        cluster, authority, key_file, has_upstream=False, feed=True, workers=request.param, **flags
    ) as started:
        yield started


def context(authority: Authority, certificate: Path | None) -> ssl.SSLContext:
    client_context = ssl.create_default_context(cafile=authority.file)
    if certificate is not None:
        client_context.load_cert_chain(certificate)
    return client_context


@on_real_servers("logins with certificates")
async def test_a_certificate_logs_in(
    router: RouterProcess, cluster: TestCluster, authority: Authority, reader_file: Path
) -> None:
    async with feed(router.feed_port, context(authority, reader_file)) as connected:
        connected.send({"login": X509})
        assert await connected.receive() == {"login": {"payload": "", "done": True}}
        connected.send(QUIET)
        assert "resolved" in (await connected.receive() or {})
        with Client(cluster.mongos_uri) as root:
            inserted = root.db.certificates.insert_one({}).inserted_id
        while "resolved" in (line := await connected.receive() or {}):
            pass
        assert line["documentKey"]["_id"] == {"$oid": str(inserted)}
    async with feed(router.feed_port, context(authority, reader_file)) as connected:
        connected.send({"login": {**X509, "user": SUBJECT, "authSource": "$external"}})
        assert (await connected.receive() or {})["login"]["done"]
        connected.send({"database": "other"})
        assert await refusal(connected) == 13


REFUSED: list[tuple[str | None, Line, int]] = [
    (None, {}, 18),
    ("stranger", {}, 11),
    ("server", {}, 18),
    ("reader", {"user": "CN=other"}, 18),
    ("reader", {"user": 5}, 9),
    ("reader", {"authSource": "admin"}, 17),
]
"""The certificate of a client, fields of its login, and the error's code."""


@on_real_servers("logins with certificates")
@pytest.mark.parametrize(("certificate", "fields", "code"), REFUSED, ids=range(len(REFUSED)))
async def test_refused_certificates(
    router: RouterProcess,
    authority: Authority,
    reader_file: Path,
    certificate: str | None,
    fields: Line,
    code: int,
) -> None:
    """The codes are those of mongos's ``authenticate``, and of the feed's malformed lines."""
    issue = {
        None: lambda: None,
        "reader": lambda: reader_file,
        "stranger": lambda: authority.issue("stranger", subject=CLIENTS),
        "server": lambda: authority.issue("server2"),
    }
    async with feed(router.feed_port, context(authority, issue[certificate]())) as connected:
        connected.send({"login": {**X509, **fields}})
        assert await refusal(connected) == code


@on_real_servers("logins with certificates")
@pytest.mark.skipif(which("openssl") is None, reason="openssl is not installed")
def test_openssl_reads_the_feed(
    router: RouterProcess, authority: Authority, reader_file: Path
) -> None:
    """The command in docs/feed.md."""
    written = re.search(r"    (\(echo .*\n +openssl .*\n)", (DOCS / "feed.md").read_text())
    assert written is not None
    command = written[1]
    for name, value in (
        ("router.example:27021", f"127.0.0.1:{router.feed_port}"),
        (" ca.pem", f" {authority.file}"),
        ("client.pem", str(reader_file)),
        ('{"database": "shop"}', json.dumps(QUIET)),
    ):
        assert name in command
        command = command.replace(name, value)
    with subprocess.Popen(
        command, shell=True, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as reading:
        try:
            assert reading.stdout is not None
            assert json.loads(reading.stdout.readline())["login"]["done"]
            assert "resolved" in json.loads(reading.stdout.readline())
        finally:
            os.killpg(reading.pid, signal.SIGKILL)


def with_ciphers(names: str) -> Callable[[ssl.SSLContext], None]:
    """Return what limits a context to TLS 1.2 with these ciphers."""

    def limit(made: ssl.SSLContext) -> None:
        made.maximum_version = ssl.TLSVersion.TLSv1_2
        made.set_ciphers(f"{names}:@SECLEVEL=0")

    return limit


@pytest.mark.parametrize(
    "limit",
    [only_tls_1_1, *map(with_ciphers, ("ECDHE+SHA1", "AECDH", "ECDHE+eNULL"))],
    ids=["TLS 1.1", "CBC with SHA-1", "no certificate", "no encryption"],
)
def test_no_port_accepts_a_weak_offer(
    router: RouterProcess, authority: Authority, limit: Callable[[ssl.SSLContext], None]
) -> None:
    weak = context(authority, None)
    limit(weak)
    for port in (router.port, router.feed_port or 0):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            weak.wrap_socket(plain, server_hostname="127.0.0.1")

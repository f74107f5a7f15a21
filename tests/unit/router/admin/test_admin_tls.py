"""The admin port with TLS: who is accepted, and the certificate that clients see."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from router.admin.server import admin_handshakes
from router.config.settings import load_settings
from router.tls.certificates import Certificates
from router.tls.handshake import ONLY_TLS
from tests.harness.admin import admin_port, get, watched_facade
from tests.harness.certificates import Authority
from tests.harness.until import PATIENCE, until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def file(authority: Authority) -> Path:
    """The router's certificate and key."""
    return authority.issue("first")


@asynccontextmanager
async def serving(
    authority: Authority, file: Path, admin_mode: str | None = None
) -> AsyncIterator[tuple[int, Certificates]]:
    """Serve the admin port of a router whose drivers must use TLS and present certificates."""
    tls = {"mode": "requireTLS", "certificateKeyFile": file, "CAFile": authority.file}
    admin = {"port": 0, "tlsMode": admin_mode}
    net = load_settings({"net": {"tls": tls, "admin": admin}}).net
    certificates = Certificates(net.tls)
    async with (
        watched_facade() as made,
        admin_port(made, "secret", handshakes=admin_handshakes(net, certificates)) as port,
    ):
        yield port, certificates


async def ask(port: int, tls: ssl.SSLContext | None, **headers: str) -> Any:
    return await asyncio.to_thread(get, port, "/metrics", tls=tls, **headers)


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.file)


def subject(port: int, context: ssl.SSLContext) -> str:
    """Return the subject of the certificate that a new connection sees."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connected,
    ):
        return str(connected.getpeercert())


async def test_the_token_crosses_the_network_encrypted(authority: Authority, file: Path) -> None:
    """No client is asked for a certificate, which probes do not have."""
    async with serving(authority, file) as (port, _certificates):
        context = trusting(authority)
        refused = await ask(port, context)
        accepted = await ask(port, context, Authorization="Bearer secret")
    assert refused.status == 401
    assert accepted.status == 200
    assert "mergerouter_build_info" in accepted.text


async def test_clients_without_tls_are_refused(authority: Authority, file: Path) -> None:
    async with serving(authority, file) as (port, _certificates):
        with capture_logs() as logged:
            with pytest.raises(ConnectionError):
                await ask(port, None, Authorization="Bearer secret")
            await until(lambda: any(line.get("id") == 22988 for line in logged))
        (line,) = [line for line in logged if line.get("id") == 22988]
        assert line["error"]["errmsg"] == ONLY_TLS


async def test_an_unknown_authority_is_not_accepted(authority: Authority, file: Path) -> None:
    async with serving(authority, file) as (port, _certificates):
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(port, ssl.create_default_context())


@pytest.mark.parametrize("mode", ["allowTLS", "preferTLS"])
async def test_clients_choose_where_tls_is_allowed(
    authority: Authority, file: Path, mode: str
) -> None:
    async with serving(authority, file, mode) as (port, _certificates):
        for context in (None, trusting(authority)):
            assert (await ask(port, context, Authorization="Bearer secret")).status == 200


async def test_tls_can_be_left_to_the_drivers_port(authority: Authority, file: Path) -> None:
    async with serving(authority, file, "disabled") as (port, _certificates):
        assert (await ask(port, None, Authorization="Bearer secret")).status == 200


async def test_new_connections_see_an_exchanged_certificate(
    authority: Authority, file: Path
) -> None:
    async with serving(authority, file) as (port, certificates):
        context = trusting(authority)
        assert "first" in await asyncio.to_thread(subject, port, context)
        authority.issue("second", file=file)
        certificates.rotate()
        assert "second" in await asyncio.to_thread(subject, port, context)


async def test_the_end_does_not_wait_for_silent_clients(authority: Authority, file: Path) -> None:
    """Neither for one in the middle of its handshake nor for one that sends no request."""
    context = trusting(authority)
    async with serving(authority, file) as (port, _certificates):
        silent, _writer = await asyncio.open_connection("127.0.0.1", port)
        idle, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    async with asyncio.timeout(PATIENCE):
        assert await silent.read() == b""
        assert await idle.read() == b""
    writer.close()
